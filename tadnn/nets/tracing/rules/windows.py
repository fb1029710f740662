"""Windows of a tensor, what is around it, and parts of it written over."""

from __future__ import annotations

import math
from typing import Final

import torch

from tadnn.nets.layers import Concat, Gather, Pad
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value
from tadnn.nets.tracing.sizes import kept_dims, numbers


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


def _pad(lo: Lowering, call: Call) -> Value | None:
    pads, mode = call.args["pad"], call.args.get("mode", "constant")
    value = call.args.get("value")
    if not all(isinstance(pad, int) for pad in pads):
        return None
    x = lo.value(call.args["self"])
    if not any(pads):
        return x
    while len(pads) > 2 and not any(pads[-2:]) and mode == "constant":
        pads = pads[:-2]
    value = float(value or 0)
    if value == -math.inf and all("max_pool2d" in str(user.target) for user in call.node.users):
        value = float(torch.finfo(torch.float32).min)  # no maximum either
    return lo.emit(Pad(tuple(pads), mode, value), x)


def _flip(lo: Lowering, call: Call) -> Value | None:
    """Return the values in reverse order along dimensions."""
    x = lo.lazy(call.args["self"])
    for dim in kept_dims(call.args["dims"], len(x.shape)):
        if x.shape[dim] < 0:
            return None
        places = torch.arange(x.shape[dim]).flip(0)
        batch = next(i for i, size in enumerate(x.shape) if size < 0)
        order = [batch, *(i for i in range(len(x.shape)) if i != batch)]
        at = order.index(dim)
        made = lo.emit(Gather(at, len(places)), lo.permuted(x, order), weights={"indices": places})
        x = lo.permuted(made, [order.index(i) for i in range(len(order))])
    return x


def _padding(mode: str) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value:
        return lo.emit(Pad(tuple(call.args["padding"]), mode), lo.value(call.args["self"]))

    return rule


TABLE: Final[dict[str, Rule]] = {
    "copy": _copy,
    "im2col": _im2col,
    "constant_pad_nd": _pad,
    "flip": _flip,
    "pad": _pad,
    "reflection_pad1d": _padding("reflect"),
    "reflection_pad2d": _padding("reflect"),
    "replication_pad1d": _padding("replicate"),
    "replication_pad2d": _padding("replicate"),
    "slice_scatter": _slice_scatter,
    "unfold": _unfold,
}
