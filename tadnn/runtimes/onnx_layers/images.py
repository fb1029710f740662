"""Pools, reductions and resizing as ONNX operators."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tadnn.nets import Layer, Shape, layers
from tadnn.runtimes.onnx_writer import GraphWriter, Writer, spread


def _pool(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    attributes: dict[str, Any] = {
        "kernel_shape": spread(layer.kernel, 2),
        "strides": spread(layer.stride, 2),
        "pads": 2 * spread(layer.padding, 2),
        "ceil_mode": int(layer.ceil_mode),
        "auto_pad": "NOTSET",
    }
    if isinstance(layer, layers.AvgPool2d):
        attributes["count_include_pad"] = int(layer.count_include_pad)
        return g.add("AveragePool", taken, **attributes)
    attributes |= {"dilations": spread(layer.dilation, 2), "storage_order": 0}
    return g.add("MaxPool", taken, **attributes)


def _adaptive(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    (h, w), (p, q) = shapes[0][2:], out[2:]
    if (p, q) == (1, 1):
        return mean((-1, -2), 1)(g, layer, taken, shapes, out)
    if h % p == 0 and w % q == 0:
        window = [h // p, w // q]
        return g.add(
            "AveragePool",
            taken,
            kernel_shape=window,
            strides=window,
            pads=[0] * 4,
            ceil_mode=0,
            count_include_pad=1,
            auto_pad="NOTSET",
        )
    # Means over overlapping windows: two products, one per direction.
    rows = g.add("MatMul", [g.constant(_windows(h, p), f"windows {h} {p}"), *taken], "rows")
    return g.add("MatMul", [rows, g.constant(_windows(w, q).T, f"windows {w} {q} across")])


def _windows(size: int, count: int) -> np.ndarray:
    """Return the means over torch's adaptive windows as a matrix, [count, size]."""
    matrix = np.zeros((count, size), np.float32)
    for i in range(count):
        first, last = i * size // count, -(-(i + 1) * size // count)
        matrix[i, first:last] = 1 / (last - first)
    return matrix


def _upsample(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    nearest = layer.mode == "nearest"
    scales = g.constant(np.array([1, 1, layer.scale, layer.scale]), f"scales {layer.scale}")
    return g.add(
        "Resize",
        [*taken, "", scales],
        mode="nearest" if nearest else "linear",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric" if nearest else "half_pixel",
    )


def _resize(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    nearest = layer.mode.startswith("nearest")
    where = "align_corners" if layer.align_corners else "half_pixel"
    if layer.mode == "nearest":
        where = "asymmetric"
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(layer.mode, "nearest")
    attributes: dict[str, Any] = {"mode": kind, "coordinate_transformation_mode": where}
    if nearest:
        # torch rounds half up; ONNX's "round_prefer_ceil" does, too.
        attributes["nearest_mode"] = "floor" if layer.mode == "nearest" else "round_prefer_ceil"
    else:
        attributes["antialias"] = int(layer.antialias)
        if kind == "cubic":
            # torch's coefficients (Keys 1981): -0.75, and -0.5 where it smooths.
            attributes["cubic_coeff_a"] = -0.5 if layer.antialias else -0.75
    if layer.scales is None:
        return g.add("Resize", [*taken, "", "", g.numbers(list(out))], **attributes)
    scales = g.constant(np.array([1, 1, *layer.scales]), f"scales {layer.scales}")
    return g.add("Resize", [*taken, "", scales], **attributes)


def mean(axes: tuple[int, ...], keepdims: int) -> Writer:
    """Return a writer of means over some dimensions."""
    return lambda g, layer, taken, shapes, out: g.add(
        "ReduceMean",
        [*taken, g.numbers(list(axes))],
        keepdims=keepdims,
        noop_with_empty_axes=0,
    )


def _reduce(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    axes, kept = g.numbers(list(layer.dims)), int(layer.keepdim)
    if layer.function in _REDUCES:
        return g.add(
            _REDUCES[layer.function], [*taken, axes], keepdims=kept, noop_with_empty_axes=0
        )
    centre = g.add("ReduceMean", [*taken, axes], "mean", keepdims=1, noop_with_empty_axes=0)
    apart = g.add("Sub", [*taken, centre], "apart")
    square = g.add("Mul", [apart, apart], "square")
    count = math.prod(shapes[0][dim] for dim in layer.dims)
    total = g.add("ReduceSum", [square, axes], "sum", keepdims=kept, noop_with_empty_axes=0)
    freedom = g.constant(float(max(count - layer.correction, 0)))
    var = g.add("Div", [total, freedom], "" if layer.function == "var" else "var")
    return var if layer.function == "var" else g.add("Sqrt", [var])


_REDUCES: Final = {
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "mean": "ReduceMean",
    "norm": "ReduceL2",
    "sum": "ReduceSum",
}

TABLE: Final[dict[type[Layer], Writer]] = {
    layers.AdaptiveAvgPool2d: _adaptive,
    layers.AvgPool2d: _pool,
    layers.GlobalAvgPool: mean((-1, -2), 1),
    layers.MaxPool2d: _pool,
    layers.Reduce: _reduce,
    layers.Resize: _resize,
    layers.TokenMean: mean((1,), 0),
    layers.Upsample: _upsample,
}
