"""What a study of stages tells the frontier sampler: dear values, and the cheaper ones below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from optuna.trial import TrialState

from tadnn.search.entrants import Entrant, Plan
from tadnn.search.frontier import STARTUP, Candidate, History


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
    level = next(
        (s for s in range(plan.last, 0, -1) if sum(e.reached(s) for e, _ in known) >= STARTUP), 0
    )
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


def _losses(entrants: Sequence[Entrant], stage: int, objectives: int) -> np.ndarray:
    rows = [entrant.results[stage].losses for entrant in entrants]
    return np.array(rows, dtype=float).reshape(len(rows), objectives)
