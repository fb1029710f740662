"""Points as numbers: what a surrogate sees of architectures, parameters or table rows."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Point = Mapping[str, Any]
Floats = NDArray[np.float64]

# More texts than this are names.
_MOST_TEXTS: Final = 256
_MOST_PLACES: Final = 128
_SEPARATORS: Final = re.compile(r"[\s,;:|+/()\[\]{}]+")
# A number with more values than this is a position and nothing else.
_MOST_LEVELS: Final = 12


@dataclass(frozen=True)
class Variable:
    """One coordinate of a point.

    Attributes:
        name: the point's key.
        levels: its values, in order where they are numbers; empty: a continuous range.
        low: the least number; 0.0 where values aren't numbers.
        high: the greatest number.
        is_number: whether values have an order and distances.
        is_log: whether distances are those of the logarithm.
    """

    name: str
    levels: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 1.0
    is_number: bool = False
    is_log: bool = False

    @classmethod
    def of_values(cls, name: str, values: Iterable[Any]) -> Variable:
        """Return the variable that takes ``values``; numbers are sorted."""
        distinct = list(dict.fromkeys(values))
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in distinct):
            levels = tuple(sorted(distinct))
            return cls(name, levels, float(levels[0]), float(levels[-1]), is_number=True)
        return cls(name, tuple(distinct))

    def positions(self, values: Sequence[Any]) -> Floats:
        """Return where numbers stand, their range and a uniform spread scaled to variance 1.

        An absent one (None) stands in the middle.
        """
        at = np.array([math.nan if value is None else value for value in values], dtype=float)
        low, high = self.low, self.high
        if self.is_log:
            low, high, at = math.log(low), math.log(high), np.log(at)
        if high <= low:
            return np.zeros(len(values))
        scaled: Floats = np.nan_to_num((2.0 * (at - low) / (high - low) - 1.0) * math.sqrt(3.0))
        return scaled


@dataclass(frozen=True)
class Encoded:
    """Encoded points.

    Attributes:
        mixed: numbers as positions, other values as indicators, [n, p]; for distances and
            smooth functions.
        full: the same with indicators of few-valued numbers as well, [n, q]; for sums of
            arbitrary effects.
    """

    mixed: Floats
    full: Floats

    def __len__(self) -> int:
        return len(self.mixed)

    def __getitem__(self, rows: Any) -> Encoded:
        return Encoded(self.mixed[rows], self.full[rows])

    def joined(self, other: Encoded) -> Encoded:
        """Return these points followed by ``other``."""
        return Encoded(np.vstack([self.mixed, other.mixed]), np.vstack([self.full, other.full]))


@dataclass(frozen=True)
class _Column:
    """A variable, or one place in texts that list several values."""

    variable: Variable
    parts: Mapping[Any, Any] | None = None

    def values(self, points: Sequence[Point]) -> list[Any]:
        """Return the points' values; None where absent."""
        values = [point.get(self.variable.name) for point in points]
        return values if self.parts is None else [self.parts.get(value) for value in values]


def _columns(variable: Variable) -> list[_Column]:
    """Return the columns of a variable: many texts such as ``3 5 3`` have one per place."""
    whole = [_Column(variable)]
    levels = variable.levels
    if len(levels) <= _MOST_LEVELS or not all(isinstance(level, str) for level in levels):
        return whole
    tokens = {level: [t for t in _SEPARATORS.split(level) if t] for level in levels}
    most = max(map(len, tokens.values()))
    if not 1 < most <= _MOST_PLACES:
        return whole
    columns = []
    for place in range(most):
        texts = {level: t[place] for level, t in tokens.items() if place < len(t)}
        parts = dict(zip(texts, _numbers(list(texts.values())), strict=True))
        part = Variable.of_values(variable.name, parts.values())
        if len(part.levels) > 1:
            columns.append(_Column(part, parts))
    return columns


def _numbers(texts: list[str]) -> list[Any]:
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return list(texts)
    return list(values) if all(map(math.isfinite, values)) else list(texts)


class Encoding:
    """Turns points into numbers; a key that a point lacks is one more value of its own.

    Texts of which there are many are taken apart where they list values; where they don't, they
    are taken for names, and say nothing.

    Every variable weighs the same: its columns have, all together, a variance of about 1 under
    uniform draws, divided by the number of variables.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        columns = [c for v in variables if len(v.levels) != 1 for c in _columns(v)]
        self._columns = [
            c for c in columns if c.variable.is_number or len(c.variable.levels) <= _MOST_TEXTS
        ]
        scale = 1.0 / math.sqrt(max(1, len(self._columns)))
        self._scale = scale
        self._tables = [
            _table(c.variable, scale) if c.variable.levels else None for c in self._columns
        ]

    def __call__(self, points: Sequence[Point]) -> Encoded:
        """Encode ``points``."""
        mixed, full = [np.zeros((len(points), 0))], [np.zeros((len(points), 0))]
        for source, table in zip(self._columns, self._tables, strict=True):
            values = source.values(points)
            if table is None:
                column = source.variable.positions(values)[:, None] * self._scale
                mixed.append(column)
                full.append(column)
            else:
                rows = [table.rows[value] for value in values]
                mixed.append(table.mixed[rows])
                full.append(table.full[rows])
        return Encoded(np.hstack(mixed), np.hstack(full))


@dataclass(frozen=True)
class _Table:
    """The codes of a variable's levels; absence has the last row, all zero."""

    rows: dict[Hashable, int]
    mixed: Floats
    full: Floats


def _table(variable: Variable, scale: float) -> _Table:
    levels = variable.levels
    k = len(levels)
    rows: dict[Hashable, int] = {level: i for i, level in enumerate(levels)}
    # An absent value is None; where None is a level itself, it keeps its own row.
    rows.setdefault(None, k)
    # k equally frequent indicators, centred and scaled to a total variance of 1.
    indicators = np.zeros((k + 1, k))
    indicators[:k] = (np.eye(k) - 1.0 / k) / math.sqrt((k - 1) / k)
    if not variable.is_number:
        return _Table(rows, scale * indicators, scale * indicators)
    positions = np.append(variable.positions(levels), 0.0)[:, None] * scale
    if not 2 < k <= _MOST_LEVELS:
        return _Table(rows, positions, positions)
    half = math.sqrt(0.5)
    return _Table(rows, positions, half * np.hstack([positions, scale * indicators]))
