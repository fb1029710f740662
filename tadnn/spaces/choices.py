"""What may vary: integer ranges and lists of values, some of them only sometimes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from tadnn.errors import SpaceError

Value = int | float | str | bool
When = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Int:
    """A whole number from ``low`` to ``high`` (inclusive) in steps.

    Args:
        low: the least value.
        high: the greatest value; ``low`` plus a whole number of steps.
        step: distance between neighbours.
        when: the parents' values under which the choice has an effect, such as
            ``{"depth1": (3, 4)}``; absent parents mean always.
        group: a name under which overrides reach several choices at once.
    """

    low: int
    high: int
    step: int = 1
    when: When = field(default_factory=dict)
    group: str = ""

    def __post_init__(self) -> None:
        for key in ("low", "high", "step"):
            if type(getattr(self, key)) is not int:
                raise SpaceError(
                    f"{key} of an integer choice is a whole number; got {getattr(self, key)!r}"
                )
        if self.step < 1 or self.low > self.high or (self.high - self.low) % self.step:
            raise SpaceError(
                "an integer choice has low <= high = low + a whole number of steps; "
                f"got low={self.low}, high={self.high}, step={self.step}"
            )

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every value, in order."""
        return tuple(range(self.low, self.high + 1, self.step))

    def holds(self, value: object) -> bool:
        """Tell whether ``value`` is one of the values."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and self.low <= value <= self.high and (value - self.low) % self.step == 0  # type: ignore[operator]

    is_ordered: ClassVar[bool] = True
    """Neighbours and encodings follow the values' order."""

    @property
    def ordered(self) -> tuple[Value, ...]:
        """Every value, from the least to the greatest."""
        return self.values

    def position(self, value: Value) -> float:
        """Return where a value stands between the least (0) and the greatest (1)."""
        return (int(value) - self.low) / max(1, self.high - self.low)

    def columns(self) -> dict[Value | None, tuple[float, ...]]:
        """Return how each value is encoded, and under None how absence is."""
        codes: dict[Value | None, tuple[float, ...]] = {None: (0.5,)}
        return codes | {value: (self.position(value),) for value in self.values}

    def describe(self) -> str:
        """Return the values in words."""
        step = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{self.low} to {self.high}{step}"

    def narrowed(self, name: str, override: Any) -> Int | Categorical:
        """Return the choice that an override leaves.

        ``override`` is a value (fixed), a list of values, or a mapping of ``low``,
        ``high`` and ``step``; any step is allowed, bounds stay inside the choice's.
        """
        if isinstance(override, Mapping):
            _check_keys(name, override, ("low", "high", "step"))
            given = {"low": self.low, "high": self.high, "step": self.step, **override}
            for key, value in given.items():
                if not isinstance(value, int) or isinstance(value, bool):
                    raise SpaceError(f"{key} of {name} is a whole number; got {value!r}")
            low, high, step = given["low"], given["high"], given["step"]
            if low < self.low or high > self.high:
                raise SpaceError(
                    f"an override narrows {name} within {self.describe()}; got {low} to {high}"
                )
            if step < 1 or low > high:
                raise SpaceError(
                    f"an override of {name} has low <= high and step >= 1; "
                    f"got low={low}, high={high}, step={step}"
                )
            return replace(self, low=low, high=high - (high - low) % step, step=step)
        values = _listed(override)
        for value in values:
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not self.low <= value <= self.high:
                raise SpaceError(
                    f"an override narrows {name} within {self.low} to {self.high}; got {value!r}"
                )
        return Categorical(*_distinct(name, values), when=self.when, group=self.group)


@dataclass(frozen=True, init=False)
class Categorical:
    """One of several values.

    Args:
        values: strings, numbers or booleans; distinct.
        when: see :class:`Int`.
        group: see :class:`Int`.
    """

    values: tuple[Value, ...]
    when: When
    group: str

    def __init__(self, *values: Value, when: When | None = None, group: str = "") -> None:
        object.__setattr__(self, "values", _distinct("a categorical choice", list(values)))
        object.__setattr__(self, "when", when or {})
        object.__setattr__(self, "group", group)

    def holds(self, value: object) -> bool:
        """Tell whether ``value`` is one of the values (True is not 1)."""
        return any(type(value) is type(own) and value == own for own in self.values)

    @property
    def is_ordered(self) -> bool:
        """Whether all values are numbers, so that neighbours and encodings follow their order."""
        return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in self.values)

    @property
    def ordered(self) -> tuple[Value, ...]:
        """Every value, from the least to the greatest where they are numbers."""
        return tuple(sorted(self.values, key=float)) if self.is_ordered else self.values

    def columns(self) -> dict[Value | None, tuple[float, ...]]:
        """Return how each value is encoded, and under None how absence is."""
        codes: dict[Value | None, tuple[float, ...]]
        if self.is_ordered:
            last = max(1, len(self.values) - 1)
            codes = {None: (0.5,)}
            return codes | {v: (i / last,) for i, v in enumerate(self.ordered)}
        none = (0.0,) * len(self.values)
        codes = {None: none}
        return codes | {v: (*none[:i], 1.0, *none[i + 1 :]) for i, v in enumerate(self.values)}

    def describe(self) -> str:
        """Return the values in words."""
        return ", ".join(map(str, self.values))

    def narrowed(self, name: str, override: Any) -> Categorical:
        """Return the choice that an override (a value or a list of values) leaves."""
        if isinstance(override, Mapping) and self.is_ordered:
            _check_keys(name, override, ("low", "high"))
            given = {"low": -math.inf, "high": math.inf, **override}
            for key, bound in given.items():
                if not isinstance(bound, (int, float)) or isinstance(bound, bool):
                    raise SpaceError(f"{key} of {name} is a number; got {bound!r}")
            override = [v for v in self.values if given["low"] <= float(v) <= given["high"]]
            if not override:
                raise SpaceError(
                    f"an override of {name} leaves at least one of {self.describe()}; "
                    f"got {given['low']} to {given['high']}"
                )
        values = _listed(override)
        for value in values:
            if not self.holds(value):
                raise SpaceError(f"{name} is one of {self.describe()}; got {value!r}")
        return Categorical(*_distinct(name, values), when=self.when, group=self.group)


Choice = Int | Categorical


def _check_keys(name: str, override: Mapping[Any, Any], valid: tuple[str, ...]) -> None:
    unknown = [str(key) for key in override if key not in valid]
    if unknown:
        raise SpaceError(
            f"an override of {name} has the keys {', '.join(valid)}; got {', '.join(unknown)}"
        )


def _listed(override: Any) -> list[Any]:
    return list(override) if isinstance(override, (list, tuple)) else [override]


def _distinct(name: str, values: list[Any]) -> tuple[Value, ...]:
    if not values:
        raise SpaceError(f"{name} has at least one value; got none")
    for value in values:
        # Exact types: a NumPy number would neither be written as JSON nor found again.
        known = type(value) in (int, float, str, bool)
        if not known or (isinstance(value, float) and not math.isfinite(value)):
            raise SpaceError(
                f"values of {name} are finite numbers, strings or booleans; got {value!r}"
            )
    # 1, 1.0 and True are one value here: an architecture could not tell them apart.
    if len(set(values)) != len(values):
        raise SpaceError(f"values of {name} are distinct; got {values}")
    return tuple(values)
