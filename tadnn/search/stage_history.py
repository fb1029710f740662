"""What a study of stages tells the frontier sampler: dear values, and the cheaper ones below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from optuna.trial import TrialState

from tadnn.search.entrants import Entrant, Plan
from tadnn.search.frontier import STARTUP, Candidate, History, Proposer


def stage_history(
    known: Sequence[tuple[Entrant, Candidate]], plan: Plan, objectives: int
) -> History:
    """Return what is known to the sampler.

    The search is for the front of the dearest stage that enough trials have ended to learn from;
    the stages below are its cheaper versions, those above wait until they are enough.

    Args:
        known: every trial that has a point, other than the one that asks, and its point.
        plan: the stages.
        objectives: how many.
    """
    level = level_of([entrant for entrant, _ in known], plan)
    here = [(e, c) for e, c in known if e.reached(level)]
    below = [(e, c) for e, c in known if e.reached(0) and not e.reached(level)]
    open_ = [(e, c) for e, c in known if not e.reached(0)]
    failed = [c for e, c in open_ if e.state == TrialState.FAIL]
    # A training that failed is no place to look near, whatever the proxy said.
    failed += [c for e, c in below if e.state == TrialState.FAIL]
    below = [(e, c) for e, c in below if e.state != TrialState.FAIL]
    lower = []
    for stage in range(level):
        rows = [(e, c) for e, c in known if e.reached(stage)]
        lower.append(([c for _, c in rows], _losses([e for e, _ in rows], stage, objectives)))
    return History(
        points=[c for _, c in here],
        values=_losses([e for e, _ in here], level, objectives),
        feasible=np.array([e.feasible for e, _ in here], dtype=bool),
        pending=[c for e, c in open_ if e.state != TrialState.FAIL],
        failed=failed,
        lower=lower,
        stopped=[c for e, c in below if e.feasible],
        passed=[c for e, c in below if not e.feasible],
    )


def level_of(entrants: Sequence[Entrant], plan: Plan) -> int:
    """Return the dearest stage that enough trials have ended to learn from."""
    dear = range(plan.last, 0, -1)
    return next((s for s in dear if sum(e.reached(s) for e in entrants) >= STARTUP), 0)


def foreseen_losses(
    known: Sequence[tuple[Entrant, Candidate]], plan: Plan, stage: int, proposer: Proposer
) -> dict[int, tuple[float, ...]] | None:
    """Return what trials that ended a stage are expected to reach in a dearer one, by number.

    Args:
        known: every trial that has a point, and its point.
        plan: the stages.
        stage: which they ended.
        proposer: of the study's sampler.

    Returns:
        Losses in the dearest stage that enough trials have ended, of those that ended it what it
        told; None where that stage is no dearer than ``stage``.
    """
    level = level_of([entrant for entrant, _ in known], plan)
    there = [(e, c) for e, c in known if e.reached(stage)]
    if level <= stage or not there:
        return None
    history = stage_history(known, plan, len(there[0][0].results[stage].losses or ()))
    expected = proposer.expect(history, [candidate for _, candidate in there])
    if expected is None:
        return None
    return {
        entrant.number: entrant.results[level].losses or tuple(row)
        if entrant.reached(level)
        else tuple(row)
        for (entrant, _), row in zip(there, expected.tolist(), strict=True)
    }


def _losses(entrants: Sequence[Entrant], stage: int, objectives: int) -> np.ndarray:
    rows = [entrant.results[stage].losses for entrant in entrants]
    return np.array(rows, dtype=float).reshape(len(rows), objectives)
