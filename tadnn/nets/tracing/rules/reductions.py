"""Means, sums and other values of many."""

from __future__ import annotations

from typing import Final

from tadnn.errors import TraceError
from tadnn.nets.layers import GlobalAvgPool, Reduce, TokenMean
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value, kept_dims


def reduced(lo: Lowering, call: Call, function: str, correction: float | None = 0) -> Value | None:
    """Return a reduction over the call's dimensions; the value's order may wait."""
    x = lo.lazy(call.args["self"])
    dims = kept_dims(call.args.get("dim"), len(x.shape))
    keepdim = bool(call.args.get("keepdim", False))
    if any(x.shape[dim] < 0 for dim in dims):
        raise TraceError(
            f"the inputs of a batch are computed apart from each other; {call.overload} mixes "
            f"them{call.origin.line}"
        )
    if correction != int(correction or 0) or len(dims) == len(x.shape):
        return None
    source = lo.source(x)
    inside = tuple(sorted(x.dims[dim] for dim in dims))
    layer = Reduce(function, inside, keepdim, int(correction or 0))
    if function == "mean":
        if (len(source.shape), inside, keepdim) == (4, (2, 3), True):
            return lo.permuted_like(x, lo.emit(GlobalAvgPool(), source), keepdim, inside)
        if (len(source.shape), inside, keepdim) == (4, (2, 3), False) and x.dims == (0, 1, 2, 3):
            return lo.viewed(lo.emit(GlobalAvgPool(), source), source.shape[:2])
        if (len(source.shape), inside, keepdim) == (3, (1,), False):
            return lo.permuted_like(x, lo.emit(TokenMean(), source), keepdim, inside)
    return lo.permuted_like(x, lo.emit(layer, source), keepdim, inside)


def _reduction(function: str) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value | None:
        return reduced(lo, call, function)

    return rule


def _spread(function: str) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value | None:
        if "unbiased" in call.args:
            return reduced(lo, call, function, int(call.args["unbiased"]))
        correction = call.args.get("correction")
        return reduced(lo, call, function, 1 if correction is None else correction)

    return rule


def _var_mean(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    var = _spread("var")(lo, call)
    mean = reduced(lo, call, "mean")
    return None if var is None or mean is None else (var, mean)  # type: ignore[return-value]


def _norm(lo: Lowering, call: Call) -> Value | None:
    order = call.args.get("ord", call.args.get("p", 2))
    return reduced(lo, call, "norm") if order in (2, None) else None


TABLE: Final[dict[str, Rule]] = {
    "amax": _reduction("amax"),
    "amin": _reduction("amin"),
    "linalg_vector_norm": _norm,
    "mean": _reduction("mean"),
    "norm": _norm,
    "std": _spread("std"),
    "sum": _reduction("sum"),
    "var": _spread("var"),
    "var_mean": _var_mean,
}
