"""Architectures of a space moved onto the edges of their stairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from tadnn.errors import ShapeError, SpaceError, TraceError
from tadnn.kernels import Kernel
from tadnn.latency import BlockScorer, LatencyModel
from tadnn.nets import Block, Layer, Net, Shape
from tadnn.runtimes import find_runtime
from tadnn.spaces import Arch, Int, Space
from tadnn.tail.cost import Pricer
from tadnn.tail.stairs import efficient_widths

_REACH: Final = 2.0
"""How far a value may move: an edge lies within a vector block or a wave."""
_MOST_VALUES: Final = 16
"""How many values are looked at on either side."""
_ROUNDS: Final = 3
_REMEMBERED: Final = 200_000
# Fields of layers that follow a width, shapes of views and stored tensors among them.
_WIDTHS: Final = frozenset({"out", "groups", "width", "heads", "head_width", "kv_heads", "shape"})


class Snapper:
    """Moves the integer choices of an architecture that set widths to efficient values.

    Choices are visited in the order of the space, each in the context of the others. One whose
    value isn't efficient moves to the nearer of two: the efficient value below, or the least
    efficient one above that is no slower than the present value by more than the deviation of
    the difference, which is free. That is repeated until nothing moves, a few times at most.
    Deterministic; a choice is a width if changing it changes nothing but widths of the network.

    Args:
        space: the architectures' space.
        model: the latency model.
        batch: the batch size.
        input_shape: of the networks; the space's default when None.
        classes: outputs; the space's default when None.
    """

    def __init__(
        self,
        space: Space,
        model: LatencyModel,
        batch: int = 1,
        input_shape: Shape | None = None,
        classes: int | None = None,
    ) -> None:
        self._space, self._model, self._batch = space, model, batch
        self._input, self._classes = input_shape, classes
        self._pricer, self._scorer = Pricer(model), BlockScorer(model, batch)
        self._runtime = find_runtime(model.setting.runtime)
        self._deviations: dict[tuple[Kernel, Kernel], float] = {}

    def snap(self, arch: Mapping[str, Any], keep: Collection[str] = ()) -> Arch:
        """Return the architecture with its widths on edges.

        Args:
            arch: a point of the space.
            keep: choices that stay as they are.
        """
        now = self._space.canonical(arch)
        for _ in range(_ROUNDS):
            before = dict(now)
            for name, value in before.items():
                choice = self._space.choices[name]
                if isinstance(choice, Int) and name not in keep:
                    now[name] = self._snapped(now, name, choice, value)
            if now == before:
                break
        return now

    def _snapped(self, arch: Arch, name: str, choice: Int, value: int) -> int:
        present = self._build(arch)
        if present is None:
            return value
        values, nets = [], []
        for other in _around(choice, value):
            net = present if other == value else self._changed(arch, name, other)
            if net is not None and (other == value or _differ_in_widths(present, net)):
                values.append(other)
                nets.append(net)
        if len(values) < 2:
            return value
        latency = 1e3 * self._scorer.latency_ms(nets)
        std = np.zeros(len(values))
        for i, (narrow, wide) in enumerate(itertools.pairwise(nets)):
            std[i] = self._deviation_us(narrow, wide)
        efficient = efficient_widths(latency, std)
        if values[-1] < min(choice.high, _REACH * value):
            efficient[-1] = False  # there are wider ones, which weren't looked at
        at = values.index(value)
        if efficient[at]:
            return value
        edges = np.nonzero(efficient)[0]
        free = latency[at] + std[at]
        targets = [values[i] for i in edges[edges < at][-1:]]
        targets += [values[i] for i in edges[edges > at][:1] if latency[i] <= free]
        # Of two as near as each other, the wider one.
        return min(targets, key=lambda other: (abs(other - value), -other), default=value)

    def _build(self, arch: Arch) -> Net | None:
        """Return an architecture's network; None where it can't be built."""
        try:
            return self._space.build(arch, self._input, self._classes)
        except (ShapeError, SpaceError, TraceError):
            return None  # if it is evaluated, its trial fails and says why

    def _changed(self, arch: Arch, name: str, value: int) -> Net | None:
        """Return the network with another value; None where other choices get an effect by it."""
        values = {**arch, name: value}
        active = [n for n in self._space.choices if self._space.active(values, n)]
        return self._build(values) if active == list(arch) else None

    def _deviation_us(self, narrow: Net, wide: Net) -> float:
        """Return the deviation of the difference between two networks of one structure."""
        counts: dict[tuple[Kernel, Kernel], int] = {}
        dtype = self._model.setting.dtype
        for (_, a, a_shape, _), (_, b, b_shape, _) in zip(
            narrow.chain(self._batch), wide.chain(self._batch), strict=True
        ):
            if a is b and a_shape == b_shape:
                continue
            ours = self._runtime.lower(a, a_shape, dtype)
            theirs = self._runtime.lower(b, b_shape, dtype)
            # A runtime may launch other kernels for other widths; then nothing pairs up.
            for pair in zip(ours, theirs, strict=False):
                if pair[0] != pair[1] and pair[0].op == pair[1].op:
                    counts[pair] = counts.get(pair, 0) + 1
        if len(self._deviations) > _REMEMBERED:
            self._deviations = {}
        self._remember([pair for pair in counts if pair not in self._deviations])
        return math.sqrt(sum((n * self._deviations[pair]) ** 2 for pair, n in counts.items()))

    def _remember(self, pairs: Sequence[tuple[Kernel, Kernel]]) -> None:
        if pairs:
            found = self._pricer.difference_us(pairs).tolist()
            self._deviations.update(zip(pairs, found, strict=True))


def _around(choice: Int, value: int) -> list[int]:
    """Return the values within reach, ascending; the nearest where they are many."""
    least, most = math.ceil(value / _REACH), math.floor(value * _REACH)
    within = [v for v in range(choice.low, choice.high + 1, choice.step) if least <= v <= most]
    below = [v for v in within if v < value][-_MOST_VALUES:]
    above = [v for v in within if v > value][:_MOST_VALUES]
    return [*below, value, *above]


def _differ_in_widths(one: Net, other: Net) -> bool:
    """Whether two networks have the same layers in the same places, widths aside."""
    if one == other or [name for name, _ in one.blocks] != [name for name, _ in other.blocks]:
        return False
    pairs = zip(one.blocks, other.blocks, strict=True)
    return all(a is b or _same_but_widths(a, b) for (_, a), (_, b) in pairs)


def _same_but_widths(one: Block, other: Block) -> bool:
    if len(one.nodes) != len(other.nodes):
        return False
    return all(
        a.inputs == b.inputs and (a.layer is b.layer or _alike(a.layer, b.layer))
        for a, b in zip(one.nodes, other.nodes, strict=True)
    )


def _alike(one: Layer, other: Layer) -> bool:
    if type(one) is not type(other):
        return False
    names = [f.name for f in fields(one) if f.name not in _WIDTHS]  # type: ignore[arg-type]
    return all(getattr(one, name) == getattr(other, name) for name in names)
