"""Convolutions, linear layers and embeddings as ONNX operators."""

from __future__ import annotations

from typing import Any, Final

from tadnn.nets import Layer, Shape, layers
from tadnn.runtimes.onnx_writer import GraphWriter, Writer, spread


def _conv(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    recipe = layer.torch(*shapes)
    rank = len(shapes[0]) - 2
    kwargs = dict(recipe.kwargs)
    groups = kwargs.get("groups", 1)
    window = spread(recipe.args[2], rank)
    attributes = {
        "group": groups,
        "auto_pad": "NOTSET",
        "kernel_shape": window,
        "strides": spread(kwargs.get("stride", 1), rank),
        "pads": 2 * spread(kwargs.get("padding", 0), rank),
        "dilations": spread(kwargs.get("dilation", 1), rank),
    }
    channels, outputs = shapes[0][1], out[1]
    transposed = isinstance(layer, layers.ConvTranspose2d)
    if transposed:
        attributes["output_padding"] = spread(kwargs.get("output_padding", 0), rank)
        weight = (channels, outputs // groups, *window)
    else:
        weight = (outputs, channels // groups, *window)
    inputs = [*taken, g.weight("weight", weight)]
    if layer.bias:
        inputs.append(g.weight("bias", (outputs,)))
    return g.add("ConvTranspose" if transposed else "Conv", inputs, **attributes)


def linear(
    g: GraphWriter,
    value: str,
    name: str,
    rank: int,
    sizes: tuple[int, int],
    bias: bool,
    part: str = "",
) -> str:
    """Write a projection as the exporter does: Gemm for matrices, else MatMul and Add."""
    prefix = f"{name}." if name else ""
    out = sizes[0]
    if rank == 2:
        inputs = [value, g.weight(f"{prefix}weight", sizes)]
        if bias:
            inputs.append(g.weight(f"{prefix}bias", (out,)))
        return g.add("Gemm", inputs, part, alpha=1.0, beta=1.0, transA=0, transB=1)
    inputs = [value, g.weight(f"{prefix}weight", sizes, transposed=True)]
    if not bias:
        return g.add("MatMul", inputs, part)
    product = g.add("MatMul", inputs, f"{name or 'out'}_matmul")
    return g.add("Add", [product, g.weight(f"{prefix}bias", (out,))], part)


def _linear_layer(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    return linear(g, taken[0], "", len(out), (out[-1], shapes[0][-1]), layer.bias)


def _embedding(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    return g.add("Gather", [g.weight("weight", (layer.count, layer.width)), *taken], axis=0)


def _class_token(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    n, _, width = out
    token = g.add("Expand", [g.weight("weight", (1, 1, width)), g.numbers([n, 1, 1])], "token")
    return g.add("Concat", [token, *taken], axis=1)


def _position(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    return g.add("Add", [*taken, g.weight("weight", (1, *out[1:]))])


TABLE: Final[dict[type[Layer], Writer]] = {
    layers.ClassToken: _class_token,
    layers.Conv1d: _conv,
    layers.Conv2d: _conv,
    layers.Conv3d: _conv,
    layers.ConvTranspose2d: _conv,
    layers.DepthwiseConv2d: _conv,
    layers.Embedding: _embedding,
    layers.Linear: _linear_layer,
    layers.PositionEmbedding: _position,
}
