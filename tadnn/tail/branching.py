"""Closing the gap of the relaxation: one variable's candidates tried one by one.

Where one width is shared by many layers (the embedding of a transformer), the hull over its
candidates is far from the candidates themselves. With that width fixed the rest is relaxed
again; the bound is then the best of the branches' bounds (one level of branch and bound, Land &
Doig 1960).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tadnn.tail.solve import Problem, Solution, Table

_GAP: Final = 0.02
"""In shares of what lies between the cheapest choice's gain and the most."""


def solve_branched(
    problem: Problem, budget: float, start: Sequence[int] | None = None
) -> Solution | None:
    """Return what :meth:`Problem.solve` does, with a smaller gap where its own is large.

    Args:
        problem: costs and gains.
        budget: of the cost.
        start: a choice that is known; used where it fits and is better.
    """
    relaxed = problem.solve(budget, start)
    if relaxed is None:
        return None
    span = problem.priced(0.0)[0] - problem.gain(problem.cheapest())
    if relaxed.bound - relaxed.gain <= _GAP * span:
        return relaxed
    v = _most_shared(problem)
    best, bound = relaxed, relaxed.gain
    for candidate in range(problem.sizes[v]):
        found = _fixed(problem, v, candidate).solve(budget)
        if found is None:
            continue
        bound = max(bound, found.bound)
        if found.gain > best.gain:
            choice = (*found.choice[:v], candidate, *found.choice[v + 1 :])
            best = replace(found, choice=choice)
    return replace(best, bound=min(bound, relaxed.bound))


def _most_shared(problem: Problem) -> int:
    """Return the variable with a choice that the most tables are of."""
    tables = (*problem.costs, *problem.gains)
    choices = (v for v, size in enumerate(problem.sizes) if size > 1)
    return max(choices, key=lambda v: sum(v in table.scope for table in tables))


def _fixed(problem: Problem, v: int, candidate: int) -> Problem:
    """Return the problem with one candidate left of a variable."""

    def kept(table: Table) -> Table:
        at = tuple(slice(candidate, candidate + 1) if u == v else slice(None) for u in table.scope)
        return Table(table.scope, table.values[at])

    sizes = [1 if u == v else size for u, size in enumerate(problem.sizes)]
    return Problem(sizes, [kept(t) for t in problem.costs], [kept(t) for t in problem.gains])
