"""Crossover of whole architectures for Optuna's NSGA-II.

Optuna crosses only the parameters that every finished trial has. Conditional choices, and all
but one choice of a union of spaces, would be drawn at random for ever; this strategy, handed in
through NSGA-II's own hook, crosses whatever the two parents have. Rates and tournament are
Optuna's: K. Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from optuna.study import Study

_CROSSOVER = 0.9
_SWAP = 0.5


class ArchitectureCrossover:
    """Makes a child's choices from a parent population; keeps the population for more children.

    A choice that is missing from the child is one to draw afresh: a mutation, or a choice that
    neither parent has.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._parents: Sequence[FrozenTrial] = ()
        self._directions: Sequence[StudyDirection] = ()

    def __call__(
        self,
        study: Study,
        search_space: Mapping[str, BaseDistribution],
        parent_population: Sequence[FrozenTrial],
    ) -> dict[str, Any]:
        """Make the first child; NSGA-II calls this."""
        # NSGA-II hands the population over in rank order when it has just selected it, and in
        # trial order once it reads it back: a search that died in between must not differ.
        self._parents = sorted(parent_population, key=lambda parent: parent.number)
        self._directions = study.directions
        return self.child(self._rng)

    def child(self, rng: np.random.Generator) -> dict[str, Any]:
        """Make one more child of the same population; empty in the first generation."""
        if not self._parents:
            return {}
        first = self._tournament(rng, None)
        genes = dict(first.params)
        if len(self._parents) > 1 and rng.random() < _CROSSOVER:
            second = self._tournament(rng, first)
            for name, value in second.params.items():
                if name not in genes or rng.random() < _SWAP:
                    genes[name] = value
        rate = 1.0 / max(1, len(genes))
        return {name: value for name, value in genes.items() if rng.random() >= rate}

    def _tournament(self, rng: np.random.Generator, other: FrozenTrial | None) -> FrozenTrial:
        pool = [p for p in self._parents if other is None or p.number != other.number]
        left, right = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        return left if _dominates(left, right, self._directions) else right


def _dominates(a: FrozenTrial, b: FrozenTrial, directions: Sequence[StudyDirection]) -> bool:
    """Constrained domination: the smaller violation wins, then Pareto dominance."""
    violation_a, violation_b = _violation(a), _violation(b)
    if violation_a != violation_b:
        return violation_a < violation_b
    signs = [-1.0 if d == StudyDirection.MAXIMIZE else 1.0 for d in directions]
    values_a = [s * v for s, v in zip(signs, a.values, strict=True)]
    values_b = [s * v for s, v in zip(signs, b.values, strict=True)]
    return values_a != values_b and all(x <= y for x, y in zip(values_a, values_b, strict=True))


def _violation(trial: FrozenTrial) -> float:
    return sum(value for value in trial.constraints.values() if value > 0)
