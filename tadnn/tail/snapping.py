"""Architectures of a space moved onto the edges of their stairs."""

from __future__ import annotations

import math
from collections import Counter
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
_REMEMBERED: Final = 20_000
# Fields of layers that follow a width, shapes of views and stored tensors among them.
_WIDTHS: Final = frozenset({"out", "groups", "width", "heads", "head_width", "kv_heads", "shape"})


class Snapper:
    """Moves the integer choices of an architecture that set widths to efficient values.

    Choices are visited in the order of the space, each in the context of the others. One whose
    value isn't efficient moves to the nearer of two: the efficient value below, or the next one
    above, which is free. That is repeated until nothing moves, a few times at most.
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
        self._deviations: dict[tuple[Kernel, ...], np.ndarray] = {}

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
        deviation = self._deviations_us(nets)
        whole = values[-1] >= min(choice.high, _REACH * value)
        return values[snapped(latency, deviation, values, values.index(value), whole=whole)]

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

    def _deviations_us(self, nets: Sequence[Net]) -> np.ndarray:
        """Return the deviation of the difference between any two networks of one structure."""
        variance = np.zeros((len(nets), len(nets)))
        for kernels, count in self._lines(nets).items():
            deviation = self._deviations.get(kernels)
            if deviation is None:
                if len(self._deviations) > _REMEMBERED:
                    self._deviations = {}
                deviation = self._pricer.differences_us(kernels)
                self._deviations[kernels] = deviation
            variance += (count * deviation) ** 2
        found: np.ndarray = np.sqrt(variance)
        return found

    def _lines(self, nets: Sequence[Net]) -> Counter[tuple[Kernel, ...]]:
        """Return what the networks launch in one place each, and in how many places."""
        dtype, lines = self._model.setting.dtype, Counter[tuple[Kernel, ...]]()
        for blocks in zip(*(net.chain(self._batch) for net in nets), strict=True):
            first = blocks[0]
            if all(b is first[1] and shape == first[2] for _, b, shape, _ in blocks):
                continue
            launched = [self._runtime.lower(b, shape, dtype) for _, b, shape, _ in blocks]
            # A runtime may launch other kernels for other widths; then nothing pairs up.
            for line in zip(*launched, strict=False):
                if len({kernel.op for kernel in line}) == 1 and len(set(line)) > 1:
                    lines[line] += 1
        return lines


def snapped(
    latency_us: np.ndarray,
    deviation_us: np.ndarray,
    values: Sequence[int],
    at: int,
    *,
    whole: bool = True,
) -> int:
    """Return the index of the value that one of several moves to.

    An efficient one stays. Another moves to the nearer of the efficient values next to it: the one
    above is free, the one below saves time.

    Args:
        latency_us: at the values, [n].
        deviation_us: of the difference between any two, [n, n].
        values: ascending, [n].
        at: the index of the value to be moved.
        whole: whether these are all values, so that none is wider than the last.
    """
    efficient = efficient_widths(latency_us, deviation_us)
    if efficient[at]:
        return at
    efficient[-1] &= whole
    edges = np.flatnonzero(efficient)
    targets = [*edges[edges < at][-1:], *edges[edges > at][:1]]
    # Of two as near as each other, the wider one.
    by_distance = sorted(targets, key=lambda i: (abs(values[i] - values[at]), -values[i]))
    return int(by_distance[0]) if by_distance else at


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
