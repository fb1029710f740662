"""Which widths of a network may change, and which change together.

The network is walked through once; every layer says what becomes of the channels that enter it.
A layer without a rule keeps the widths around it as they are: less freedom, never a wrong network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tadnn.nets import Net
from tadnn.nets.blocks import INPUT
from tadnn.tail.axes import Axes, LayerAt, Segment, Tie, Ties, fixed
from tadnn.tail.rules import RULES
from tadnn.tail.visit import Visit, keep


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


def follow(net: Net) -> Flow:
    """Walk through a network and return its groups of tied widths."""
    ties = Ties()
    inputs: dict[LayerAt, tuple[Axes, ...]] = {}
    outputs: dict[LayerAt, Axes] = {}
    axes: Axes = tuple(fixed(size) for size in (1, *net.input_shape))
    for b, (block_name, block, _, facts) in enumerate(net.chain()):
        values: dict[int, Axes] = {INPUT: axes}
        for i, node in enumerate(block.nodes):
            entering = tuple(values[j] for j in node.inputs)
            name = f"{block_name}.{node.name}"
            shapes, output = facts.inputs[i], facts.outputs[i]
            visit = Visit((b, i), name, node.layer, entering, shapes, output)
            inputs[b, i] = entering
            values[i] = outputs[b, i] = RULES.get(type(node.layer), keep)(ties, visit)
        axes = values[len(block.nodes) - 1]
    for axis in axes:
        ties.freeze(axis, "it is the network's output")
    for root in ties.roots():
        if not ties.of(root).made:
            ties.of(root).frozen = "no layer makes it"
    roots = [root for root in ties.roots() if ties.of(root).made]
    index = {root: i for i, root in enumerate(roots)}

    def named(axes: Axes) -> Axes:
        return tuple(
            tuple(
                Segment(index.get(ties.root(s.group)), s.size, s.inner)
                if s.group is not None
                else s
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
