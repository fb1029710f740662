"""Attention and products of activations as ONNX operators."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tadnn.nets import Layer, Shape, layers
from tadnn.runtimes.onnx_layers.weighted import linear
from tadnn.runtimes.onnx_writer import GraphWriter, Writer, reshape


def _attention(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    n, t, width = out
    heads, head, kv = layer.heads, layer.torch(*shapes).args[2], layer.torch(*shapes).args[3]
    query, key, value = _projected(g, layer, taken[0], out, (heads, head, kv))
    if kv != heads:
        shared = heads // kv
        sizes = (n, kv, shared, t, head)
        key, value = _repeated(g, key, sizes, "key"), _repeated(g, value, sizes, "value")
    mask = _causal(g, t, t) if layer.causal else ""
    mixed = _mixed(g, (query, key, value), (n, heads, t, head), mask, head**-0.5, "mixed")
    mixed = g.add("Transpose", [mixed], "tokens", perm=[0, 2, 1, 3])
    mixed = reshape(g, mixed, (n, t, heads * head), "rows")
    return linear(g, mixed, "out", 3, (width, heads * head), bias=True)


def _projected(
    g: GraphWriter, layer: Any, value: str, out: Shape, sizes: tuple[int, int, int]
) -> list[str]:
    """Return queries, keys and values, (n, heads, t, head width)."""
    (n, t, width), (heads, head, kv) = out, sizes
    total = heads + 2 * kv
    joint = linear(g, value, "qkv", 3, (total * head, width), layer.qkv_bias, "qkv")
    joint = reshape(g, joint, (n, t, total, head), "view")
    joint = g.add("Transpose", [joint], "heads", perm=[0, 2, 1, 3])
    return g.split(joint, ("query", "key", "value"), (heads, kv, kv), 1)


def _causal(g: GraphWriter, queries: int, keys: int) -> str:
    hidden = np.triu(np.full((queries, keys), np.finfo(np.float32).min, np.float32), 1)
    return g.constant(hidden, f"mask {queries} {keys}")


def _mixed(
    g: GraphWriter,
    values: tuple[str, str, str],
    keys: Shape,
    mask: str,
    scale: float,
    part: str,
) -> str:
    """Write softmax(q k^T scale + mask) v as the exporter does; ``keys`` are the keys' sizes."""
    query, key, value = values
    *lead, s, head = keys
    if math.prod(lead) == 1:  # the exporter's reshapes fold away
        order = [*range(len(lead)), len(lead) + 1, len(lead)]
        key = g.add("Transpose", [key], "key_transposed", perm=order)
    else:
        key = reshape(g, key, (-1, s, head), "key_rows")
        key = g.add("Transpose", [key], "key_transposed", perm=[0, 2, 1])
        key = reshape(g, key, (*lead, head, s), "key_columns")
    root = g.constant(np.full(1, scale**0.5), f"root of scale {scale}")
    query = g.add("Mul", [query, root], "query_scaled")
    key = g.add("Mul", [key, root], "key_scaled")
    scores = g.add("MatMul", [query, key], "scores")
    if mask:
        scores = g.add("Add", [scores, mask], "masked")
    weights = g.add("Softmax", [scores], "softmax", axis=-1)
    return g.add("MatMul", [weights, value], part)


def _repeated(g: GraphWriter, value: str, sizes: tuple[int, ...], part: str) -> str:
    """Write every head of keys or values as often as heads of queries share it."""
    *lead, kv, shared, t, head = sizes
    at = len(lead) + 1
    repeats = [*[1] * at, shared, 1, 1]
    wide = g.add("Unsqueeze", [value, g.numbers([at])], f"{part}_unsqueezed")
    wide = g.add("Expand", [wide, g.numbers(repeats)], f"{part}_expanded")
    return reshape(g, wide, (*lead, kv * shared, t, head), f"{part}_repeated")


def _cached(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    n, _, width = out
    _, heads, head, kv, context = layer.torch(*shapes).args
    query, *new = _projected(g, layer, taken[0], out, (heads, head, kv))
    grown = []
    for value, name in zip(new, ("keys", "values"), strict=True):
        kept = g.weight(name, (1, kv, context, head))
        if n > 1:
            kept = g.add("Expand", [kept, g.numbers([n, 1, 1, 1])], f"{name}_kept")
        grown.append(g.add("Concat", [kept, value], f"{name}_grown", axis=2))
    rows = reshape(g, query, (n, kv, heads // kv, head), "query_rows")
    sizes = (n, kv, context + 1, head)
    mixed = _mixed(g, (rows, grown[0], grown[1]), sizes, "", head**-0.5, "mixed")
    mixed = reshape(g, mixed, (n, 1, heads * head), "rows")
    return linear(g, mixed, "out", 3, (width, heads * head), bias=True)


def _scaled(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    query, key, value = taken[:3]
    (*_, heads, t, head), (*lead, kv, s, _), (*_, width) = shapes[:3]
    if kv not in (1, heads):  # products repeat a single one by themselves
        sizes = (heads // kv, s)
        key = _repeated(g, key, (*lead, kv, *sizes, head), "key")
        value = _repeated(g, value, (*lead, kv, *sizes, width), "value")
        kv = heads
    mask = taken[3] if len(taken) == 4 else ""
    if mask and g.kind_of(mask) == "bool":
        seen = [mask, g.constant(0.0), g.constant(float(np.finfo(np.float32).min))]
        mask = g.add("Where", seen, "mask")
    if layer.causal:
        mask = _causal(g, t, s)
    scale = head**-0.5 if layer.scale is None else layer.scale
    return _mixed(g, (query, key, value), (*lead, kv, s, head), mask, scale, "")


def _matmul(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    first, second = taken
    if layer.transposed:
        rank = len(shapes[1])
        order = [*range(rank - 2), rank - 1, rank - 2]
        second = g.add("Transpose", [second], "transposed", perm=order)
    return g.add("MatMul", [first, second])


TABLE: Final[dict[type[Layer], Writer]] = {
    layers.Attention: _attention,
    layers.CachedAttention: _cached,
    layers.MatMul: _matmul,
    layers.ScaledDotProduct: _scaled,
}
