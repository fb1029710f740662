"""Pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tadnn.nets.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    GlobalAvgPool,
    Layer,
    MaxPool2d,
    Reduce,
    Resize,
    Shape,
    Upsample,
)
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value
from tadnn.nets.tracing.sizes import numbers


def _window(call: Call, rank: int) -> list[tuple[int, int]]:
    """Return kernel, stride and padding; a sequence is an image one pixel high."""
    kernel = call.args["kernel_size"]
    stride = call.args["stride"] or kernel
    given = [numbers(value, rank) for value in (kernel, stride, call.args["padding"])]
    return [(low if rank == 1 else v[0], v[-1]) for low, v in zip((1, 1, 0), given, strict=True)]


def _pool(make: Callable[[Call, list[tuple[int, int]]], Layer | None], rank: int) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value | None:
        layer = make(call, _window(call, rank))
        x = lo.value(call.args["self"])
        if layer is None or len(x.shape) != rank + 2:
            return None
        return lo.viewed(lo.emit(layer, lo.viewed(x, _image(x.shape))), call.shape)

    return rule


def _image(shape: Shape) -> Shape:
    return shape if len(shape) == 4 else (*shape[:2], 1, shape[2])


def _max(call: Call, window: list[tuple[int, int]]) -> Layer | None:
    kernel, stride, padding = window
    rank = len(call.shape) - 2
    taps = (1, *numbers(call.args["dilation"], rank))[-2:]
    return MaxPool2d(kernel, stride, padding, bool(call.args["ceil_mode"]), taps)  # type: ignore[arg-type]


def _mean(call: Call, window: list[tuple[int, int]]) -> Layer | None:
    if call.args.get("divisor_override") is not None:
        return None
    counted, ceil = bool(call.args["count_include_pad"]), bool(call.args["ceil_mode"])
    kernel, stride, padding = window
    return AvgPool2d(kernel, stride, padding, counted or not any(padding), ceil)


def _adaptive_mean(lo: Lowering, call: Call) -> Value | None:
    x = lo.value(call.args["self"])
    if x.shape == call.shape:
        return x
    image = lo.viewed(x, _image(x.shape))
    out = _image(call.shape)[2:]
    layer = GlobalAvgPool() if out == (1, 1) else AdaptiveAvgPool2d(out)  # type: ignore[arg-type]
    return lo.viewed(lo.emit(layer, image), call.shape)


def _adaptive_max(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    x = lo.value(call.args["self"])
    inside = tuple(range(2, len(x.shape)))
    if _uses_indices(call):
        return None
    if all(call.shape[dim] == 1 for dim in inside):
        return (lo.emit(Reduce("amax", inside, True), x),)
    sizes = list(zip(_image(x.shape)[2:], _image(call.shape)[2:], strict=True))
    if any(size % out for size, out in sizes):  # windows of different sizes
        return None
    height, width = (size // out for size, out in sizes)
    layer = MaxPool2d((height, width), (height, width))
    return (lo.viewed(lo.emit(layer, lo.viewed(x, _image(x.shape))), call.shape),)


def _uses_indices(call: Call) -> bool:
    return any(user.args[1] == 1 and user.users for user in call.node.users)


def _largest(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    """Return the maximum along a dimension where nobody asks for its place."""
    x = lo.value(call.args["self"])
    if "dim" not in call.args or _uses_indices(call):
        return None
    dim = call.args["dim"] % len(x.shape)
    if x.shape[dim] < 0:
        return None
    return (lo.emit(Reduce("amax", (dim,), bool(call.args["keepdim"])), x),)


def _max_with_indices(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    made = None if _uses_indices(call) else _pool(_max, 2)(lo, call)
    return None if made is None else (made,)  # type: ignore[return-value]


def _resize(mode: str, antialias: bool = False) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value | None:
        x = lo.value(call.args.get("input", call.args.get("self")))
        h, w = x.shape[2:]
        out = call.shape[2:]
        scales = call.args.get("scale_factors") or [None, None]
        given = [s for s in scales if s is not None]
        align = bool(call.args.get("align_corners", False))
        if any(abs(s * size - o) > 1e-9 for s, size, o in zip(given, (h, w), out, strict=False)):
            # A size that isn't the scale's: pixels lie elsewhere.
            if len(given) != 2:
                return None
            odd = Resize(out, mode, align, antialias, float(given[0]), float(given[1]))  # type: ignore[arg-type]
            return lo.emit(odd, x)
        if x.shape == call.shape:
            return x
        scale = out[0] // h
        whole = (h * scale, w * scale) == out
        if whole and mode in ("nearest", "bilinear") and not align and not antialias:
            return lo.emit(Upsample(scale, mode), x)
        return lo.emit(Resize(out, mode, align, antialias), x)  # type: ignore[arg-type]

    return rule


TABLE: Final[dict[str, Rule]] = {
    "_upsample_bicubic2d_aa": _resize("bicubic", True),
    "_upsample_bilinear2d_aa": _resize("bilinear", True),
    "_upsample_nearest_exact2d": _resize("nearest-exact"),
    "adaptive_avg_pool1d": _adaptive_mean,
    "adaptive_avg_pool2d": _adaptive_mean,
    "_adaptive_avg_pool2d": _adaptive_mean,
    "adaptive_max_pool1d": _adaptive_max,
    "adaptive_max_pool2d": _adaptive_max,
    "avg_pool1d": _pool(_mean, 1),
    "avg_pool2d": _pool(_mean, 2),
    "max": _largest,
    "max_pool1d": _pool(_max, 1),
    "max_pool2d": _pool(_max, 2),
    "max_pool2d_with_indices": _max_with_indices,
    "upsample_bicubic2d": _resize("bicubic"),
    "upsample_bilinear2d": _resize("bilinear"),
    "upsample_nearest2d": _resize("nearest"),
}
