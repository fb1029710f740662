"""What ONNX Runtime makes of layers of tokens, and of what moves values."""

from __future__ import annotations

import math
from typing import Any, Final

from tadnn.kernels import Kernel
from tadnn.nets import Layer, Node, Shape, layers
from tadnn.nets.layers.base import layer_kernels
from tadnn.runtimes.ort_walk import Rule, Walk, kernel_of


def free(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Take a plain value; its memory is the output's."""
    w.need_plain(taken[0])


def linear(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Launch a product with its bias; an activation joins a matrix's."""
    w.need_plain(taken[0])
    (kernel,) = layer_kernels(node.layer, w.dtype, w.facts.inputs[i])
    made = w.launch(kernel, node.name, f"{node.name}/*", kind="matrix")
    if len(w.facts.outputs[i]) == 2:  # Gemm; MatMul takes no activation
        w.open[i] = made


def attention(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Add what splits and joins heads to the raw kernels, and the mask."""
    layer: Any = node.layer
    (shape,) = w.facts.inputs[i]
    n, t, _ = shape
    project, scores, softmax, mixed, join = layer_kernels(layer, w.dtype, (shape,))
    head, kv = layer.torch(shape).args[2:4]
    name, heads = node.name, layer.heads
    w.launch(project, f"{name}/qkv_matmul", f"{name}/qkv")
    split = (n, t, heads + 2 * kv, head)
    w.launch(kernel_of("permute", split, w.dtype), f"{name}/heads", f"{name}/split")
    if kv != heads:
        repeated = Kernel("concat", (n * kv, heads // kv * t * head), w.dtype)
        for part in ("key", "value"):
            w.launch(repeated, f"{name}/{part}_expanded")
    w.launch(scores, f"{name}/scores")
    if layer.causal:
        w.launch(Kernel("add_cols", (n * heads, t * t), w.dtype), f"{name}/masked")
    w.launch(softmax, f"{name}/softmax")
    w.launch(mixed, f"{name}/mixed")
    w.launch(kernel_of("permute", (n, heads, t, head), w.dtype), f"{name}/tokens")
    w.launch(join, f"{name}/out_matmul", name)


def scaled_dot_product(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Launch scores, mask, softmax and weighted sum by their names."""
    layer: Any = node.layer
    shapes = w.facts.inputs[i]
    for value in taken:
        w.need_plain(value)
    (*lead, heads, t, _), (*_, kv, s, _) = shapes[:2]
    scores, *mask, softmax, mixed = layer_kernels(layer, w.dtype, shapes)
    name = node.name
    if kv not in (1, heads):
        for part, shape in zip(("key", "value"), shapes[1:3], strict=True):
            repeated = (math.prod(lead) * kv, heads // kv * s * shape[-1])
            w.launch(Kernel("concat", repeated, w.dtype), f"{name}/{part}_expanded")
    w.launch(scores, f"{name}/scores")
    if layer.causal:
        w.launch(Kernel("add_cols", (math.prod(lead) * heads, t * s), w.dtype), f"{name}/masked")
    for kernel in mask:
        w.launch(kernel, f"{name}/masked")
    w.launch(softmax, f"{name}/softmax")
    w.launch(mixed, name)


def cached_attention(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Add what splits heads to the raw kernels."""
    layer: Any = node.layer
    (shape,) = w.facts.inputs[i]
    w.need_plain(taken[0])
    project, keys, values, scores, softmax, mixed, join = layer_kernels(layer, w.dtype, (shape,))
    name, projected = node.name, project.dim("n")
    w.launch(project, f"{name}/qkv_matmul", f"{name}/qkv")
    copied = Kernel("concat", (shape[0], projected), w.dtype)
    w.launch(copied, f"{name}/heads", f"{name}/split")
    w.launch(keys, f"{name}/keys_grown")
    w.launch(values, f"{name}/values_grown")
    w.launch(scores, f"{name}/scores")
    w.launch(softmax, f"{name}/softmax")
    w.launch(mixed, f"{name}/mixed")
    w.launch(join, f"{name}/out_matmul", name)


def product(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Launch a product, which takes a scale before or after it and the second's transpose."""
    w.other(i, node, taken)
    made = w.made[-1]
    made.kind = "product"
    w.open[i] = made


def pointwise(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Join a product as its scale."""
    layer: Any = node.layer
    made = w.open.get(taken[0])
    alone = made is not None and made.kind == "product" and w.uses[taken[0]] == 1
    if alone and layer.function in ("mul", "div"):
        w.join(i, node, taken[0])
    else:
        w.other(i, node, taken)


def stored(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Launch nothing: it is part of the file."""


def copied(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Copy a part, which elsewhere is a view."""
    w.need_plain(taken[0])
    w.launch(_copy(w.facts.outputs[i], w.dtype), node.name, f"{node.name}/*")


def _copy(shape: Shape, dtype: str) -> Kernel:
    return kernel_of("concat", (math.prod(shape[:-1]), shape[-1]), dtype)


def roll(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Cut in two and join the other way round, along each dimension."""
    layer: Any = node.layer
    (shape,) = w.facts.inputs[i]
    w.need_plain(taken[0])
    moves = list(zip(layer.shifts, layer.dims, strict=True))
    for at, (shift, dim) in enumerate(moves):
        cut = -shift % shape[dim]
        for part, size in ((f"end{at}", shape[dim] - cut), (f"begin{at}", cut)):
            if size:
                sizes = (*shape[:dim], size, *shape[dim + 1 :])
                w.launch(_copy(sizes, w.dtype), f"{node.name}/{part}")
        last = at == len(moves) - 1
        w.launch(_copy(shape, w.dtype), node.name if last else f"{node.name}/moved{at}")


RULES: Final[dict[type[Layer], Rule]] = {
    layers.Attention: attention,
    layers.CachedAttention: cached_attention,
    layers.Linear: linear,
    layers.MatMul: product,
    layers.Pointwise: pointwise,
    layers.Roll: roll,
    layers.ScaledDotProduct: scaled_dot_product,
    layers.Select: copied,
    layers.Slice: copied,
    layers.Stored: stored,
    **dict.fromkeys((layers.Flatten, layers.Reshape, layers.View), free),
}
