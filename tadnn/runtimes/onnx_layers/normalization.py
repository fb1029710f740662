"""Normalisations as ONNX operators."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tadnn.nets import Layer, Shape, layers
from tadnn.runtimes.onnx_writer import GraphWriter, Writer, reshape


def _scale(g: GraphWriter, layer: Any, name: str, shape: Shape) -> str:
    """Return a learned scale or shift, or the ones or zeros that stand for none."""
    if layer.affine:
        return g.weight(name, shape)
    fill = 1.0 if name == "weight" else 0.0
    return g.constant(np.full(shape, fill), f"{list(shape)} times {fill}")


def _batch_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    inputs = [*taken, *(_scale(g, layer, name, (out[1],)) for name in ("weight", "bias"))]
    inputs += [g.weight(name, (out[1],)) for name in ("running_mean", "running_var")]
    return g.add("BatchNormalization", inputs, epsilon=layer.eps, momentum=0.9)


def _layer_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    sizes = out[-layer.dims :]
    inputs = [*taken, _scale(g, layer, "weight", sizes)]
    if layer.affine and layer.bias:
        inputs.append(g.weight("bias", sizes))
    return g.add("LayerNormalization", inputs, axis=-layer.dims, epsilon=layer.eps, stash_type=1)


def _group_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    rows = g.add("Reshape", [taken[0], g.numbers([0, layer.groups, -1])], "rows")
    ones, zeros = (
        g.constant(np.full(layer.groups, x), f"{layer.groups} times {x}") for x in (1.0, 0.0)
    )
    normal = g.add("InstanceNormalization", [rows, ones, zeros], "normal", epsilon=layer.eps)
    normal = reshape(g, normal, out, "shaped" if layer.affine else "")
    if not layer.affine:
        return normal
    sizes = (out[1], *[1] * (len(out) - 2))
    scaled = g.add("Mul", [normal, g.weight("weight", sizes)], "scaled")
    return g.add("Add", [scaled, g.weight("bias", sizes)])


def _rms_norm(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    square = g.add("Pow", [taken[0], g.constant(2.0)], "square")
    axes = g.numbers([len(out) - 1])
    mean = g.add("ReduceMean", [square, axes], "mean", keepdims=1, noop_with_empty_axes=0)
    eps = float(np.finfo(np.float32).eps) if layer.eps is None else layer.eps
    safe = g.add("Add", [mean, g.constant(eps)], "safe")
    root = g.add("Reciprocal", [g.add("Sqrt", [safe], "sqrt")], "rsqrt")
    if not layer.affine:
        return g.add("Mul", [taken[0], root])
    normal = g.add("Mul", [taken[0], root], "normal")
    return g.add("Mul", [normal, g.weight("weight", (out[-1],))])


TABLE: Final[dict[type[Layer], Writer]] = {
    layers.BatchNorm2d: _batch_norm,
    layers.GroupNorm: _group_norm,
    layers.LayerNorm: _layer_norm,
    layers.RMSNorm: _rms_norm,
}
