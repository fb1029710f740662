"""What becomes of channels that enter a layer, by the class of layer.

Adding a rule is adding one function and one entry to ``RULES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tadnn.nets import Layer, Shape
from tadnn.nets.layers import (
    GELU,
    AdaptiveAvgPool2d,
    Add,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    Binary,
    ClassToken,
    Concat,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    DepthwiseConv2d,
    Dropout,
    Embedding,
    Flatten,
    Gather,
    GlobalAvgPool,
    GroupNorm,
    HardSigmoid,
    HardSwish,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool2d,
    Mul,
    Pad,
    Permute,
    Pointwise,
    PositionEmbedding,
    PReLU,
    Reduce,
    ReLU,
    ReLU6,
    Reshape,
    Resize,
    RMSNorm,
    Roll,
    Select,
    Sigmoid,
    SiLU,
    Slice,
    Softmax,
    Stored,
    Tanh,
    TokenMean,
    Upsample,
    View,
)
from tadnn.tail.axes import Axes, Axis, LayerAt, Segment, Tie, Ties, fixed, is_fixed


@dataclass(frozen=True)
class Visit:
    """A layer while the network is walked through, with what enters and leaves it.

    Attributes:
        at: where it stands.
        name: ``block.node``.
        layer: the layer.
        axes: of its inputs.
        inputs: shapes of its inputs.
        output: shape of its output.
    """

    at: LayerAt
    name: str
    layer: Layer
    axes: tuple[Axes, ...]
    inputs: tuple[Shape, ...]
    output: Shape


Rule = Callable[[Ties, Visit], Axes]


def _new(ties: Ties, visit: Visit, width: int, field: str, grain: int = 1) -> Axis:
    """Return the channels that a layer makes."""
    tie = Tie(visit.name, width, grain, False, "", ((visit.at, field),))
    return (Segment(ties.add(tie), width),)


def keep(ties: Ties, visit: Visit) -> Axes:
    """Freeze what enters a layer that isn't understood; nothing that leaves it can change."""
    for axes in visit.axes:
        for axis in axes:
            ties.freeze(axis, f"{visit.name} ({type(visit.layer).__name__}) needs it as it is")
    return _fixed(visit.output)


def _fixed(shape: Shape) -> Axes:
    return tuple(fixed(size) for size in shape)


def _same(ties: Ties, visit: Visit) -> Axes:
    """Every entry by itself."""
    return visit.axes[0]


def _images(ties: Ties, visit: Visit) -> Axes:
    """Channels stay, rows and columns change: pooling, upsampling, a depthwise convolution."""
    batch, channels, *_ = visit.axes[0]
    return (batch, channels, *_fixed(visit.output[2:]))


def _normed_last(ties: Ties, visit: Visit) -> Axes:
    dims = visit.layer.dims if isinstance(visit.layer, LayerNorm) else 1
    for axis in visit.axes[0][-dims:]:
        ties.norm(axis)
    return visit.axes[0]


def _group_norm(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, GroupNorm)
    channels = visit.axes[0][1]
    ties.norm(channels)
    ties.grain(channels, visit.layer.groups, f"{visit.name} normalises parts of it")
    return visit.axes[0]


def _softmax(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Softmax)
    ties.norm(visit.axes[0][visit.layer.dim])
    return visit.axes[0]


def _convolution(ties: Ties, visit: Visit) -> Axes:
    layer = visit.layer
    assert isinstance(layer, (Conv1d, Conv2d, ConvTranspose2d))
    batch, channels = visit.axes[0][:2]
    rest = _fixed(visit.output[2:])
    if layer.groups == 1:
        return (batch, _new(ties, visit, layer.out, "out"), *rest)
    if layer.groups == visit.inputs[0][1] == layer.out:
        # Depthwise: as many groups as channels, whatever their number.
        if len(channels) == 1 and channels[0].group is not None and channels[0].inner == 1:
            tie = ties.of(channels[0].group)
            tie.setters += ((visit.at, "groups"), (visit.at, "out"))
        else:
            ties.freeze(channels, f"{visit.name} convolves each of it")
        return (batch, channels, *rest)
    ties.grain(channels, layer.groups, f"{visit.name} convolves parts of it")
    return (batch, _new(ties, visit, layer.out, "out", layer.groups), *rest)


def _linear(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Linear)
    return (*visit.axes[0][:-1], _new(ties, visit, visit.layer.out, "out"))


def _embedding(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Embedding)
    return (*visit.axes[0], _new(ties, visit, visit.layer.width, "width"))


def _attention(ties: Ties, visit: Visit) -> Axes:
    """The width stays its input's; heads are a group of their own, seen by nobody else."""
    layer = visit.layer
    assert isinstance(layer, Attention)
    if layer.head_width is None:
        # A head's width would follow the tokens'.
        ties.freeze(visit.axes[0][-1], f"{visit.name} cuts it into heads")
    _new(ties, visit, layer.heads, "heads", layer.kv_heads or 1)
    return visit.axes[0]


def _stored(ties: Ties, visit: Visit) -> Axes:
    """What is stored follows the channels that it meets, if it meets any."""
    layer = visit.layer
    assert isinstance(layer, Stored)
    if layer.kind != "float":
        return _fixed(visit.output)
    first = int(layer.per_input)
    made = [
        fixed(1)
        if size == 1
        else (Segment(ties.add(Tie(visit.name, size, 1, False, "", (), made=False)), size),)
        for size in layer.shape[first:]
    ]
    return (*_fixed(visit.output[:first]), *made)


def _tied(ties: Ties, visit: Visit) -> Axes:
    """Entry by entry of several tensors; dimensions of size 1 are broadcast."""
    rank = len(visit.output)
    leaving: list[Axis | None] = [None] * rank
    for axes, shape in zip(visit.axes, visit.inputs, strict=True):
        for k in range(1, len(axes) + 1):
            axis, held = axes[-k], leaving[-k]
            if shape[-k] == 1 and visit.output[-k] != 1:
                ties.freeze(axis, f"{visit.name} repeats it")
            elif held is None:
                leaving[-k] = axis
            else:
                leaving[-k] = ties.tie(held, axis, f"{visit.name} pairs it with sizes that stay")
    pairs = zip(leaving, visit.output, strict=True)
    return tuple(axis if axis is not None else fixed(size) for axis, size in pairs)


def _concat(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Concat)
    dim = visit.layer.dim % len(visit.output)
    leaving = list(visit.axes[0])
    for axes in visit.axes[1:]:
        for k, axis in enumerate(axes):
            if k == dim:
                leaving[k] += axis
            else:
                leaving[k] = ties.tie(leaving[k], axis, f"{visit.name} sets it beside others")
    return tuple(leaving)


def _token(ties: Ties, visit: Visit) -> Axes:
    batch, tokens, width = visit.axes[0]
    ties.freeze(tokens, f"{visit.name} adds one")
    return (batch, fixed(visit.output[1]), width)


def _mean_of_images(ties: Ties, visit: Visit) -> Axes:
    """(n, c, h, w) -> (n, c) or (n, c, 1, 1)."""
    return (*visit.axes[0][:2], *_fixed(visit.output[2:]))


def _mean_of_tokens(ties: Ties, visit: Visit) -> Axes:
    """(n, t, d) -> (n, d)."""
    batch, tokens, width = visit.axes[0]
    ties.norm(tokens)
    return (batch, width)


def _reduced(ties: Ties, visit: Visit) -> Axes:
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


def _permute(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Permute)
    return tuple(visit.axes[0][dim] for dim in visit.layer.dims)


def _select(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Select)
    dim = visit.layer.dim % len(visit.inputs[0])
    ties.freeze(visit.axes[0][dim], f"{visit.name} takes one of it")
    return (*visit.axes[0][:dim], *visit.axes[0][dim + 1 :])


def _moved(ties: Ties, visit: Visit) -> Axes:
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


def _reshape(ties: Ties, visit: Visit) -> Axes:
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


RULES: Final[dict[type[Layer], Rule]] = {
    **dict.fromkeys(
        (
            *(BatchNorm2d, Dropout, GELU, HardSigmoid, HardSwish, Identity, LeakyReLU, Pointwise),
            *(PReLU, PositionEmbedding, ReLU, ReLU6, SiLU, Sigmoid, Tanh),
        ),
        _same,
    ),
    **dict.fromkeys(
        (AvgPool2d, AdaptiveAvgPool2d, DepthwiseConv2d, MaxPool2d, Resize, Upsample), _images
    ),
    **dict.fromkeys((LayerNorm, RMSNorm), _normed_last),
    **dict.fromkeys((Conv1d, Conv2d, ConvTranspose2d), _convolution),
    **dict.fromkeys((Add, Binary, Mul), _tied),
    **dict.fromkeys((Flatten, Reshape, View), _reshape),
    **dict.fromkeys((Gather, Pad, Roll, Slice), _moved),
    Attention: _attention,
    ClassToken: _token,
    Concat: _concat,
    Embedding: _embedding,
    GlobalAvgPool: _mean_of_images,
    GroupNorm: _group_norm,
    Linear: _linear,
    Permute: _permute,
    Reduce: _reduced,
    Select: _select,
    Softmax: _softmax,
    Stored: _stored,
    TokenMean: _mean_of_tokens,
}
"""What becomes of channels, by the class of layer."""
