"""What a network's widths are worth: parameters, FLOPs, or importance of channels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeVar

import numpy as np

from tadnn.nets import Shape
from tadnn.tail.axes import Axes, LayerAt
from tadnn.tail.cost import WideKernel, WidthCosts
from tadnn.tail.flow import Flow
from tadnn.tail.widths import axis_length, changed_layer

_Key = TypeVar("_Key")

CAPACITIES: Final = ("parameters", "flops", "importance")

Changes = Mapping[int, int]
"""New minus present width, by group; what is absent stays."""


class Capacity(ABC):
    """A sum of terms of one or two groups' widths; 0 at the present ones."""

    @abstractmethod
    def at(self, changes: Changes) -> float:
        """Return the gain of changes of widths."""

    @abstractmethod
    def scopes(self) -> list[tuple[int, ...]]:
        """Return the groups, one or two, that each term is of; ascending."""

    @abstractmethod
    def table(self, scope: tuple[int, ...], changes: Sequence[np.ndarray]) -> np.ndarray:
        """Return the term of a scope over combinations of changes, [k_1] or [k_1, k_2]."""


@dataclass(frozen=True)
class Quadratic(Capacity):
    """A quadratic function, which numbers of parameters and of FLOPs are.

    Attributes:
        slopes: gain per unit of a group's width.
        curves: gain per product of two groups' changes (the lower index first).
    """

    slopes: Mapping[int, float]
    curves: Mapping[tuple[int, int], float]

    def at(self, changes: Changes) -> float:
        """Return the gain of changes of widths."""
        gain = sum(slope * changes.get(group, 0) for group, slope in self.slopes.items())
        return gain + sum(
            curve * changes.get(a, 0) * changes.get(b, 0) for (a, b), curve in self.curves.items()
        )

    def scopes(self) -> list[tuple[int, ...]]:
        """Return the groups that each term is of."""
        single = {(group,) for group in self.slopes} | {(a,) for a, b in self.curves if a == b}
        return sorted(single | {pair for pair in self.curves if pair[0] != pair[1]})

    def table(self, scope: tuple[int, ...], changes: Sequence[np.ndarray]) -> np.ndarray:
        """Return the term of a scope over combinations of changes."""
        if len(scope) == 2:
            first, second = changes
            pairs: np.ndarray = self.curves[scope[0], scope[1]] * np.multiply.outer(first, second)
            return pairs
        (group,), (change,) = scope, changes
        curve = self.curves.get((group, group), 0.0)
        line: np.ndarray = self.slopes.get(group, 0.0) * change + curve * change**2
        return line


class Importance(Capacity):
    """The sum of the importance of the channels that are kept; new ones have none yet.

    Args:
        flow: the network's groups.
        scores: importance of every channel, by group.
    """

    def __init__(self, flow: Flow, scores: Mapping[int, np.ndarray]) -> None:
        self._width = [group.width for group in flow.groups]
        # Keeping the best w channels gains the sum of the w greatest scores.
        self._sums = {
            index: np.concatenate([[0.0], np.cumsum(np.sort(scores[index])[::-1])])
            for index in flow.free
        }

    def at(self, changes: Changes) -> float:
        """Return the gain of changes of widths."""
        return float(
            sum(self.table((g,), [np.array([change])])[0] for g, change in changes.items())
        )

    def scopes(self) -> list[tuple[int, ...]]:
        """Return every group by itself."""
        return [(group,) for group in sorted(self._sums)]

    def table(self, scope: tuple[int, ...], changes: Sequence[np.ndarray]) -> np.ndarray:
        """Return the term of a group over its changes."""
        (group,), (change,) = scope, changes
        sums, now = self._sums[group], self._width[group]
        gained: np.ndarray = sums[np.minimum(now + change, now)] - sums[now]
        return gained


def parameter_gain(flow: Flow) -> Quadratic:
    """Return the number of parameters that changes of widths add to a network."""
    terms = []
    for at, scope in _scopes(flow).items():

        def count(changes: Changes, at: LayerAt = at) -> int:
            layer = changed_layer(flow, at, changes)
            widths = [group.width + changes.get(i, 0) for i, group in enumerate(flow.groups)]
            shapes = (_shape(axes, widths) for axes in flow.inputs[at])
            return layer.parameters(*shapes)

        terms.append((scope, count))
    return _quadratic(flow, terms)


def flops_gain(costs: WidthCosts) -> Quadratic:
    """Return the FLOPs that changes of widths add to a network."""
    terms = []
    for wide in costs.kernels:

        def count(changes: Changes, wide: WideKernel = wide) -> int:
            return wide.count * wide.at(changes).flops

        terms.append((wide.groups, count))
    return _quadratic(costs.flow, terms)


def _quadratic(
    flow: Flow, terms: Sequence[tuple[tuple[int, ...], Callable[[Changes], int]]]
) -> Quadratic:
    """Return the sum of functions that are quadratic in the widths of their scopes."""
    slopes: dict[int, float] = {}
    curves: dict[tuple[int, int], float] = {}
    for scope, count in terms:
        still = count({})
        step = {group: flow.groups[group].grain for group in scope}
        alone = {}
        for group in scope:
            one, two = (count({group: k * step[group]}) - still for k in (1, 2))
            alone[group] = one
            curve = (two - 2 * one) / (2 * step[group] ** 2)
            _put(curves, (group, group), curve)
            _put(slopes, group, one / step[group] - curve * step[group])
        for a, b in combinations(sorted(scope), 2):
            both = count({a: step[a], b: step[b]}) - still - alone[a] - alone[b]
            _put(curves, (a, b), both / (step[a] * step[b]))
    return Quadratic(slopes, curves)


def _put(into: dict[_Key, float], key: _Key, value: float) -> None:
    if value:
        into[key] = into.get(key, 0.0) + value


def _scopes(flow: Flow) -> dict[LayerAt, tuple[int, ...]]:
    """Return the free groups that each layer's parameters may follow."""
    scopes = {}
    for at, entering in flow.inputs.items():
        named = {s.group for axes in entering for axis in axes for s in axis}
        named |= {group for _, group in flow.fields.get(at, ())}
        free = tuple(sorted(g for g in named if g is not None and not flow.groups[g].frozen))
        if free:
            scopes[at] = free
    return scopes


def _shape(axes: Axes, widths: Sequence[int]) -> Shape:
    return tuple(axis_length(axis, widths) for axis in axes)
