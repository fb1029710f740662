"""A layer while a network is walked through, and what to do where nothing is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tadnn.nets import Layer, Shape
from tadnn.tail.axes import Axes, LayerAt, Ties, fixed


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


def keep(ties: Ties, visit: Visit) -> Axes:
    """Freeze what enters a layer that isn't understood; nothing that leaves it can change."""
    for axes in visit.axes:
        for axis in axes:
            ties.freeze(axis, f"{visit.name} ({type(visit.layer).__name__}) needs it as it is")
    return fixed_axes(visit.output)


def fixed_axes(shape: Shape) -> Axes:
    """Return dimensions that are nobody's channels."""
    return tuple(fixed(size) for size in shape)
