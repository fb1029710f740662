"""Where candidates come from: a finite pool, or a space of architectures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from tadnn.errors import RequestError
from tadnn.search.frontier.encoding import Encoded, Encoding, Point, Variable
from tadnn.spaces import Space

# Chance that a neighbour mixes two parents before it is changed, and that it changes once more.
_CROSSED: Final = 0.3
_AGAIN: Final = 0.35


class Candidate(NamedTuple):
    """A point and what tells it apart, whatever the order of its keys; worked out once."""

    key: Hashable
    point: Point

    @classmethod
    def of(cls, point: Point) -> Candidate:
        """Return the candidate of a point."""
        return cls(key_of(point), point)


def key_of(point: Point) -> Hashable:
    """Return what tells points apart, whatever the order of their keys."""
    return frozenset(point.items())


class Candidates(ABC):
    """A set of points to choose from.

    Everything random comes from the generator handed in, so that equal generators give equal
    points.
    """

    encoding: Encoding

    @property
    @abstractmethod
    def size(self) -> float:
        """How many points there are; infinite for continuous ranges."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int) -> list[Candidate]:
        """Return ``n`` points drawn uniformly."""

    @abstractmethod
    def near(self, rng: np.random.Generator, parents: Sequence[Point], n: int) -> list[Candidate]:
        """Return ``n`` points close to ``parents``, or between them."""

    @abstractmethod
    def enumerate(self) -> Iterator[Point]:
        """Yield every point of a finite set once."""

    def listed(self) -> Sequence[Candidate] | None:
        """Return all candidates where there is a list of them to choose from."""
        return None

    def encode(self, candidates: Sequence[Candidate]) -> Encoded:
        """Encode candidates for a surrogate."""
        return self.encoding([c.point for c in candidates])


@final
class PoolCandidates(Candidates):
    """The rows of a table, or any other finite list of points.

    Raises:
        RequestError: there are none, or two are the same.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        if not points:
            raise RequestError("a candidate pool has at least one point; got none")
        self._pool = [Candidate.of(dict(point)) for point in points]
        self._rows = {candidate.key: i for i, candidate in enumerate(self._pool)}
        if len(self._rows) < len(self._pool):
            raise RequestError(
                "the points of a candidate pool are distinct; "
                f"{len(self._pool) - len(self._rows)} of {len(self._pool)} are repeated"
            )
        names = dict.fromkeys(name for point in points for name in point)
        self.encoding = Encoding(
            [Variable.of_values(name, [p[name] for p in points if name in p]) for name in names]
        )
        self._encoded = self.encoding(points)

    @property
    def size(self) -> float:
        """The number of rows."""
        return len(self._pool)

    def listed(self) -> Sequence[Candidate]:
        """Return every row: scoring a table whole is cheap."""
        return self._pool

    def draw(self, rng: np.random.Generator, n: int) -> list[Candidate]:
        """Return ``n`` rows."""
        return [self._pool[i] for i in rng.integers(len(self._pool), size=n)]

    def near(self, rng: np.random.Generator, parents: Sequence[Point], n: int) -> list[Candidate]:
        """Return nothing: every row is listed."""
        return []

    def enumerate(self) -> Iterator[Point]:
        """Yield every row."""
        return (candidate.point for candidate in self._pool)

    def encode(self, candidates: Sequence[Candidate]) -> Encoded:
        """Look rows up that were encoded once; encode strangers."""
        rows = [self._rows.get(candidate.key, -1) for candidate in candidates]
        if -1 in rows:
            return super().encode(candidates)
        return self._encoded[rows]


@final
class SpaceCandidates(Candidates):
    """The architectures of a space."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.encoding = Encoding(
            [Variable.of_values(name, choice.values) for name, choice in space.choices.items()]
        )

    @property
    def size(self) -> float:
        """The number of distinct architectures."""
        return self._space.size()

    def draw(self, rng: np.random.Generator, n: int) -> list[Candidate]:
        """Return ``n`` architectures, every active choice drawn uniformly."""
        return [Candidate.of(self._space.sample_one(rng)) for _ in range(n)]

    def near(self, rng: np.random.Generator, parents: Sequence[Point], n: int) -> list[Candidate]:
        """Return crossed and changed architectures; new active choices are drawn."""
        children = changed(rng, parents, n, self._other)
        return [Candidate.of(self._completed(rng, genes)) for genes in children]

    def enumerate(self) -> Iterator[Point]:
        """Yield every architecture."""
        return self._space.enumerate()

    def _other(self, rng: np.random.Generator, name: str, value: Any) -> Any:
        choice = self._space.choices[name]
        values = choice.ordered if choice.is_ordered else choice.values
        return other_value(rng, values, value, choice.is_ordered)

    def _completed(self, rng: np.random.Generator, genes: Point) -> Point:
        arch: dict[str, Any] = {}
        for name, choice in self._space.choices.items():
            if self._space.active(arch, name):
                if name in genes:
                    arch[name] = genes[name]
                else:
                    arch[name] = choice.values[int(rng.integers(len(choice.values)))]
        return arch


def changed(
    rng: np.random.Generator, parents: Sequence[Point], n: int, other: Any
) -> Iterator[Point]:
    """Yield ``n`` offspring: perhaps crossed with a second parent, then at least one change."""
    for _ in range(n):
        child = dict(parents[int(rng.integers(len(parents)))])
        if rng.random() < _CROSSED:
            second = parents[int(rng.integers(len(parents)))]
            for name, value in second.items():
                if rng.random() < 0.5:
                    child[name] = value
        names = list(child)
        while names:
            name = names[int(rng.integers(len(names)))]
            child[name] = other(rng, name, child[name])
            if rng.random() >= _AGAIN:
                break
        yield child


def other_value(rng: np.random.Generator, values: Sequence[Any], value: Any, ordered: bool) -> Any:
    """Return another of ``values``: of ordered ones a close one half of the time."""
    if len(values) == 1:
        return values[0]
    at = values.index(value)
    if ordered and rng.random() < 0.5:
        step = 1 if at == 0 or (at < len(values) - 1 and rng.random() < 0.5) else -1
        return values[at + step]
    index = int(rng.integers(len(values) - 1))
    return values[index + (index >= at)]
