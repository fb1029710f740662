"""Stages: which trial is trained longer next, what is stopped early, and when all is done.

Asynchronous successive halving with several objectives: whoever is free promotes the best trial
that waits, at the highest stage that may pass one on, or else begins a new one (L. Li et al., "A
System for Massively Parallel Hyperparameter Tuning", 2020, algorithm 2; R. Schmucker et al.,
"Multi-objective Asynchronous Successive Halving", 2021, which orders by non-dominated sorting).
Other than there, a stage never passes on more than its share, however the order changes later:
the share is what a budget is planned by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from optuna.trial import TrialState

from tadnn.pareto import crowding_distance, front_mask
from tadnn.search.entrants import Entrant, Plan
from tadnn.search.stage_budget import Purse

#: Of the trials that wait in a stage, so many stay: whoever is behind them has no chance.
MOST_WAITING: Final = 32


@dataclass(frozen=True)
class Go:
    """Run a trial's stage: one that was promoted, interrupted, or waits since the beginning."""

    number: int
    stage: int


@dataclass(frozen=True)
class Begin:
    """Begin a new trial."""


@dataclass(frozen=True)
class Wait:
    """Others may still bring something to promote."""


@dataclass(frozen=True)
class End:
    """Nothing is left to do, or nothing that the budget has room for."""

    why: Literal["done", "budget"]


Step = Go | Begin | Wait | End

#: What trials that ended a stage are expected to reach, by number; None: nobody knows.
Foresight = Callable[[int], Mapping[int, Sequence[float]] | None]


def next_step(
    plan: Plan,
    entrants: Sequence[Entrant],
    wanted: int,
    exhausted: bool,
    foresee: Foresight | None = None,
) -> Step:
    """Return what a free worker does next; it depends on the arguments alone.

    Args:
        plan: the stages.
        entrants: every trial, by number.
        wanted: how many shall go through the first stage.
        exhausted: whether the space has nothing new.
        foresee: tells what the trials of a stage will reach, where somebody has learned that;
            None: what the stage told stands for it.
    """
    interrupted = [e for e in entrants if e.is_interrupted(plan.last)]
    for entrant in interrupted:
        if entrant.stage > 0 or entrant.reached(0):
            return Go(entrant.number, entrant.stage)  # it was allowed when it began
    purse = Purse(plan, entrants)
    starved = False
    for stage in reversed(range(plan.last)):
        found, short = _promotion(plan, entrants, purse, stage, foresee, closing=False)
        if found is not None:
            return found
        starved = starved or short
    entered = sum(e.reached(0) or e.is_running for e in entrants)
    # Where nothing has finished, new ones may be small enough for what is left.
    useful = not (starved and purse.finished)
    if useful and entered < wanted and (interrupted or not exhausted):
        flops = interrupted[0].flops if interrupted else 0
        if purse.affords(flops, 0):
            return Go(interrupted[0].number, 0) if interrupted else Begin()
        starved = True
    # Nothing comes to a stage any more once all before it are at rest: at least one goes on.
    for stage in range(plan.last):
        if any(e.is_running and e.stage <= stage for e in entrants):
            return Wait()
        found, short = _promotion(plan, entrants, purse, stage, foresee, closing=True)
        if found is not None:
            return found
        starved = starved or short
    if any(e.is_running for e in entrants):
        return Wait()
    return End("budget" if starved else "done")


def surplus(
    plan: Plan,
    entrants: Sequence[Entrant],
    ended: bool = False,
    foresee: Foresight | None = None,
) -> list[int]:
    """Return the trials that are stopped early.

    Args:
        plan: the stages.
        entrants: every trial.
        ended: whether the search is over: then all that wait are stopped.
        foresee: see `next_step`.
    """
    most = 0 if ended else MOST_WAITING
    return [
        entrant.number
        for stage in range(plan.last)
        if sum(e.stage == stage and e.is_paused(plan.last) for e in entrants) > most
        for entrant in list(_waiting(plan, entrants, stage, foresee))[most:]
    ]


def order(losses: np.ndarray) -> np.ndarray:
    """Return row numbers from the best to the worst, [n].

    By non-dominated rank, within a rank the loneliest first (Deb et al., 2002), of equal ones the
    first, and rows that are not finite last.

    Args:
        losses: [n, d].
    """
    ranked: list[int] = []
    finite = np.isfinite(losses).all(axis=1)
    left = np.flatnonzero(finite)
    while len(left):
        # Of equal rows the mask has only the first; the others belong to the same rank.
        front = losses[left[front_mask(losses[left])]]
        on_front = (losses[left][:, None, :] == front[None, :, :]).all(axis=2).any(axis=1)
        layer = left[on_front]
        crowding = crowding_distance(losses[layer])
        ranked += layer[np.lexsort((layer, -crowding))].tolist()
        left = left[~on_front]
    return np.array([*ranked, *np.flatnonzero(~finite)], dtype=int)


def _promotion(
    plan: Plan,
    entrants: Sequence[Entrant],
    purse: Purse,
    stage: int,
    foresee: Foresight | None,
    closing: bool,
) -> tuple[Go | None, bool]:
    """Return the promotion out of a stage, and whether only the budget was in its way.

    A stage that more may come to rounds its share down, one that is ``closing`` up.
    """
    reached = sum(e.reached(stage) and e.feasible for e in entrants)
    # 0.29 * 100 is a little less than 29.
    share = round(plan.keep[stage] * reached, 9)
    quota = math.ceil(share) if closing else math.floor(share)
    if sum(e.stage > stage for e in entrants) >= quota:
        return None, False
    short = False
    for entrant in _waiting(plan, entrants, stage, foresee):
        if purse.affords(entrant.flops, stage + 1):
            return Go(entrant.number, stage + 1), short
        short = True
    return None, short


def _waiting(
    plan: Plan, entrants: Sequence[Entrant], stage: int, foresee: Foresight | None
) -> Iterator[Entrant]:
    """Yield the trials that wait in a stage, the most promising first.

    They are ranked among all that were there: what was promoted before covers its surroundings.
    """
    there = [e for e in entrants if e.feasible and e.reached(stage)]
    if not any(e.stage == stage and e.state == TrialState.WAITING for e in there):
        return
    told = None if foresee is None else foresee(stage)
    rows = [e.results[stage].losses if told is None else told[e.number] for e in there]
    losses = np.array(rows, dtype=float)
    for row in order(losses):
        if there[row].stage == stage and there[row].is_paused(plan.last):
            yield there[row]
