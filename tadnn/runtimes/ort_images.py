"""What ONNX Runtime makes of layers of images: fused convolutions, blocks of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tadnn.kernels import Kernel
from tadnn.nets import Layer, Node, layers
from tadnn.nets.layers.base import layer_kernels
from tadnn.runtimes.ort_walk import ALIGNED, LANES, Rule, Walk

# Activations by layer: the epilogue, and whether it fuses into a plain convolution, a blocked
# one, a blocked one that adds already, and a matrix product.
_FUSES: Final[dict[type[Layer], tuple[str, bool, bool, bool, bool]]] = {
    layers.ReLU: ("relu", True, True, True, True),
    layers.ReLU6: ("relu6", True, True, False, False),
    layers.LeakyReLU: ("leaky_relu", True, True, False, True),
    layers.Sigmoid: ("sigmoid", True, True, True, True),
    layers.HardSigmoid: ("hard_sigmoid", True, True, True, True),
    layers.HardSwish: ("hard_swish", False, True, True, False),
    layers.Tanh: ("tanh", True, True, True, True),
}
# What works on blocked images as they are.
_BLIND: Final = (
    layers.ReLU,
    layers.Sigmoid,
    layers.HardSigmoid,
    layers.HardSwish,
    layers.Tanh,
    layers.SiLU,
)


def conv(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Launch a convolution in blocks of channels where they fit."""
    (kernel,) = layer_kernels(node.layer, w.dtype, w.facts.inputs[i])
    kind = _conv_kind(kernel) if len(w.shape_of(taken[0])) == 4 else "plain"
    if kind == "blocked":
        w.need_blocked(taken[0])
    else:
        w.need_plain(taken[0])
    w.open[i] = w.launch(kernel, node.name, kind="plain" if kind == "plain" else "blocked")
    if kind != "plain":
        w.blocked.add(i)


def batch_norm(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Fold into the convolution before; alone, become one."""
    (value,) = taken
    made = w.open.get(value)
    alone = made is not None and w.uses[value] == 1 and made.kind in ("plain", "blocked")
    if made is not None and alone and not set(made.epilogue) - {"bias"}:
        made.epilogue = ["bias"]
        w.join(i, node, value)
    elif value in w.blocked:
        # Becomes a blocked 1x1 convolution of every channel by itself.
        n, c, height, width = w.shape_of(value)
        sizes = (n, c, height, width, c, 1, 1, 1, 0, 1, c)
        kernel = Kernel("conv2d", sizes, w.dtype, ("bias",))
        w.open[i] = w.launch(kernel, node.name, kind="blocked")
        w.blocked.add(i)
    else:
        w.other(i, node, taken)


def activation(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Join what comes before, or work on blocks as they are."""
    (value,) = taken
    rule = _FUSES.get(type(node.layer))
    made = w.open.get(value)
    fusing = made is not None and made.kind in ("plain", "blocked", "matrix")
    if rule is not None and made is not None and fusing and w.uses[value] == 1:
        part, plain, blocked, adding, matrix = rule
        acts = set(made.epilogue) - {"bias", "add"}
        may = {"plain": plain, "matrix": matrix}.get(
            made.kind, adding if "add" in made.epilogue else blocked
        )
        if may and not acts:
            made.epilogue.append(part)
            w.join(i, node, value)
            return
    if value in w.blocked and isinstance(node.layer, _BLIND):
        (kernel,) = layer_kernels(node.layer, w.dtype, w.facts.inputs[i])
        w.launch(kernel, node.name, f"{node.name}/*")
        w.blocked.add(i)
    else:
        w.other(i, node, taken)


def add(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Join a convolution that nobody else reads."""
    if all(value in w.blocked for value in taken):
        _add(w, i, node, taken, "blocked", fallback=_binary)
    else:
        _add(w, i, node, taken, "plain", fallback=Walk.other)


def _add(
    w: Walk,
    i: int,
    node: Node,
    taken: list[int],
    kind: str,
    fallback: Callable[[Walk, int, Node, list[int]], None],
) -> None:
    # The addition goes into a convolution that nobody else reads.
    for at, value in enumerate(taken):
        made = w.open.get(value)
        if made is None or made.kind != kind or w.uses[value] != 1:
            continue
        if set(made.epilogue) - {"bias"}:
            continue
        if kind == "plain":
            w.need_plain(taken[1 - at])
        # It runs where the later of the two is known.
        w.made.remove(made)
        w.made.append(made)
        made.epilogue.append("add")
        w.join(i, node, value)
        return
    fallback(w, i, node, taken)


def _binary(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    (kernel,) = layer_kernels(node.layer, w.dtype, w.facts.inputs[i])
    w.launch(kernel, node.name)
    w.blocked.add(i)


def mul(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Work on blocks where both are."""
    first, second = w.facts.inputs[i]
    if first == second and all(value in w.blocked for value in taken):
        _binary(w, i, node, taken)
    else:
        w.other(i, node, taken)


def pool(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Pool in blocks."""
    if w.shape_of(taken[0])[1] % LANES:
        w.other(i, node, taken)
        return
    w.need_blocked(taken[0])
    (kernel,) = layer_kernels(node.layer, w.dtype, w.facts.inputs[i])
    w.launch(kernel, node.name)
    w.blocked.add(i)


def upsample(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Enlarge blocks where they are."""
    if taken[0] not in w.blocked:
        w.other(i, node, taken)
        return
    (kernel,) = layer_kernels(node.layer, w.dtype, w.facts.inputs[i])
    w.launch(kernel, node.name)
    w.blocked.add(i)


def concat(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Concatenate blocks where all are."""
    layer: Any = node.layer
    aligned = all(value in w.blocked and w.shape_of(value)[1] % LANES == 0 for value in taken)
    if aligned and layer.dim == 1:
        _binary(w, i, node, taken)
    else:
        w.other(i, node, taken)


def _conv_kind(kernel: Kernel) -> str:
    """Return plain, blocked, or direct: blocked, but of a plain input."""
    c, k, groups = (kernel.dim(name) for name in ("c", "k", "groups"))
    if groups == 1:
        if c < LANES:
            return "direct"
        return "plain" if c % ALIGNED else "blocked"
    if k % ALIGNED:
        return "plain"
    if groups == c == k:
        return "blocked"
    return "plain" if (c // groups) % LANES or (k // groups) % LANES else "blocked"


def binary(w: Walk, i: int, node: Node, taken: list[int]) -> None:
    """Fold a stored number per channel into the convolution whose output it changes."""
    layer: Any = node.layer
    for value, other in (taken, taken[::-1]):
        made = w.open.get(value)
        stored = isinstance(w.layer_of(other), layers.Stored)
        if (
            made is None
            or not stored
            or w.uses[value] != 1
            or made.kind not in ("plain", "blocked")
        ):
            continue
        channels = (w.shape_of(value)[1], *[1] * (len(w.shape_of(value)) - 2))
        sizes = w.shape_of(other)
        if sizes not in (channels, (1, *channels)) or set(made.epilogue) - {"bias"}:
            continue
        if layer.function in ("add", "mul"):
            if layer.function == "add":
                made.epilogue = ["bias"]
            w.join(i, node, value)
            return
    w.other(i, node, taken)


RULES: Final[dict[type[Layer], Rule]] = {
    layers.Add: add,
    layers.AvgPool2d: pool,
    layers.BatchNorm2d: batch_norm,
    layers.Binary: binary,
    layers.Concat: concat,
    layers.Conv1d: conv,
    layers.Conv2d: conv,
    layers.Conv3d: conv,
    layers.DepthwiseConv2d: conv,
    layers.MaxPool2d: pool,
    layers.Mul: mul,
    layers.Permute: Walk.permute,
    layers.Upsample: upsample,
    **dict.fromkeys((*_FUSES, layers.SiLU), activation),
}
