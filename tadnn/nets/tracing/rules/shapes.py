"""Operators that move values without computing."""

from __future__ import annotations

from typing import Any, Final

from tadnn.nets.layers import ClassToken, Concat, Gather, Roll
from tadnn.nets.tracing.constants import Const
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value
from tadnn.nets.tracing.sizes import numbers


def _viewed(lo: Lowering, call: Call) -> Value:
    return lo.viewed(lo.lazy(call.args["self"]), call.shape)


def _squeezed(lo: Lowering, call: Call) -> Value:
    x = lo.lazy(call.args["self"])
    asked = call.args.get("dim")
    dims = range(len(x.shape)) if asked is None else [d % len(x.shape) for d in numbers(asked, 1)]
    left = [i for i, size in enumerate(x.shape) if not (i in dims and size == 1)]
    return x if len(left) == len(x.shape) else lo.viewed(x, tuple(x.shape[i] for i in left))


def _expand(lo: Lowering, call: Call) -> Value | None:
    return lo.expanded(lo.value(call.args["self"]), call.shape)


def _repeat(lo: Lowering, call: Call) -> Value | None:
    x = lo.value(call.args["self"])
    before = (1,) * (len(call.shape) - len(x.shape)) + x.shape
    if any(a not in (1, b) for a, b in zip(before, call.shape, strict=True)):
        return None
    return lo.expanded(x, call.shape)


def _repeat_interleave(lo: Lowering, call: Call) -> Value | None:
    times, dim = call.args["repeats"], call.args["dim"]
    if not isinstance(times, int) or dim is None:
        return None
    x = lo.value(call.args["self"])
    dim %= len(x.shape)
    wide = lo.viewed(x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]))
    made = lo.expanded(wide, (*x.shape[: dim + 1], times, *x.shape[dim + 1 :]))
    return None if made is None else lo.viewed(made, call.shape)


def _permute(lo: Lowering, call: Call) -> Value:
    x = lo.lazy(call.args["self"])
    return lo.permuted(x, [dim % len(x.shape) for dim in call.args["dims"]])


def _transpose(lo: Lowering, call: Call) -> Value:
    x = lo.lazy(call.args["self"])
    names = ("dim0", "dim1") if "dim0" in call.args else ("axis0", "axis1")
    first, second = (call.args[name] % len(x.shape) for name in names)
    dims = list(range(len(x.shape)))
    dims[first], dims[second] = second, first
    return lo.permuted(x, dims)


def _last_two(lo: Lowering, call: Call) -> Value:
    x = lo.lazy(call.args["self"])
    rank = len(x.shape)
    return lo.permuted(x, [*range(rank - 2), rank - 1, rank - 2])


def _movedim(lo: Lowering, call: Call) -> Value:
    x = lo.lazy(call.args["self"])
    rank = len(x.shape)
    source = [dim % rank for dim in numbers(call.args["source"], 1)]
    target = [dim % rank for dim in numbers(call.args["destination"], 1)]
    rest = iter(dim for dim in range(rank) if dim not in source)
    dims = [source[target.index(i)] if i in target else next(rest) for i in range(rank)]
    return lo.permuted(x, dims)


def _select(lo: Lowering, call: Call) -> Value | None:
    x = lo.lazy(call.args["self"])
    dim = call.args["dim"] % len(x.shape)
    if x.shape[dim] < 0 or not isinstance(call.args["index"], int):
        return None
    return lo.selected(x, dim, call.args["index"])


def _slice(lo: Lowering, call: Call) -> Value | None:
    x = lo.lazy(call.args["self"])
    dim = call.args["dim"] % len(x.shape)
    size = x.shape[dim]
    if size < 0:
        return x if call.shape == x.shape else None
    start = call.args["start"] or 0
    start = max(0, start + size if start < 0 else start)
    return lo.sliced(x, dim, start, call.shape[dim], call.args["step"])


def _narrow(lo: Lowering, call: Call) -> Value | None:
    x = lo.lazy(call.args["self"])
    dim, start = call.args["dim"] % len(x.shape), call.args["start"]
    if x.shape[dim] < 0 or not isinstance(start, int):
        return None
    return lo.sliced(x, dim, start % x.shape[dim], call.args["length"])


def _split(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    x = lo.lazy(call.args["self"])
    dim = call.args["dim"] % len(x.shape)
    if x.shape[dim] < 0:
        return None
    start, parts = 0, []
    for shape in call.shapes:
        parts.append(lo.sliced(x, dim, start, shape[dim]))
        start += shape[dim]
    return tuple(parts)


def _unbind(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    x = lo.lazy(call.args["self"])
    dim = call.args["dim"] % len(x.shape)
    if x.shape[dim] < 0:
        return None
    return tuple(lo.selected(x, dim, i) for i in range(len(call.shapes)))


def _cat(lo: Lowering, call: Call) -> Value | None:
    nodes = call.args["tensors"]
    dim = call.args["dim"] % len(call.shape)
    if call.shape[dim] < 0:
        return None
    parts = [lo.operand(node) for node in nodes]
    if len(parts) == 1:
        return lo.lazy(nodes[0])
    if dim == 0:  # in front of the batch: behind it, and the order waits
        batch = next(i for i, size in enumerate(call.shape) if size < 0)
        order = [batch, *(i for i in range(len(call.shape)) if i != batch)]
        made = lo.emit(Concat(1), *(lo.permuted(lo.lazy(node), order) for node in nodes))
        return lo.permuted(made, [order.index(i) for i in range(len(order))])
    token, rest = parts[0], parts[1]
    if len(parts) == 2 and dim == 1 and isinstance(token, Const):
        first = token.shape == (-1, 1, *call.shape[2:]) and len(call.shape) == 3
        if first and rest.shape[0] == -1 and lo.trained(token):
            weight = lo.tensor(token)[:1]
            return lo.emit(ClassToken(), lo.value(nodes[1]), weights={"weight": weight})
    return lo.emit(Concat(dim), *(lo.value(node) for node in nodes))


def _stack(lo: Lowering, call: Call) -> Value | None:
    dim = call.args["dim"] % len(call.shape)
    shape = call.shape[:dim] + call.shape[dim + 1 :]
    at = max(dim, 1)  # in front of the batch: behind it, and the order waits
    one = (*shape[:at], 1, *shape[at:])
    made = lo.emit(Concat(at), *(lo.viewed(lo.value(n), one) for n in call.args["tensors"]))
    return made if dim else lo.permuted(made, (1, 0, *range(2, len(one))))


def _roll(lo: Lowering, call: Call) -> Value | None:
    x = lo.value(call.args["self"])
    shifts = numbers(call.args["shifts"], 1)
    dims = tuple(dim % len(x.shape) for dim in numbers(call.args["dims"], 1))
    if len(shifts) != len(dims) or any(x.shape[dim] < 0 for dim in dims):
        return None
    kept = [(s, d) for s, d in zip(shifts, dims, strict=True) if s % x.shape[d]]
    if not kept:
        return x
    return lo.emit(Roll(tuple(s for s, _ in kept), tuple(d for _, d in kept)), x)


def _index(lo: Lowering, call: Call) -> Value | None:
    """Return the values at constant indices of one dimension."""
    indices = call.args["indices"]
    places = [i for i, index in enumerate(indices) if index is not None]
    if len(places) != 1:
        return None
    return _gather(lo, call.args["self"], places[0], indices[places[0]], call)


def _index_select(lo: Lowering, call: Call) -> Value | None:
    x = call.args["self"]
    return _gather(lo, x, call.args["dim"] % x.meta["val"].dim(), call.args["index"], call)


def _gather(lo: Lowering, node: Any, dim: int, index: Any, call: Call) -> Value | None:
    indices = lo.const(index)
    x = lo.value(node)
    if indices is None or indices.is_floating_point() or dim == 0 or x.shape[dim] < 0:
        return None
    if str(indices.dtype) == "torch.bool":
        if indices.dim() != 1:
            return None
        indices = indices.nonzero().flatten()
    flat = indices.flatten() % x.shape[dim]
    made = lo.emit(Gather(dim, flat.numel()), x, weights={"indices": flat})
    return lo.viewed(made, call.shape)


def _pixel_shuffle(lo: Lowering, call: Call) -> Value:
    x, r = lo.value(call.args["self"]), call.args["upscale_factor"]
    n, c, h, w = x.shape
    apart = lo.viewed(x, (n, c // r**2, r, r, h, w))
    return lo.viewed(lo.permuted(apart, (0, 1, 4, 2, 5, 3)), call.shape)


def _pixel_unshuffle(lo: Lowering, call: Call) -> Value:
    x, r = lo.value(call.args["self"]), call.args["downscale_factor"]
    n, c, h, w = x.shape
    apart = lo.viewed(x, (n, c, h // r, r, w // r, r))
    return lo.viewed(lo.permuted(apart, (0, 1, 3, 5, 2, 4)), call.shape)


def _channel_shuffle(lo: Lowering, call: Call) -> Value:
    x, groups = lo.value(call.args["self"]), call.args["groups"]
    n, c, *rest = x.shape
    apart = lo.viewed(x, (n, groups, c // groups, *rest))
    swapped = lo.permuted(apart, (0, 2, 1, *range(3, len(apart.shape))))
    return lo.viewed(swapped, call.shape)


def _view_dtype(lo: Lowering, call: Call) -> Value | None:
    return None if "dtype" in call.args else _viewed(lo, call)


def _transposed_matrix(lo: Lowering, call: Call) -> Value:
    x = lo.lazy(call.args["self"])
    return lo.permuted(x, (1, 0)) if len(x.shape) == 2 else x


TABLE: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        ("_reshape_alias", "_unsafe_view", "flatten", "reshape", "reshape_as", "unflatten"), _viewed
    ),
    **dict.fromkeys(
        (
            "chunk",
            "split",
            "split_with_sizes",
            "tensor_split",
            "unsafe_chunk",
            "unsafe_split",
            "unsafe_split_with_sizes",
            "hsplit",
        ),
        _split,
    ),
    "adjoint": _last_two,
    "cat": _cat,
    "channel_shuffle": _channel_shuffle,
    "concat": _cat,
    "expand": _expand,
    "expand_as": _expand,
    "index": _index,
    "index_select": _index_select,
    "mT": _last_two,
    "movedim": _movedim,
    "narrow": _narrow,
    "native_channel_shuffle": _channel_shuffle,
    "permute": _permute,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "roll": _roll,
    "select": _select,
    "slice": _slice,
    "squeeze": _squeezed,
    "stack": _stack,
    "swapaxes": _transpose,
    "swapdims": _transpose,
    "t": _transposed_matrix,
    "transpose": _transpose,
    "unbind": _unbind,
    "unsqueeze": _viewed,
    "view": _view_dtype,
    "view_as": _viewed,
}
