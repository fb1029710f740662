"""Products of activations, attention's among them."""

from __future__ import annotations

import math
from typing import Any, Final

from tadnn.nets.layers import MatMul, ScaledDotProduct
from tadnn.nets.tracing.constants import Const
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value
from tadnn.nets.tracing.rules.weighted import linear


def _matmul(lo: Lowering, call: Call) -> Value | None:
    first, second = call.args["self"], call.args.get("other", call.args.get("mat2"))
    a, b = lo.operand(first), lo.operand(second)
    if min(len(a.shape), len(b.shape)) < 2:
        return None
    if isinstance(b, Const) and len(b.shape) == 2:
        return linear(lo, lo.value(first), lo.tensor(b).t(), None)
    return product(lo, lo.value(first), lo.lazy(second))


def product(lo: Lowering, a: Value, b: Value) -> Value:
    """Return a matrix product; the second factor's transpose is part of it."""
    a, b = lo.unexpanded(a), lo.unexpanded(b)
    swapped = lo.permuted(b, [*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2])
    if b.dims != tuple(sorted(b.dims)) and swapped.dims == tuple(sorted(b.dims)):
        return lo.emit(MatMul(True), a, lo.source(b))
    return lo.emit(MatMul(), a, b)


def _einsum(lo: Lowering, call: Call) -> Value | None:
    """Return the product of two tensors that shares letters in any order."""
    equation = call.args["equation"].replace(" ", "")
    tensors = call.args["tensors"]
    if "." in equation or "->" not in equation or len(tensors) != 2:
        return None
    terms, out = equation.split("->")
    left, right = terms.split(",")
    if any(len(set(term)) != len(term) for term in (left, right, out)):
        return None
    if set(left) - set(right) - set(out) or set(right) - set(left) - set(out):
        return None  # a sum over one of the factors alone
    a, b = (lo.lazy(node) for node in tensors)
    sizes = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))
    shared = [x for x in left if x in right and x in out]
    summed = [x for x in left if x in right and x not in out]
    rows, columns = ([x for x in term if x not in shared + summed] for term in (left, right))
    k = [math.prod(sizes[x] for x in summed)]
    lead = [sizes[x] for x in shared]
    factors = []
    for value, term, own in ((a, left, rows), (b, right, columns)):
        ordered = lo.permuted(value, [term.index(x) for x in shared + own + summed])
        factors.append(lo.viewed(ordered, (*lead, *_joined(sizes, own), *k)))
    weight = lo.operand(tensors[1])
    if isinstance(weight, Const) and not shared and len(summed) == len(columns) == 1:
        tensor = lo.tensor(weight).permute([right.index(x) for x in columns + summed])
        made: Value | None = linear(lo, factors[0], tensor, None)
        assert made is not None
    else:
        made = lo.emit(MatMul(True), *factors)
    made = lo.viewed(made, tuple(sizes[x] for x in shared + rows + columns))
    have = shared + rows + columns
    return lo.permuted(made, [have.index(x) for x in out])


def _joined(sizes: dict[str, int], letters: list[str]) -> list[int]:
    """Return one size for some letters; minus stays, since it says that the batch is in."""
    signs = sum(sizes[x] < 0 for x in letters)
    whole = math.prod(abs(sizes[x]) for x in letters)
    return [-whole if signs else whole]


def _attention(lo: Lowering, call: Call) -> Value | None:
    if call.args["dropout_p"] != 0:
        return None
    inputs = [lo.value(call.args[name]) for name in ("query", "key", "value")]
    mask: Any = call.args["attn_mask"]
    if mask is not None:
        kept = lo.operand(mask)
        inputs.append(
            lo.stored(kept, repeated=False)
            if isinstance(kept, Const)
            else lo.unexpanded(lo.value(mask))
        )
    scale = call.args["scale"]
    heads, kv_heads = (each.shape[-3] if len(each.shape) > 3 else 1 for each in inputs[:2])
    # One head of keys for all of the queries' is what torch broadcasts, too.
    causal, shared = bool(call.args["is_causal"]), bool(call.args["enable_gqa"])
    shared = shared or (kv_heads == 1 and heads > 1)
    layer = ScaledDotProduct(None if scale is None else float(scale), causal, shared)
    return lo.emit(layer, *inputs)


TABLE: Final[dict[str, Rule]] = {
    "bmm": _matmul,
    "einsum": _einsum,
    "matmul": _matmul,
    "mm": _matmul,
    "scaled_dot_product_attention": _attention,
}
