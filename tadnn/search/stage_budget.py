"""What trainings have cost, what the next one will, and whether the budget has room for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from tadnn.search.entrants import Entrant, Plan


class Purse:
    """The budget of a study of stages as it stands.

    Seconds are those of trainings that ended, well or not, over all workers and runs; those that
    run are reckoned by what they will take. A training that was interrupted is done again and
    counts once, so that a resumed study is an undisturbed one.

    Args:
        plan: the stages and the budget.
        entrants: every trial.
    """

    def __init__(self, plan: Plan, entrants: Sequence[Entrant]) -> None:
        self._plan = plan
        self.spent_s = sum(r.seconds for e in entrants for r in e.results.values())
        #: FLOPs and seconds per epoch of every training that ended well.
        self._rates = [
            (entrant.flops, result.seconds / epochs)
            for entrant in entrants
            for stage, result in entrant.results.items()
            if (epochs := plan.epochs[stage]) is not None and result.losses is not None
        ]
        #: Whether a trial ended the last stage.
        self.finished = any(entrant.reached(plan.last) for entrant in entrants)
        running = [self.cost_s(e.flops, e.stage) or 0.0 for e in entrants if e.is_running]
        self._committed_s = sum(running)

    @property
    def left_s(self) -> float:
        """Seconds that nobody spent or is about to spend."""
        return self._plan.budget_s - self.spent_s - self._committed_s

    def cost_s(self, flops: int, stage: int) -> float | None:
        """Return what a stage's training of such a network takes; None: nobody knows yet.

        Of what was trained, the nearest in FLOPs tells the seconds of an epoch. Time grows more
        slowly than FLOPs while networks are small, so a square root bridges the distance.

        Args:
            flops: the network's; 0: unknown, then the median of all networks counts.
            stage: which.
        """
        epochs = self._plan.epochs[stage]
        if epochs is None:
            return 0.0
        if not self._rates:
            return None
        if flops == 0:
            return epochs * median(seconds for _, seconds in self._rates)
        near, seconds = min(self._rates, key=lambda rate: abs(math.log(max(rate[0], 1) / flops)))
        return epochs * seconds * math.sqrt(flops / max(near, 1))

    def whole_cost_s(self, flops: int, stage: int) -> float | None:
        """Return what it takes from a stage to the last one; None: nobody knows yet."""
        stages = range(stage, self._plan.last + 1)
        costs = [self.cost_s(flops, at) for at in stages]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    def affords(self, flops: int, stage: int) -> bool:
        """Tell whether a stage may be begun with such a network.

        While no trial has finished the last stage, what the rest of the way costs is kept back:
        a budget that many short trainings eat up would leave an empty front.
        """
        if self._plan.epochs[stage] is None:
            return True
        cost = self.cost_s(flops, stage) if self.finished else self.whole_cost_s(flops, stage)
        return self.left_s > 0 if cost is None else cost <= self.left_s
