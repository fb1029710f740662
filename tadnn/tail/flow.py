"""Which widths of a network may change, and which change together.

The network is walked through once; every layer says what becomes of the channels that enter it.
A layer without a rule keeps the widths around it as they are: less freedom, never a wrong network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tadnn.nets import Layer, Net, Shape
from tadnn.nets.blocks import INPUT
from tadnn.nets.layers import (
    GELU,
    AdaptiveAvgPool2d,
    Add,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    ClassToken,
    Concat,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    DepthwiseConv2d,
    Dropout,
    Embedding,
    Flatten,
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
    Permute,
    PositionEmbedding,
    ReLU,
    ReLU6,
    Reshape,
    RMSNorm,
    Select,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    TokenMean,
    Upsample,
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


@dataclass(frozen=True)
class Group:
    """Widths that are one number.

    Attributes:
        name: of the first layer whose width it is, ``block.node``.
        width: channels, or heads.
        grain: every width is a multiple of it.
        normed: whether a layer computes statistics across its channels.
        frozen: why the width can't change; empty where it can.
        setters: the fields that hold the width.
    """

    name: str
    width: int
    grain: int
    normed: bool
    frozen: str
    setters: tuple[tuple[LayerAt, str], ...]


@dataclass(frozen=True)
class Flow:
    """A network's groups, and whose channels every tensor carries.

    Attributes:
        net: the network.
        groups: in the order of the network.
        inputs: the axes of every layer's inputs; segments name groups by their index.
        outputs: the axes of every layer's output.
        fields: the fields of layers that hold widths, with the group's index.
    """

    net: Net
    groups: tuple[Group, ...]
    inputs: Mapping[LayerAt, tuple[Axes, ...]]
    outputs: Mapping[LayerAt, Axes]
    fields: Mapping[LayerAt, tuple[tuple[str, int], ...]]

    @property
    def free(self) -> tuple[int, ...]:
        """The groups whose width may change, by index."""
        return tuple(i for i, group in enumerate(self.groups) if not group.frozen)


Rule = Callable[[Ties, Visit], Axes]


def follow(net: Net) -> Flow:
    """Walk through a network and return its groups of tied widths."""
    ties = Ties()
    inputs: dict[LayerAt, tuple[Axes, ...]] = {}
    outputs: dict[LayerAt, Axes] = {}
    axes: Axes = tuple(fixed(size) for size in net.input_shape)
    for b, (block_name, block, _, facts) in enumerate(net.chain()):
        values: dict[int, Axes] = {INPUT: axes}
        for i, node in enumerate(block.nodes):
            entering = tuple(values[j] for j in node.inputs)
            name = f"{block_name}.{node.name}"
            shapes, output = facts.inputs[i], facts.outputs[i]
            visit = Visit((b, i), name, node.layer, entering, shapes, output)
            inputs[b, i] = entering
            values[i] = outputs[b, i] = RULES.get(type(node.layer), _keep)(ties, visit)
        axes = values[len(block.nodes) - 1]
    for axis in axes:
        ties.freeze(axis, "it is the network's output")
    roots = ties.roots()
    index = {root: i for i, root in enumerate(roots)}

    def named(axes: Axes) -> Axes:
        return tuple(
            tuple(
                s if s.group is None else Segment(index[ties.root(s.group)], s.size, s.inner)
                for s in axis
            )
            for axis in axes
        )

    groups = tuple(_group(ties.of(root)) for root in roots)
    fields: dict[LayerAt, tuple[tuple[str, int], ...]] = {}
    for i, group in enumerate(groups):
        for at, name in group.setters:
            fields[at] = (*fields.get(at, ()), (name, i))
    return Flow(
        net,
        groups,
        {at: tuple(named(a) for a in entering) for at, entering in inputs.items()},
        {at: named(leaving) for at, leaving in outputs.items()},
        fields,
    )


def _group(tie: Tie) -> Group:
    return Group(tie.name, tie.width, tie.grain, tie.normed, tie.frozen, tie.setters)


def _new(ties: Ties, visit: Visit, width: int, field: str, grain: int = 1) -> Axis:
    """Return the channels that a layer makes."""
    tie = Tie(visit.name, width, grain, False, "", ((visit.at, field),))
    return (Segment(ties.add(tie), width),)


def _keep(ties: Ties, visit: Visit) -> Axes:
    """Freeze what enters a layer that isn't understood; nothing that leaves it can change."""
    for axes in visit.axes:
        for axis in axes:
            ties.freeze(axis, f"{visit.name} ({type(visit.layer).__name__}) needs it as it is")
    return tuple(fixed(size) for size in visit.output[1:])


def _same(ties: Ties, visit: Visit) -> Axes:
    """Every entry by itself."""
    return visit.axes[0]


def _images(ties: Ties, visit: Visit) -> Axes:
    """Channels stay, rows and columns change: pooling, upsampling, a depthwise convolution."""
    channels, *_ = visit.axes[0]
    return (channels, *(fixed(size) for size in visit.output[2:]))


def _normed_last(ties: Ties, visit: Visit) -> Axes:
    ties.norm(visit.axes[0][-1])
    return visit.axes[0]


def _group_norm(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, GroupNorm)
    channels = visit.axes[0][0]
    ties.norm(channels)
    ties.grain(channels, visit.layer.groups, f"{visit.name} normalises parts of it")
    return visit.axes[0]


def _softmax(ties: Ties, visit: Visit) -> Axes:
    for axis in visit.axes[0]:
        ties.norm(axis)
    return visit.axes[0]


def _convolution(ties: Ties, visit: Visit) -> Axes:
    layer = visit.layer
    assert isinstance(layer, (Conv1d, Conv2d, ConvTranspose2d))
    channels, rest = visit.axes[0][0], tuple(fixed(size) for size in visit.output[2:])
    if layer.groups == 1:
        return (_new(ties, visit, layer.out, "out"), *rest)
    why = f"{visit.name} convolves parts of it"
    if layer.groups == visit.inputs[0][1] == layer.out and len(channels) == 1:
        # Depthwise: as many groups as channels, whatever their number.
        segment = channels[0]
        if segment.group is None or segment.inner != 1:
            return (channels, *rest)
        ties.of(segment.group).setters += ((visit.at, "groups"), (visit.at, "out"))
        return (channels, *rest)
    ties.grain(channels, layer.groups, why)
    return (_new(ties, visit, layer.out, "out", layer.groups), *rest)


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


def _tied(ties: Ties, visit: Visit) -> Axes:
    """Entry by entry of several tensors; dimensions of size 1 are broadcast."""
    rank = len(visit.output) - 1
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
    sizes = visit.output[1:]
    return tuple(a if a is not None else fixed(s) for a, s in zip(leaving, sizes, strict=True))


def _concat(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Concat)
    dim = visit.layer.dim % len(visit.output) - 1
    leaving = list(visit.axes[0])
    for axes in visit.axes[1:]:
        for k, axis in enumerate(axes):
            if k == dim:
                leaving[k] += axis
            else:
                leaving[k] = ties.tie(leaving[k], axis, f"{visit.name} sets it beside others")
    return tuple(leaving)


def _token(ties: Ties, visit: Visit) -> Axes:
    return (fixed(visit.output[1]), visit.axes[0][1])


def _mean_of_rows(ties: Ties, visit: Visit) -> Axes:
    """(n, c, h, w) -> (n, c) or (n, c, 1, 1); (n, t, d) -> (n, d) is :func:`_mean_of_tokens`."""
    return (visit.axes[0][0], *(fixed(size) for size in visit.output[2:]))


def _mean_of_tokens(ties: Ties, visit: Visit) -> Axes:
    return (visit.axes[0][-1],)


def _permute(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Permute)
    return tuple(visit.axes[0][dim - 1] for dim in visit.layer.dims[1:])


def _select(ties: Ties, visit: Visit) -> Axes:
    assert isinstance(visit.layer, Select)
    dim = visit.layer.dim % len(visit.inputs[0]) - 1
    ties.freeze(visit.axes[0][dim], f"{visit.name} takes one of it")
    return (*visit.axes[0][:dim], *visit.axes[0][dim + 1 :])


def _reshape(ties: Ties, visit: Visit) -> Axes:
    """Runs of dimensions that hold the same values: one may be merged, none that varies split."""
    entering, old, new = visit.axes[0], visit.inputs[0][1:], visit.output[1:]
    why = f"{visit.name} cuts it up"
    leaving: list[Axis] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start, first, have, want = i, j, 1, 1
        while True:  # the shortest runs of equal products; sizes of 1 go with what precedes them
            if have == want and i > start and j > first:
                break
            if have <= want and i < len(old):
                have, i = have * old[i], i + 1
            elif j < len(new):
                want, j = want * new[j], j + 1
            else:
                break
        run, sizes = entering[start:i], new[first:j]
        leaving += _regrouped(ties, run, old[start:i], sizes, why)
    return tuple(leaving)


def _regrouped(ties: Ties, run: Axes, old: Shape, new: Shape, why: str) -> list[Axis]:
    whole = [k for k, size in enumerate(old) if size != 1]
    targets = [k for k, size in enumerate(new) if size != 1]
    leaving = [fixed(size) for size in new]
    if len(targets) == 1 and whole and all(is_fixed(run[k]) for k in whole[1:]):
        # Channels first, then what lies within one: each becomes that many entries.
        inner = 1
        for k in whole[1:]:
            inner *= old[k]
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
            *(BatchNorm2d, Dropout, GELU, HardSigmoid, HardSwish, Identity, LeakyReLU),
            *(PositionEmbedding, ReLU, ReLU6, SiLU, Sigmoid, Tanh),
        ),
        _same,
    ),
    **dict.fromkeys((AvgPool2d, AdaptiveAvgPool2d, DepthwiseConv2d, MaxPool2d, Upsample), _images),
    **dict.fromkeys((LayerNorm, RMSNorm), _normed_last),
    **dict.fromkeys((Conv1d, Conv2d, ConvTranspose2d), _convolution),
    **dict.fromkeys((Add, Mul), _tied),
    **dict.fromkeys((Flatten, Reshape), _reshape),
    Attention: _attention,
    ClassToken: _token,
    Concat: _concat,
    Embedding: _embedding,
    GlobalAvgPool: _mean_of_rows,
    GroupNorm: _group_norm,
    Linear: _linear,
    Permute: _permute,
    Select: _select,
    Softmax: _softmax,
    TokenMean: _mean_of_tokens,
}
"""What becomes of channels, by the class of layer."""
