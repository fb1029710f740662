"""Windows of a tensor, and parts of it written over: copies by stored indices."""

from __future__ import annotations

from typing import Final

import torch

from tadnn.nets.layers import Concat, Gather, Pad
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value
from tadnn.nets.tracing.sizes import numbers


def _windows(lo: Lowering, x: Value, dim: int, starts: range, taps: range) -> Value:
    """Return (..., taps, starts, ...) in the place of a dimension: every tap of every window."""
    places = torch.tensor([tap + start for tap in taps for start in starts])
    made = lo.emit(Gather(dim, len(places)), x, weights={"indices": places})
    return lo.viewed(made, (*x.shape[:dim], len(taps), len(starts), *x.shape[dim + 1 :]))


def _unfold(lo: Lowering, call: Call) -> Value | None:
    x = lo.value(call.args["self"])
    dim = call.args["dimension"] % len(x.shape)
    size, step = call.args["size"], call.args["step"]
    if dim == 0 or x.shape[dim] < 0:
        return None
    starts = range(0, x.shape[dim] - size + 1, step)
    made = _windows(lo, x, dim, starts, range(size))
    return lo.permuted(made, [i for i in range(len(made.shape)) if i != dim] + [dim])


def _im2col(lo: Lowering, call: Call) -> Value | None:
    x = lo.value(call.args["self"])
    names = ("kernel_size", "dilation", "padding", "stride")
    kernel, dilation, padding, stride = (numbers(call.args[name], 2) for name in names)
    if len(x.shape) != 4:
        return None
    if any(padding):
        x = lo.emit(Pad((padding[1], padding[1], padding[0], padding[0])), x)
    for axis, dim in ((1, 3), (0, 2)):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        starts = range(0, x.shape[dim] - reach + 1, stride[axis])
        x = _windows(lo, x, dim, starts, range(0, reach, dilation[axis]))
    return lo.viewed(lo.permuted(x, (0, 1, 2, 4, 3, 5)), call.shape)


def _copy(lo: Lowering, call: Call) -> Value | None:
    """Return what is copied over all of a tensor."""
    return lo.expanded(lo.value(call.args["src"]), call.shape)


def _slice_scatter(lo: Lowering, call: Call) -> Value | None:
    """Return a tensor with a run of indices written over."""
    x, new = lo.lazy(call.args["self"]), lo.value(call.args["src"])
    dim = call.args["dim"] % len(x.shape)
    if x.shape[dim] < 0:
        return new if new.shape == x.shape else None
    if dim == 0 or call.args["step"] != 1:
        return None
    size, start, length = x.shape[dim], call.args["start"] or 0, new.shape[dim]
    start = max(0, start + size if start < 0 else start)
    parts = [new]
    if start:
        parts.insert(0, lo.sliced(x, dim, 0, start))
    if start + length < size:
        parts.append(lo.sliced(x, dim, start + length, size - start - length))
    return lo.emit(Concat(dim), *parts) if len(parts) > 1 else new


TABLE: Final[dict[str, Rule]] = {
    "copy": _copy,
    "im2col": _im2col,
    "slice_scatter": _slice_scatter,
    "unfold": _unfold,
}
