"""What becomes of channels where dimensions are moved, merged, cut or summed up."""

from __future__ import annotations

import math

from tadnn.nets import Shape
from tadnn.nets.layers import Gather, Pad, Permute, Reduce, Roll, Select, Slice
from tadnn.tail.axes import Axes, Axis, Segment, Ties, fixed, is_fixed
from tadnn.tail.visit import Visit, fixed_axes, keep


def token(ties: Ties, visit: Visit) -> Axes:
    """One token is set before the others."""
    batch, tokens, width = visit.axes[0]
    ties.freeze(tokens, f"{visit.name} adds one")
    return (batch, fixed(visit.output[1]), width)


def mean_of_images(ties: Ties, visit: Visit) -> Axes:
    """(n, c, h, w) -> (n, c) or (n, c, 1, 1)."""
    return (*visit.axes[0][:2], *fixed_axes(visit.output[2:]))


def mean_of_tokens(ties: Ties, visit: Visit) -> Axes:
    """(n, t, d) -> (n, d)."""
    batch, tokens, width = visit.axes[0]
    ties.norm(tokens)
    return (batch, width)


def reduced(ties: Ties, visit: Visit) -> Axes:
    """Dimensions that are summed up are nobody's channels after."""
    layer = visit.layer
    assert isinstance(layer, Reduce)
    leaving = []
    for dim, axis in enumerate(visit.axes[0]):
        if dim not in layer.dims:
            leaving.append(axis)
            continue
        ties.norm(axis)
        if layer.keepdim:
            leaving.append(fixed(1))
    return tuple(leaving)


def permuted(ties: Ties, visit: Visit) -> Axes:
    """Dimensions change places."""
    assert isinstance(visit.layer, Permute)
    return tuple(visit.axes[0][dim] for dim in visit.layer.dims)


def selected(ties: Ties, visit: Visit) -> Axes:
    """One entry of a dimension is taken."""
    assert isinstance(visit.layer, Select)
    dim = visit.layer.dim % len(visit.inputs[0])
    ties.freeze(visit.axes[0][dim], f"{visit.name} takes one of it")
    return (*visit.axes[0][:dim], *visit.axes[0][dim + 1 :])


def moved(ties: Ties, visit: Visit) -> Axes:
    """Entries of some dimensions are moved, cut away or added; the others stay."""
    layer, axes = visit.layer, visit.axes[0]
    rank = len(axes)
    match layer:
        case Slice() | Gather():
            dims: tuple[int, ...] = (layer.dim,)
        case Roll():
            dims = layer.dims
        case Pad():
            pairs = zip(layer.pads[::2], layer.pads[1::2], strict=True)
            dims = tuple(rank - 1 - i for i, pair in enumerate(pairs) if any(pair))
        case _:
            return keep(ties, visit)
    for dim in dims:
        ties.freeze(axes[dim], f"{visit.name} takes parts of it or moves them")
    return tuple(
        fixed(size) if dim in dims else axis
        for dim, (axis, size) in enumerate(zip(axes, visit.output, strict=True))
    )


def reshaped(ties: Ties, visit: Visit) -> Axes:
    """Runs of dimensions that hold the same values: one may be merged, none that varies split."""
    entering, old, new = visit.axes[0], visit.inputs[0], visit.output
    why = f"{visit.name} cuts it up"
    leaving: list[Axis] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start, first, have, want = i, j, 1, 1
        while True:  # the shortest runs of equal products
            if have == want and i > start and j > first:
                break
            if have <= want and i < len(old):
                have, i = have * old[i], i + 1
            elif j < len(new):
                want, j = want * new[j], j + 1
            else:
                break
        leaving += _regrouped(ties, entering[start:i], old[start:i], new[first:j], why)
    return tuple(leaving)


def _regrouped(ties: Ties, run: Axes, old: Shape, new: Shape, why: str) -> list[Axis]:
    whole = [k for k, size in enumerate(old) if size != 1]
    targets = [k for k, size in enumerate(new) if size != 1]
    leaving = [fixed(size) for size in new]
    if len(targets) == 1 and whole and all(is_fixed(run[k]) for k in whole[1:]):
        # Channels first, then what lies within one: each becomes that many entries.
        inner = math.prod(old[k] for k in whole[1:])
        leaving[targets[0]] = tuple(
            Segment(s.group, s.size, s.inner * inner) for s in run[whole[0]]
        )
        return leaving
    for axis in run:
        ties.freeze(axis, why)
    return leaving
