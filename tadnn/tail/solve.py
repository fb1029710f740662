"""Choosing one candidate per variable: the most gain whose cost fits a budget.

Cost and gain are sums of tables over few variables each, as a network's latency and capacity
are over its widths. For a price of cost, the best choice is found exactly by eliminating one
variable after the other (Bertelè & Brioschi 1972; bucket elimination, Dechter 1999): networks
are chains with few ties, so the tables stay small. The price that meets the budget is searched
for (Lagrangian relaxation, Everett 1963), which gives an upper bound too: no choice within the
budget gains more. What the relaxation leaves between hull and budget, single and paired moves
fill.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

MOST_ENTRIES: Final = 4_000_000
"""The largest table that elimination may make."""
_BISECTIONS: Final = 40
_MOVES: Final = 400
_SLACK: Final = 1e-9


@dataclass(frozen=True)
class Table:
    """A function of some variables, one value per combination of their candidates.

    Attributes:
        scope: the variables, ascending.
        values: one axis per variable.
    """

    scope: tuple[int, ...]
    values: np.ndarray

    def at(self, choice: Sequence[int]) -> float:
        """Return the value at a choice of candidates of all variables."""
        return float(self.values[tuple(choice[v] for v in self.scope)])


@dataclass(frozen=True)
class Solution:
    """The best choice found, and how good a better one could be.

    Attributes:
        choice: the index of the chosen candidate, by variable.
        cost: its cost.
        gain: its gain.
        bound: no choice within the budget gains more.
    """

    choice: tuple[int, ...]
    cost: float
    gain: float
    bound: float


class Problem:
    """Costs and gains over variables with finitely many candidates.

    Args:
        sizes: the number of candidates, by variable.
        costs: tables that add up to the cost.
        gains: tables that add up to the gain.
    """

    def __init__(
        self, sizes: Sequence[int], costs: Sequence[Table], gains: Sequence[Table]
    ) -> None:
        self.sizes = tuple(sizes)
        self.costs, self.gains = _merged(costs), _merged(gains)
        scopes = {table.scope for table in (*self.costs, *self.gains)}
        self.order, self.largest = elimination_order(self.sizes, scopes)

    def cost(self, choice: Sequence[int]) -> float:
        """Return the cost of a choice."""
        return sum(table.at(choice) for table in self.costs)

    def gain(self, choice: Sequence[int]) -> float:
        """Return the gain of a choice."""
        return sum(table.at(choice) for table in self.gains)

    def cheapest(self) -> tuple[int, ...]:
        """Return the choice of the least cost."""
        tables = [Table(t.scope, -t.values) for t in self.costs]
        return maximise(tables, self.sizes, self.order)[1]

    def priced(self, price: float) -> tuple[float, tuple[int, ...]]:
        """Return the most gain minus ``price`` times cost, and the choice that has it."""
        tables = [*self.gains, *(Table(t.scope, -price * t.values) for t in self.costs)]
        return maximise(tables, self.sizes, self.order)

    def solve(self, budget: float, start: Sequence[int] | None = None) -> Solution | None:
        """Return the choice of the most gain that costs at most ``budget``; None if none does.

        Args:
            budget: of the cost.
            start: a choice that is known; used where it fits and is better.
        """
        allowed = budget + _SLACK * max(1.0, abs(budget))
        value, best = self.priced(0.0)
        bound = value
        if self.cost(best) > allowed:
            cheap = self.cheapest()
            if self.cost(cheap) > allowed:
                return None
            best, bound = self._bracketed(allowed, cheap, bound)
        if start is not None and self.cost(start) <= allowed and self.gain(start) > self.gain(best):
            best = tuple(start)
        best = self._improved(best, allowed)
        gain = self.gain(best)
        return Solution(best, self.cost(best), gain, max(bound, gain))

    def _bracketed(
        self, budget: float, cheap: tuple[int, ...], bound: float
    ) -> tuple[tuple[int, ...], float]:
        """Search the price of cost; return the best choice within the budget, and the bound."""
        best, low, high, price = cheap, 0.0, math.inf, 1.0
        for _ in range(_BISECTIONS):
            value, choice = self.priced(price)
            bound = min(bound, value + price * budget)
            if self.cost(choice) <= budget:
                high = price
                best = max(best, choice, key=self.gain)
            else:
                low = price
            if math.isinf(high):
                price = 8 * low
            elif low == 0:
                price = high / 8
            elif high / low < 1 + 1e-6:
                break
            else:
                price = math.sqrt(low * high)
        return best, bound

    def _improved(self, choice: tuple[int, ...], budget: float) -> tuple[int, ...]:
        """Return the choice after moves, single or paired, that gain more and still fit."""
        now = list(choice)
        touching = [
            ([t for t in self.costs if v in t.scope], [t for t in self.gains if v in t.scope])
            for v in range(len(self.sizes))
        ]
        cost = self.cost(now)
        for _ in range(_MOVES):
            moves = [_moves(now, v, *touching[v]) for v in range(len(now))]
            found = self._single(moves, budget - cost) or self._paired(now, moves, budget - cost)
            if found is None:
                break
            for v, candidate in found:
                now[v] = candidate
            cost = self.cost(now)
        return tuple(now)

    def _single(
        self, moves: list[tuple[np.ndarray, np.ndarray]], left: float
    ) -> list[tuple[int, int]] | None:
        best, found = 0.0, None
        for v, (costs, gains) in enumerate(moves):
            fits = np.where(costs <= left, gains, -np.inf)
            candidate = int(np.argmax(fits))
            if fits[candidate] > best + _SLACK * max(1.0, abs(best)):
                best, found = float(fits[candidate]), [(v, candidate)]
        return found

    def _paired(
        self, now: list[int], moves: list[tuple[np.ndarray, np.ndarray]], left: float
    ) -> list[tuple[int, int]] | None:
        """Return two moves, one that gives and one that takes, checked together."""
        found: list[tuple[float, int, int, int, int]] = []
        if not moves:
            return None
        starts = np.concatenate([[0], np.cumsum([len(costs) for costs, _ in moves])])
        every_cost = np.concatenate([costs for costs, _ in moves])
        every_gain = np.concatenate([gains for _, gains in moves])
        for v, (costs, gains) in enumerate(moves):
            mine = slice(starts[v], starts[v + 1])
            for candidate in np.nonzero((gains < 0) & (costs < 0))[0]:
                room, loss = left - costs[candidate], gains[candidate]
                fits = np.where(every_cost <= room, every_gain + loss, -np.inf)
                fits[mine] = -np.inf
                k = int(np.argmax(fits))
                if fits[k] > 0:
                    u = int(np.searchsorted(starts, k, side="right")) - 1
                    found.append((float(fits[k]), v, int(candidate), u, k - int(starts[u])))
        cost, gain = self.cost(now), self.gain(now)
        for _, v, a, u, b in sorted(found, reverse=True)[:16]:
            tried = list(now)
            tried[v], tried[u] = a, b
            better = self.gain(tried) > gain + _SLACK * max(1.0, abs(gain))
            if better and self.cost(tried) <= cost + left:
                return [(v, a), (u, b)]
        return None


def _moves(
    now: list[int], v: int, costs: Sequence[Table], gains: Sequence[Table]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each candidate of one variable adds to cost and gain, the others kept."""
    both = []
    for tables in (costs, gains):
        line: np.ndarray = np.zeros(1)
        for table in tables:
            at = tuple(slice(None) if u == v else now[u] for u in table.scope)
            line = line + table.values[at]
        both.append(line - line[now[v]] if len(line) > 1 else line * 0.0)
    length = max(len(line) for line in both)
    first, second = (np.broadcast_to(line, (length,)) for line in both)
    return first, second


def _merged(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return one table per scope."""
    by_scope: dict[tuple[int, ...], np.ndarray] = {}
    for table in tables:
        known = by_scope.get(table.scope)
        by_scope[table.scope] = table.values if known is None else known + table.values
    return tuple(Table(scope, values) for scope, values in by_scope.items())


def elimination_order(
    sizes: Sequence[int], scopes: set[tuple[int, ...]]
) -> tuple[tuple[int, ...], int]:
    """Return an order that makes the least table next, and the size of the largest one."""
    neighbours: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
    for scope in scopes:
        for v in scope:
            neighbours[v] |= set(scope) - {v}
    order, largest = [], 1
    while neighbours:
        entries = {
            v: sizes[v] * math.prod(sizes[u] for u in near) for v, near in neighbours.items()
        }
        v = min(entries, key=lambda u: (entries[u], u))
        largest = max(largest, entries[v])
        near = neighbours.pop(v)
        for u in near:
            neighbours[u] = (neighbours[u] | near) - {u, v}
        order.append(v)
    return tuple(order), largest


def maximise(
    tables: Sequence[Table], sizes: Sequence[int], order: Sequence[int]
) -> tuple[float, tuple[int, ...]]:
    """Return the greatest sum of the tables, and the choice that has it."""
    left = list(tables)
    decided: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    for v in order:
        mine = [table for table in left if v in table.scope]
        left = [table for table in left if v not in table.scope]
        rest = tuple(sorted({u for table in mine for u in table.scope} - {v}))
        total = np.zeros([sizes[u] for u in rest] + [sizes[v]])
        for table in mine:
            total += _aligned(table, (*rest, v))
        decided.append((v, rest, np.argmax(total, axis=-1)))
        left.append(Table(rest, np.max(total, axis=-1)))
    value = sum(float(table.values) for table in left)
    choice = [0] * len(sizes)
    for v, rest, picks in reversed(decided):
        choice[v] = int(picks[tuple(choice[u] for u in rest)])
    return value, tuple(choice)


def _aligned(table: Table, scope: tuple[int, ...]) -> np.ndarray:
    """Return a table's values with one axis per variable of a scope in another order."""
    axes = [table.scope.index(u) for u in scope if u in table.scope]
    values = np.transpose(table.values, axes)
    sizes = iter(values.shape)
    return values.reshape([next(sizes) if u in table.scope else 1 for u in scope])
