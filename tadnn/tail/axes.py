"""Whose channels the entries of a tensor's dimension are.

A *group* is a set of widths that are one number: those of the layers whose outputs are added,
of a depthwise convolution and of what feeds it, of a gate and of what it scales. Groups are
numbered while a network is walked through, and united where a layer ties them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LayerAt = tuple[int, int]
"""A layer's place: the number of its block in the chain, and of its node in the block."""


@dataclass(frozen=True)
class Segment:
    """Consecutive entries of one dimension.

    Attributes:
        group: whose channels they are; None where the size stays what it is.
        size: channels.
        inner: entries per channel, next to each other (the pixels of a flattened image).
    """

    group: int | None
    size: int
    inner: int = 1


Axis = tuple[Segment, ...]
"""One dimension: segments after each other, several where tensors were concatenated."""
Axes = tuple[Axis, ...]
"""Every dimension of a tensor; the batch's, where there is one, is nobody's channels."""


def fixed(size: int) -> Axis:
    """Return a dimension that is nobody's channels."""
    return (Segment(None, size),)


def length(axis: Axis) -> int:
    """Return the number of entries of a dimension."""
    return sum(segment.size * segment.inner for segment in axis)


def is_fixed(axis: Axis) -> bool:
    """Whether no width changes a dimension."""
    return all(segment.group is None for segment in axis)


@dataclass
class Tie:
    """What is known of one group so far.

    Attributes:
        name: of the first layer whose width it is.
        width: channels, or heads.
        grain: widths are multiples of it: the groups of a grouped convolution, each of which
            keeps as many channels as the others.
        normed: whether something computes statistics across its channels (a layer norm), so
            that a channel of zeros isn't neutral.
        frozen: why the width can't change; empty where it can.
        setters: the fields that hold the width: (layer, field).
        made: whether a layer makes the channels; stored values only follow them.
    """

    name: str
    width: int
    grain: int
    normed: bool
    frozen: str
    setters: tuple[tuple[LayerAt, str], ...]
    made: bool = True


class Ties:
    """The groups of one network while it is walked through; a union-find structure."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._ties: list[Tie] = []

    def add(self, tie: Tie) -> int:
        """Return the number of a new group."""
        self._parent.append(len(self._parent))
        self._ties.append(tie)
        return len(self._parent) - 1

    def root(self, group: int) -> int:
        """Return the number by which a group's united whole is known."""
        while self._parent[group] != group:
            self._parent[group] = self._parent[self._parent[group]]
            group = self._parent[group]
        return group

    def of(self, group: int) -> Tie:
        """Return what is known of a group's united whole."""
        return self._ties[self.root(group)]

    def roots(self) -> list[int]:
        """Return the united groups in the order in which they were first met."""
        return [g for g in range(len(self._parent)) if self._parent[g] == g]

    def freeze(self, axis: Axis, why: str) -> None:
        """Keep every width of a dimension; the first reason given is kept."""
        for segment in axis:
            if segment.group is not None:
                tie = self.of(segment.group)
                tie.frozen = tie.frozen or why

    def norm(self, axis: Axis) -> None:
        """Note that statistics are computed across a dimension."""
        for segment in axis:
            if segment.group is not None:
                self.of(segment.group).normed = True

    def grain(self, axis: Axis, grain: int, why: str) -> None:
        """Keep a dimension's widths multiples of ``grain``.

        Where several groups follow each other, a change of one would move the others across
        the borders of the parts: they are frozen.
        """
        if len(axis) != 1 or axis[0].inner != 1:
            self.freeze(axis, why)
        elif axis[0].group is not None:
            tie = self.of(axis[0].group)
            tie.grain = math.lcm(tie.grain, grain)

    def tie(self, first: Axis, second: Axis, why: str) -> Axis:
        """Unite the groups of two dimensions that must agree, and return the dimension.

        Where their segments don't match one to one, both are frozen.
        """
        if [(s.size, s.inner) for s in first] != [(s.size, s.inner) for s in second]:
            self.freeze(first, why)
            self.freeze(second, why)
            return first if not is_fixed(first) else second
        for a, b in zip(first, second, strict=True):
            if a.group is None or b.group is None:
                self.freeze((a, b), why)
            else:
                self._unite(self.root(a.group), self.root(b.group))
        return first

    def _unite(self, a: int, b: int) -> None:
        if a == b:
            return
        kept, gone = min(a, b), max(a, b)
        one, other = self._ties[kept], self._ties[gone]
        self._parent[gone] = kept
        one.grain = math.lcm(one.grain, other.grain)
        one.normed = one.normed or other.normed
        one.frozen = one.frozen or other.frozen
        one.setters += other.setters
        if other.made and not one.made:
            one.name, one.made = other.name, True
