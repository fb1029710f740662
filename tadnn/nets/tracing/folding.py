"""Several layers that together are one of the vocabulary: self-attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tadnn.nets.layers import (
    Attention,
    Layer,
    Linear,
    Permute,
    Reshape,
    ScaledDotProduct,
    Select,
)
from tadnn.nets.tracing.lowering import Item

_HEADS = (0, 2, 1, 3)  # (n, t, heads, d) to (n, heads, t, d), and back


def folded(items: Sequence[Item], output: int) -> list[Item]:
    """Return the items with self-attention as one layer where it is exactly ``Attention``.

    One projection to queries, keys and values, heads apart, scaled products, heads together,
    and a projection with a bias back to the input's width. Whatever else stands between
    (a normalisation of queries, rotations, a mask) leaves the layers as they are.
    """
    made = list(items)
    uses = Counter(ref for item in items for ref in item.inputs)
    uses[output] += 1
    by_input = {ref: i for i, item in enumerate(items) for ref in item.inputs}
    for i, item in enumerate(items):
        if isinstance(item.layer, ScaledDotProduct) and len(item.inputs) == 3:
            found = _projections(items, uses, by_input, i)
            if found is not None:
                first, last = found
                made[last] = _attention(items, i, first, last)
    return made


def _projections(
    items: Sequence[Item], uses: Counter[int], by_input: dict[int, int], i: int
) -> tuple[int, int] | None:
    """Return the two projections around scaled products; None where they aren't ``Attention``."""
    product, sources = items[i].layer, []
    assert isinstance(product, ScaledDotProduct)
    if len(items[i].shape) != 4:
        return None
    _, heads, tokens, width = items[i].shape
    if product.shared or product.scale not in (None, width**-0.5):
        return None
    for index, ref in enumerate(items[i].inputs):
        part = _only(items, uses, ref, Permute(_HEADS))
        apart = None if part is None else _only(items, uses, part, Select(2, index))
        if apart is None:
            return None
        sources.append(apart)
    (apart, *rest) = sources
    shape = (tokens, 3, heads, width)
    if rest != [apart, apart] or uses[apart] != 3 or items[apart].layer != Reshape(shape):
        return None
    (first,) = items[apart].inputs
    last = i
    for layer in (Permute(_HEADS), Reshape((tokens, heads * width))):
        if uses[last] != 1 or last not in by_input or items[by_input[last]].layer != layer:
            return None
        last = by_input[last]
    if uses[last] != 1 or last not in by_input or first < 0 or uses[first] != 1:
        return None
    last = by_input[last]
    qkv, out = items[first].layer, items[last].layer
    fits = isinstance(qkv, Linear) and isinstance(out, Linear) and out.bias
    before = items[first].inputs[0]
    if not fits or before < 0 or items[before].shape != items[last].shape:
        return None
    return first, last


def _only(items: Sequence[Item], uses: Counter[int], ref: int, layer: Layer) -> int | None:
    """Return the input of an item that is this layer and has one user; else None."""
    if ref < 0 or uses[ref] != 1 or items[ref].layer != layer:
        return None
    return items[ref].inputs[0]


def _attention(items: Sequence[Item], i: int, first: int, last: int) -> Item:
    product, qkv = items[i].layer, items[first]
    assert isinstance(product, ScaledDotProduct)
    assert isinstance(qkv.layer, Linear)
    _, heads, _, width = items[i].shape
    own = None if heads * width == items[last].shape[2] else width
    layer = Attention(heads, own, None, product.causal, qkv.layer.bias)
    weights = {f"qkv.{name}": tensor for name, tensor in qkv.weights.items()}
    weights |= {f"out.{name}": tensor for name, tensor in items[last].weights.items()}
    origin = items[i].origin
    return Item(layer, qkv.inputs, weights, origin, items[last].shape, "attention")
