"""Widths for all groups together: the most capacity within a latency budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.kernels import Kernel
from tadnn.tail.branching import solve_branched
from tadnn.tail.capacity import Capacity
from tadnn.tail.cost import Pricer, WideKernel, WidthCosts
from tadnn.tail.solve import MOST_ENTRIES, Problem, Table, elimination_order

_MOST_KERNELS: Final = 4_000
_ROUNDS: Final = 3
_ALIGNED: Final = 8
_TOLERANCE: Final = 1e-4
"""Predictions are rounded to six digits; sums of them differ by more."""

Candidates = Mapping[int, Sequence[int]]
"""The widths that each free group may have, ascending, at least one."""


@dataclass(frozen=True)
class Chosen:
    """Widths for all groups.

    Attributes:
        widths: by group; those that stay too.
        latency_us: predicted, of the whole network.
        gain: of capacity, against the present widths.
        bound: no widths among the candidates gain more within the budget; None where kernels
            that many groups feed were priced by approximation.
    """

    widths: Mapping[int, int]
    latency_us: float
    gain: float
    bound: float | None


class WidthProblem:
    """The latency and capacity of a network over candidates of its groups' widths.

    A kernel that many groups feed (a concatenation of many) makes no table: it is priced as if
    each group changed alone, around widths that are moved to the best choice a few times.

    Args:
        costs: the network's kernels.
        pricer: of kernels.
        capacity: what is to be gained.
        weights: the number of parameters, whose memory takes time.
        candidates: the widths to choose from.
    """

    def __init__(
        self,
        costs: WidthCosts,
        pricer: Pricer,
        capacity: Capacity,
        weights: Capacity,
        candidates: Candidates,
    ) -> None:
        self.costs, self.pricer, self.capacity, self.weights = costs, pricer, capacity, weights
        self.groups = tuple(g for g in costs.free if g in candidates)
        self._now = [costs.flow.groups[g].width for g in self.groups]
        self._changes = [
            np.array(candidates[g]) - now for g, now in zip(self.groups, self._now, strict=True)
        ]
        self._start = tuple(int(np.argmin(np.abs(changes))) for changes in self._changes)
        self._at = {g: v for v, g in enumerate(self.groups)}
        self.sizes = [len(changes) for changes in self._changes]
        self._costs: list[Table] = []
        self._many: list[WideKernel] = []
        self._price_kernels()
        self._costs += self._tables(weights, pricer.parameters_us())
        self._gains = self._tables(capacity, 1.0)
        self._approximate: list[Table] = []
        self._thin_out()

    @property
    def _starts(self) -> list[tuple[int, ...]]:
        """Where rounds begin: the present widths, and where approximated, all of them aligned.

        A sum of many widths is aligned when all of them are, which no single change shows.
        """
        if self.is_exact:
            return [self._start]
        aligned = []
        for now, changes, start in zip(self._now, self._changes, self._start, strict=True):
            whole = np.flatnonzero((now + changes) % _ALIGNED == 0)
            wider = whole[changes[whole] >= 0]
            nearest = wider[:1] if len(wider) else whole[-1:]
            aligned.append(int(nearest[0]) if len(nearest) else start)
        return [self._start, tuple(aligned)]

    @property
    def is_exact(self) -> bool:
        """Whether nothing was priced by approximation."""
        return not self._many and not self._approximate

    def choose(self, budget_us: float) -> Chosen | None:
        """Return the widths of the most capacity within a latency budget; None if none fit."""
        found = [self._choose_from(start, budget_us) for start in self._starts]
        return max((f for f in found if f is not None), key=lambda f: f.gain, default=None)

    def _choose_from(self, around: tuple[int, ...], budget_us: float) -> Chosen | None:
        best, wanted, exact = None, budget_us, self.is_exact
        for _ in range(1 if exact else _ROUNDS):
            problem = self._problem(around)
            rest = self._chosen(around, None).latency_us - problem.cost(around)
            solution = solve_branched(problem, wanted - rest, around)
            if solution is None:
                break
            chosen = self._chosen(solution.choice, solution.bound if exact else None)
            over = chosen.latency_us / budget_us - 1
            if over <= _TOLERANCE and (best is None or chosen.gain > best.gain):
                best = chosen
            if solution.choice == around and over <= _TOLERANCE:
                break
            # What was priced one change at a time came out dearer together: aim lower.
            wanted -= max(0.0, over) * budget_us
            around = solution.choice
        return best

    def fastest(self, least_gain: float) -> Chosen | None:
        """Return the widths of the least latency that gain ``least_gain``; None if none do."""
        found = [self._fastest_from(start, least_gain) for start in self._starts]
        return min((f for f in found if f is not None), key=lambda f: f.latency_us, default=None)

    def _fastest_from(self, around: tuple[int, ...], least_gain: float) -> Chosen | None:
        best = None
        if not self.is_exact:
            start = self._chosen(around, None)
            best = start if start.gain >= least_gain else None
        for _ in range(1 if self.is_exact else _ROUNDS):
            problem = self._problem(around)
            # The same problem with cost and gain trading places.
            turned = Problem(
                self.sizes,
                [Table(t.scope, -t.values) for t in problem.gains],
                [Table(t.scope, -t.values) for t in problem.costs],
            )
            solution = solve_branched(turned, -least_gain, around)
            if solution is None:
                break
            around = solution.choice
            found = self._chosen(around, None)
            if found.gain >= least_gain and (best is None or found.latency_us < best.latency_us):
                best = found
        return best

    def cheapest_us(self) -> float:
        """Return the least latency that any widths among the candidates have."""
        choice = self._problem(self._start).cheapest()
        return self._chosen(choice, None).latency_us

    def _price_kernels(self) -> None:
        laid_out: list[tuple[WideKernel, tuple[int, ...], list[Kernel], np.ndarray]] = []
        kernels: list[Kernel] = []
        for wide in self.costs.kernels:
            scope = tuple(self._at[g] for g in wide.groups if g in self._at)
            if not scope:
                continue
            if math.prod(self.sizes[v] for v in scope) > MOST_ENTRIES // 8:
                self._many.append(wide)
                continue
            ordered = tuple(sorted(scope))
            distinct, where = wide.over(
                [self.groups[v] for v in ordered], [self._changes[v] for v in ordered]
            )
            if len(distinct) > _MOST_KERNELS:
                self._many.append(wide)
                continue
            laid_out.append((wide, ordered, distinct, where))
            kernels += distinct
        us = iter(self.pricer.kernels_us(kernels).tolist())
        for wide, scope, distinct, where in laid_out:
            priced = np.array([next(us) for _ in distinct])
            self._costs.append(Table(scope, wide.count * priced[where]))

    def _tables(self, capacity: Capacity, factor: float) -> list[Table]:
        tables = []
        for groups in capacity.scopes():
            scope = tuple(self._at[g] for g in groups if g in self._at)
            if not factor or len(scope) < len(groups):
                continue  # where one of a pair stays, its change is 0
            values = factor * capacity.table(groups, [self._changes[v] for v in scope])
            tables.append(Table(scope, values))
        return tables

    def _thin_out(self) -> None:
        """Set pairs aside whose groups meet nowhere else, where elimination can't hold them."""
        scopes = {t.scope for t in (*self._costs, *self._gains)}
        if elimination_order(self.sizes, scopes)[1] <= MOST_ENTRIES:
            return
        priced = [set(t.scope) for t in self._costs if len(t.scope) > 1]
        kept_gains: list[Table] = []
        aside: list[Table] = []
        for table in self._gains:
            together = len(table.scope) == 1 or any(set(table.scope) <= s for s in priced)
            (kept_gains if together else aside).append(table)
        self._gains, self._approximate = kept_gains, aside

    def _problem(self, around: tuple[int, ...]) -> Problem:
        costs = [*self._costs, *self._lines(around)]
        gains = list(self._gains)
        for table in self._approximate:
            for v in table.scope:
                at = tuple(slice(None) if u == v else around[u] for u in table.scope)
                line = table.values[at]
                gains.append(Table((v,), line - line[around[v]]))
        return Problem(self.sizes, costs, gains)

    def _lines(self, around: tuple[int, ...]) -> list[Table]:
        """Price kernels that many groups feed, one group's width changed at a time."""
        base = {g: int(self._changes[v][around[v]]) for v, g in enumerate(self.groups)}
        rows: list[tuple[int, int, int]] = []
        kernels = []
        for wide in self._many:
            for group in wide.groups:
                if group not in self._at:
                    continue
                v = self._at[group]
                rows.append((v, wide.count, len(self._changes[v])))
                kernels += [wide.at({**base, group: int(c)}) for c in self._changes[v]]
        us = self.pricer.kernels_us(kernels) if kernels else np.empty(0)
        lines, start = [], 0
        for v, count, n in rows:
            line = count * us[start : start + n]
            lines.append(Table((v,), line - line[around[v]]))
            start += n
        return lines

    def _chosen(self, choice: Sequence[int], bound: float | None) -> Chosen:
        changes = {g: int(self._changes[v][choice[v]]) for v, g in enumerate(self.groups)}
        widths = {g: now + changes[g] for g, now in zip(self.groups, self._now, strict=True)}
        latency = self.pricer.total_us(self.costs, changes)
        parameters = self.costs.flow.net.parameters + self.weights.at(changes)
        latency += self.pricer.parameters_us() * parameters
        return Chosen(widths, latency, self.capacity.at(changes), bound)
