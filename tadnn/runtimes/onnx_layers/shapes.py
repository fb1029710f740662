"""What moves or repeats values, as ONNX operators."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tadnn.nets import Layer, Shape, layers
from tadnn.runtimes.onnx_writer import GraphWriter, Writer, plain, reshape

_END: Final = np.iinfo(np.int64).max


def _to_shape(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    return reshape(g, taken[0], out)


def _run(
    g: GraphWriter, value: str, dim: int, start: int, end: int, part: str = "", step: int = 1
) -> str:
    """Write a run of indices of one dimension."""
    ends = [g.numbers([each]) for each in (start, end, dim, step)]
    return g.add("Slice", [value, *ends], part)


def _slice(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    end = layer.start + (layer.length - 1) * layer.step + 1
    return _run(g, taken[0], layer.dim, layer.start, end, "", layer.step)


def _select(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    rank = len(shapes[0])
    return g.add("Gather", [*taken, g.numbers(layer.index)], axis=layer.dim % rank)


def _gather(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    places = np.arange(layer.count) % shapes[0][layer.dim]
    indices = g.weight("indices", (layer.count,), otherwise=places)
    return g.add("Gather", [*taken, indices], axis=layer.dim)


def _expand(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    return g.add("Expand", [*taken, g.numbers(list(out))])


def _roll(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    (value,) = taken
    moves = list(zip(layer.shifts, layer.dims, strict=True))
    for i, (shift, dim) in enumerate(moves):
        cut = -shift % shapes[0][dim]
        parts = [
            _run(g, value, dim, cut, _END, f"end{i}"),
            _run(g, value, dim, 0, cut, f"begin{i}"),
        ]
        value = g.add("Concat", parts, f"moved{i}" if i < len(moves) - 1 else "", axis=dim)
    return value


def _pad(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    unpadded = [0] * (len(out) - len(layer.pads) // 2)
    before, after = (unpadded + list(reversed(layer.pads[i::2])) for i in (0, 1))
    inputs = [*taken, g.numbers(before + after)]
    if layer.mode == "constant":
        inputs.append(g.constant(layer.value))
    return g.add("Pad", inputs, mode=modes[layer.mode])


def _stored(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    repeats = (out[0] // layer.shape[0], *[1] * (len(out) - 1))
    return g.weight("value", layer.shape, kind=layer.kind, repeats=repeats)


TABLE: Final[dict[type[Layer], Writer]] = {
    layers.Concat: lambda g, layer, taken, shapes, out: g.add(
        "Concat", taken, axis=layer.dim % len(out)
    ),
    layers.Dropout: plain("Identity"),
    layers.Expand: _expand,
    layers.Flatten: _to_shape,
    layers.Gather: _gather,
    layers.Identity: plain("Identity"),
    layers.Pad: _pad,
    layers.Permute: lambda g, layer, taken, shapes, out: g.add(
        "Transpose", taken, perm=list(layer.dims)
    ),
    layers.Reshape: _to_shape,
    layers.Roll: _roll,
    layers.Select: _select,
    layers.Slice: _slice,
    layers.Stored: _stored,
    layers.View: _to_shape,
}
