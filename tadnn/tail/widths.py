"""A network with other widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tadnn.errors import RequestError
from tadnn.nets import Block, Layer, Net, Node, Shape
from tadnn.nets.layers import Attention, Reshape, Stored, View
from tadnn.tail.axes import Axis, LayerAt
from tadnn.tail.flow import Flow


def with_widths(flow: Flow, widths: Mapping[int, int]) -> Net:
    """Return the network with the widths of some groups changed.

    Args:
        flow: the network's groups.
        widths: the new width by the group's index; what is absent stays.

    Raises:
        RequestError: a group is frozen, or a width isn't a multiple of the group's grain.
    """
    changes = {}
    for index, width in widths.items():
        group = flow.groups[index]
        if width == group.width:
            continue
        if group.frozen:
            raise RequestError(
                f"the width of {group.name} stays {group.width}: {group.frozen}; got {width}"
            )
        if width < 1 or width % group.grain:
            raise RequestError(
                f"the width of {group.name} is a positive multiple of {group.grain}; got {width}"
            )
        changes[index] = width - group.width
    if not changes:
        return flow.net
    blocks = []
    for b, (name, block) in enumerate(flow.net.blocks):
        nodes = []
        for i, node in enumerate(block.nodes):
            layer = changed_layer(flow, (b, i), changes)
            nodes.append(node if layer is node.layer else Node(node.name, layer, node.inputs))
        same = all(new is old for new, old in zip(nodes, block.nodes, strict=True))
        blocks.append((name, block if same else Block(block.label, tuple(nodes))))
    return Net(flow.net.input_shape, tuple(blocks))


def changed_layer(flow: Flow, at: LayerAt, changes: Mapping[int, int]) -> Layer:
    """Return a layer after changes of widths (new minus present, by group)."""
    block, node = at
    layer = flow.net.blocks[block][1].nodes[node].layer
    fields: dict[str, Any] = {
        field: flow.groups[group].width + changes[group]
        for field, group in flow.fields.get(at, ())
        if changes.get(group)
    }
    if isinstance(layer, Attention) and fields and layer.head_width is None:
        # The width of a head would follow the number of heads.
        tokens = axis_length(flow.inputs[at][0][-1], [g.width for g in flow.groups])
        fields["head_width"] = tokens // layer.heads
    if isinstance(layer, (Reshape, Stored, View)):
        leaving = flow.outputs[at]
        if any(changes.get(s.group) for axis in leaving for s in axis if s.group is not None):
            widths = [group.width + changes.get(i, 0) for i, group in enumerate(flow.groups)]
            sizes = tuple(axis_length(axis, widths) for axis in leaving)
            fields["shape"] = _shape_field(layer, sizes)
    return replace(layer, **fields) if fields else layer  # type: ignore[type-var]


def _shape_field(layer: Reshape | Stored | View, sizes: Shape) -> Shape:
    """Return the field ``shape`` that gives these sizes at batch 1."""
    match layer:
        case Reshape():
            return sizes[1:]
        case View():
            return tuple(
                -1 if known == -1 else size for known, size in zip(layer.shape, sizes, strict=True)
            )
        case Stored(per_input=True):
            return (layer.shape[0], *sizes[1:])
    return sizes


def axis_length(axis: Axis, widths: Sequence[int]) -> int:
    """Return the number of entries of a dimension under other widths."""
    return sum((s.size if s.group is None else widths[s.group]) * s.inner for s in axis)
