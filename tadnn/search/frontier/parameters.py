"""Candidates from Optuna's own parameters, whatever an objective asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tadnn.search.frontier.candidates import Candidate, Candidates, changed, other_value
from tadnn.search.frontier.encoding import Encoding, Point, Variable

# More values than this are treated as a continuous range, rounded.
_MOST_LISTED: Final = 1000
# A continuous value moves by this share of its range, one standard deviation.
_STEP: Final = 0.1


@final
class ParameterCandidates(Candidates):
    """What Optuna's distributions allow."""

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self._distributions = dict(distributions)
        self._levels = {name: _levels(d) for name, d in self._distributions.items()}
        self.encoding = Encoding(
            [_variable(name, d, self._levels[name]) for name, d in self._distributions.items()]
        )

    @property
    def size(self) -> float:
        """The number of combinations."""
        return math.prod(
            _count(d) if levels is None else len(levels)
            for d, levels in zip(self._distributions.values(), self._levels.values(), strict=True)
        )

    def draw(self, rng: np.random.Generator, n: int) -> list[Candidate]:
        """Return ``n`` points, uniform in each parameter (in its logarithm where it is ``log``)."""
        columns = {name: self._column(rng, name, n) for name in self._distributions}
        return [Candidate.of({k: column[i] for k, column in columns.items()}) for i in range(n)]

    def near(self, rng: np.random.Generator, parents: Sequence[Point], n: int) -> list[Candidate]:
        """Return crossed and changed points."""
        return [Candidate.of(child) for child in changed(rng, parents, n, self._other)]

    def enumerate(self) -> Iterator[Point]:
        """Yield every combination of finite parameters."""
        import itertools

        names = list(self._distributions)
        levels = [self._levels[name] for name in names]
        assert all(level is not None for level in levels)
        for values in itertools.product(*(level or () for level in levels)):
            yield dict(zip(names, values, strict=True))

    def _column(self, rng: np.random.Generator, name: str, n: int) -> list[Any]:
        distribution, levels = self._distributions[name], self._levels[name]
        if levels is not None:
            return [levels[i] for i in rng.integers(len(levels), size=n)]
        assert isinstance(distribution, IntDistribution | FloatDistribution)
        return [_placed(distribution, share) for share in rng.random(n)]

    def _other(self, rng: np.random.Generator, name: str, value: Any) -> Any:
        distribution, levels = self._distributions[name], self._levels[name]
        if levels is not None:
            ordered = not isinstance(distribution, CategoricalDistribution)
            return other_value(rng, levels, value, ordered)
        assert isinstance(distribution, IntDistribution | FloatDistribution)
        share = _share(distribution, value) + _STEP * rng.standard_normal()
        return _placed(distribution, float(np.clip(share, 0.0, 1.0)))


def _levels(distribution: BaseDistribution) -> tuple[Any, ...] | None:
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if distribution.single():
        return (distribution.low,)
    # Logarithmic draws are not uniform over the values.
    if distribution.step is None or distribution.log or _count(distribution) > _MOST_LISTED:
        return None
    steps = range(int(_count(distribution)))
    return tuple(distribution.low + i * distribution.step for i in steps)


def _count(distribution: BaseDistribution) -> float:
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if distribution.step is None:
        return math.inf
    return round((distribution.high - distribution.low) / distribution.step) + 1


def _variable(
    name: str, distribution: BaseDistribution, levels: tuple[Any, ...] | None
) -> Variable:
    if isinstance(distribution, CategoricalDistribution):
        return Variable.of_values(name, distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if levels is not None:
        return Variable.of_values(name, levels)
    return Variable(
        name,
        (),
        float(distribution.low),
        float(distribution.high),
        is_number=True,
        is_log=distribution.log,
    )


def _placed(distribution: IntDistribution | FloatDistribution, share: float) -> int | float:
    """Return the value at ``share`` (0 to 1) of a range."""
    low, high = float(distribution.low), float(distribution.high)
    if isinstance(distribution, IntDistribution):
        # Half a step beyond either end, so that the ends are as likely as the others.
        low, high = low - 0.5 * distribution.step, high + 0.5 * distribution.step
    if distribution.log:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    if distribution.step is not None:
        steps = round((value - distribution.low) / distribution.step)
        value = distribution.low + steps * distribution.step
    value = min(max(value, distribution.low), distribution.high)
    return int(value) if isinstance(distribution, IntDistribution) else value


def _share(distribution: IntDistribution | FloatDistribution, value: float) -> float:
    low, high, at = float(distribution.low), float(distribution.high), float(value)
    if distribution.log:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / (high - low)
