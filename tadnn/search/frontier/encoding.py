"""Points as numbers: what a surrogate sees of architectures, parameters or table rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Point = Mapping[str, Any]
Floats = NDArray[np.float64]

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

    def position(self, value: Any) -> float:
        """Return where a number stands, its range and a uniform spread scaled to variance 1."""
        low, high, at = self.low, self.high, float(value)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return 0.0 if high <= low else (2.0 * (at - low) / (high - low) - 1.0) * math.sqrt(3.0)


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


class Encoding:
    """Turns points into numbers; a key that a point lacks is one more value of its own.

    Every variable weighs the same: its columns have, all together, a variance of about 1 under
    uniform draws, divided by the number of variables.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = tuple(v for v in variables if len(v.levels) != 1 or not v.is_number)
        scale = 1.0 / math.sqrt(max(1, len(self.variables)))
        self._codes: list[dict[Hashable, tuple[Floats, Floats]]] = []
        self._widths: list[tuple[int, int]] = []
        for variable in self.variables:
            levels = variable.levels
            hot = len(levels) if (0 < len(levels) <= _MOST_LEVELS or not variable.is_number) else 0
            if variable.is_number:
                self._widths.append((1, 1 + (hot if hot > 2 else 0)))
            else:
                self._widths.append((hot, hot))
            self._codes.append({})
        self._scale = scale

    def __call__(self, points: Sequence[Point]) -> Encoded:
        """Encode ``points``."""
        mixed, full = [], []
        for variable, codes, widths in zip(self.variables, self._codes, self._widths, strict=True):
            column: list[tuple[Floats, Floats]] = []
            for point in points:
                value = point.get(variable.name)
                code = codes.get(value)
                if code is None:
                    code = self._code(variable, widths, value)
                    if variable.levels or value is None:
                        codes[value] = code
                column.append(code)
            mixed.append(np.array([c[0] for c in column]).reshape(len(points), widths[0]))
            full.append(np.array([c[1] for c in column]).reshape(len(points), widths[1]))
        if not mixed:
            empty = np.zeros((len(points), 1))
            return Encoded(empty, empty)
        return Encoded(np.hstack(mixed), np.hstack(full))

    def _code(
        self, variable: Variable, widths: tuple[int, int], value: Any
    ) -> tuple[Floats, Floats]:
        mixed, full = np.zeros(widths[0]), np.zeros(widths[1])
        if value is None:
            return mixed, full
        hot = widths[1] - 1 if variable.is_number else widths[1]
        indicator = np.zeros(hot)
        if hot:
            # k equally frequent indicators, centred and scaled to a total variance of 1.
            k = len(variable.levels)
            indicator -= 1.0 / k
            indicator[variable.levels.index(value)] += 1.0
            indicator /= math.sqrt(max(1e-9, (k - 1) / k))
        if not variable.is_number:
            return indicator * self._scale, indicator * self._scale
        position = variable.position(value) * self._scale
        mixed[0] = position
        full[0] = position if not hot else position * math.sqrt(0.5)
        full[1:] = indicator * (self._scale * math.sqrt(0.5))
        return mixed, full
