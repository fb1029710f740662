"""A traced graph as a chain of named blocks.

The chain is cut where exactly one tensor is alive, and the batch is its first dimension.
What follows a convolution, such as its normalisation and activation, stays in its block, so
that runtimes may fuse them; blocks of one shape come out equal, whatever their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor

from tadnn.errors import ShapeError
from tadnn.nets import layers as vocabulary
from tadnn.nets.blocks import INPUT, Block, Node, check_name
from tadnn.nets.layers import Layer, Shape, Stored
from tadnn.nets.net import Net
from tadnn.nets.tracing.lowering import ANY, Item

# What begins a block; all else joins what is before it.
_STARTS: tuple[type[Layer], ...] = (
    vocabulary.Attention,
    vocabulary.AdaptiveAvgPool2d,
    vocabulary.Conv1d,
    vocabulary.Conv2d,
    vocabulary.ConvTranspose2d,
    vocabulary.DepthwiseConv2d,
    vocabulary.Embedding,
    vocabulary.GlobalAvgPool,
    vocabulary.GroupNorm,
    vocabulary.LayerNorm,
    vocabulary.Linear,
    vocabulary.MatMul,
    vocabulary.Pad,  # with the convolution that it is the padding of
    vocabulary.Reduce,
    vocabulary.RMSNorm,
    vocabulary.TokenMean,
)


def net_of(items: Sequence[Item], output: int, input_shape: Shape) -> tuple[Net, dict[str, Tensor]]:
    """Return the network of some items and its weights by their names.

    Raises:
        ShapeError: no chain of blocks computes this.
    """
    ordered = _in_order(items, output)
    place = {old: new for new, old in enumerate(ordered)} | {INPUT: INPUT, ANY: ANY}
    chosen = [
        Item(i.layer, tuple(place[r] for r in i.inputs), i.weights, i.origin, i.shape, i.name)
        for i in (items[old] for old in ordered)
    ]
    blocks: list[tuple[str, Block]] = []
    weights: dict[str, Tensor] = {}
    taken: set[str] = set()
    for start, end in _segments(chosen):
        part = chosen[start:end]
        path, kind = _around(part)
        name = _free(path or part[0].origin.path or part[0].name, taken)
        nodes = _nodes(part, start, path)
        blocks.append((name, Block(_spelt(kind), tuple(nodes))))
        for node, item in zip(nodes, part, strict=True):
            weights |= {f"{name}.{node.name}.{key}": t for key, t in item.weights.items()}
    return Net.checked(input_shape, tuple(blocks)), weights


def _used(items: Sequence[Item], output: int) -> Iterator[int]:
    """Yield, in order, the items that the output depends on."""
    needed = {output}
    for i in range(len(items) - 1, -1, -1):
        if i in needed:
            needed.update(items[i].inputs)
    yield from (i for i in range(len(items)) if i in needed)


def _in_order(items: Sequence[Item], output: int) -> list[int]:
    """Return the items needed: what is stored right before its first use, the output last."""
    ordered: list[int] = []
    placed: set[int] = set()
    for i in _used(items, output):
        if isinstance(items[i].layer, Stored):
            continue
        for ref in items[i].inputs:
            if ref >= 0 and ref not in placed and isinstance(items[ref].layer, Stored):
                ordered.append(ref)
                placed.add(ref)
        ordered.append(i)
        placed.add(i)
    ordered.remove(output)
    return [*ordered, output]


def _segments(items: Sequence[Item]) -> Iterator[tuple[int, int]]:
    """Yield where blocks begin and end."""
    last_use = {ref: i for i, item in enumerate(items) for ref in item.inputs}
    uses: dict[int, int] = {}
    for item in items:
        for ref in item.inputs:
            uses[ref] = uses.get(ref, 0) + 1
    start, farthest = 0, last_use.get(INPUT, 0)
    for i, item in enumerate(items[:-1]):
        # Whatever is still used after this item, other than its own output, stays alive.
        alone = farthest <= i and item.shape[0] == -1
        if alone and (uses.get(i, 0) > 1 or _begins(items, i)):
            yield start, i + 1
            start = i + 1
        farthest = max(farthest, last_use.get(i, i))
    yield start, len(items)


def _begins(items: Sequence[Item], i: int) -> bool:
    """Tell whether what takes item i's output begins a block."""
    if isinstance(items[i].layer, vocabulary.Pad):
        return False
    if isinstance(items[i + 1].layer, Stored):
        following = next(
            (x for x in items[i + 1 :] if not isinstance(x.layer, Stored)), items[i + 1]
        )
        return isinstance(following.layer, _STARTS)
    return isinstance(items[i + 1].layer, _STARTS)


def _around(part: Sequence[Item]) -> tuple[str, str]:
    """Return the name of the innermost submodule that holds a whole block, and its class."""
    stacks = [
        list(zip(item.origin.stack, item.origin.kinds, strict=True))
        for item in part
        if item.origin.kinds
    ]
    if not stacks:
        return "", "block"
    common = stacks[0]
    for stack in stacks[1:]:
        common = [a for a, b in zip(common, stack, strict=False) if a == b]
    return common[-1] if common else ("", stacks[0][0][1])


def _nodes(part: Sequence[Item], start: int, path: str) -> list[Node]:
    taken: set[str] = set()
    nodes = []
    for item in part:
        own = item.origin.path
        inside = own.removeprefix(path).lstrip(".") if own.startswith(path) else own
        # A layer that is a whole submodule has its name; what a forward computes itself, its kind.
        if not inside:
            inside = item.name
        elif not item.weights and item.name not in _SAME:
            inside = f"{inside}_{item.name}"
        refs = tuple(max(ref - start, INPUT) if ref >= 0 else INPUT for ref in item.inputs)
        nodes.append(Node(_free(inside, taken), item.layer, refs))
    return nodes


_SAME = frozenset({"relu", "gelu", "silu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"})


def _spelt(name: str) -> str:
    """Return a name as ``check_name`` allows it: ``InvertedResidual`` is ``inverted_residual``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    plain = re.sub(r"[^a-z0-9_]+", "_", words).strip("_") or "layer"
    if plain[0].isdigit():
        plain = f"layer{plain}"
    try:
        check_name(plain)
    except ShapeError:
        plain = f"{plain}_"
    return plain


def _free(name: str, taken: set[str]) -> str:
    """Return a name that nobody has, and take it."""
    spelt = _spelt(name)
    found, count = spelt, 1
    while found in taken:
        count += 1
        found = f"{spelt}_{count}"
    taken.add(found)
    return found
