"""What becomes of channels that enter a layer, by the class of layer.

Adding a rule is adding one function and one entry to ``RULES``.
"""

from __future__ import annotations

from typing import Final

from tadnn.nets import Layer
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
from tadnn.tail.axes import Axes, Axis, Segment, Tie, Ties, fixed
from tadnn.tail.rules_moving import (
    mean_of_images,
    mean_of_tokens,
    moved,
    permuted,
    reduced,
    reshaped,
    selected,
    token,
)
from tadnn.tail.visit import Rule, Visit, fixed_axes


def _new(ties: Ties, visit: Visit, width: int, field: str, grain: int = 1) -> Axis:
    """Return the channels that a layer makes."""
    tie = Tie(visit.name, width, grain, False, "", ((visit.at, field),))
    return (Segment(ties.add(tie), width),)


def _same(ties: Ties, visit: Visit) -> Axes:
    """Every entry by itself."""
    return visit.axes[0]


def _images(ties: Ties, visit: Visit) -> Axes:
    """Channels stay, rows and columns change: pooling, upsampling, a depthwise convolution."""
    batch, channels, *_ = visit.axes[0]
    return (batch, channels, *fixed_axes(visit.output[2:]))


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
    rest = fixed_axes(visit.output[2:])
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
        return fixed_axes(visit.output)
    first = int(layer.per_input)
    made = [
        fixed(1)
        if size == 1
        else (Segment(ties.add(Tie(visit.name, size, 1, False, "", (), made=False)), size),)
        for size in layer.shape[first:]
    ]
    return (*fixed_axes(visit.output[:first]), *made)


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
    **dict.fromkeys((Flatten, Reshape, View), reshaped),
    **dict.fromkeys((Gather, Pad, Roll, Slice), moved),
    Attention: _attention,
    ClassToken: token,
    Concat: _concat,
    Embedding: _embedding,
    GlobalAvgPool: mean_of_images,
    GroupNorm: _group_norm,
    Linear: _linear,
    Permute: permuted,
    Reduce: reduced,
    Select: selected,
    Softmax: _softmax,
    Stored: _stored,
    TokenMean: mean_of_tokens,
}
"""What becomes of channels, by the class of layer."""
