"""Taking trials from stage to stage in a study's storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, Trial, TrialState

from tadnn.search.entrants import (
    PROMOTED_ATTR,
    STAGE_ATTR,
    Plan,
    entrants_of,
    failed_record,
    stage_record,
)
from tadnn.search.judges import Judgement
from tadnn.search.owner import WORKER_ATTR, Owner
from tadnn.search.stages import Begin, End, Foresight, Go, Step, next_step, surplus

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

    from tadnn.search.objective import Outcome


@dataclass(frozen=True)
class Recalled:
    """What a stage told, and the seconds that it took."""

    judged: Judgement
    seconds: float


class Relay:
    """One worker's view of a study of stages.

    A trial that waits for its promotion is WAITING, one that is stopped early PRUNED, one that
    ended the last stage COMPLETE. What its stages told, and that it was promoted, stands on the
    trial: whoever dies, the same promotions follow.

    Args:
        study: the study.
        plan: its stages.
        wanted: how many trials go through the first stage.
        owner: this worker.
    """

    def __init__(self, study: Study, plan: Plan, wanted: int, owner: Owner) -> None:
        self._study, self._plan, self._wanted, self._owner = study, plan, wanted, owner
        self._directions = study.directions
        self._ids: dict[int, int] = {}

    def next_step(
        self, trials: Sequence[FrozenTrial], exhausted: bool, foresee: Foresight | None = None
    ) -> Step:
        """Stop early what has no chance, and return what to do next; to be called under the lock.

        Args:
            trials: every trial, as it is now.
            exhausted: whether the space has nothing new.
            foresee: see `tadnn.search.stages.next_step`.
        """
        self._ids = {trial.number: trial._trial_id for trial in trials}
        entrants = entrants_of(trials, self._directions)
        stopped = set(surplus(self._plan, entrants, foresee=foresee))
        step = next_step(self._plan, entrants, self._wanted, exhausted, foresee)
        # With a larger budget a search goes on; otherwise nothing will be promoted any more.
        if isinstance(step, End) and step.why == "done":
            stopped = set(surplus(self._plan, entrants, ended=True))
        if isinstance(step, Go):
            stopped.discard(step.number)
        for number in sorted(stopped):
            self._storage.set_trial_state_values(self._ids[number], TrialState.PRUNED)
        return step

    def claim(self, step: Go | Begin) -> Trial | None:
        """Take the trial of a step; None: another machine was faster."""
        if isinstance(step, Begin):
            # What study.ask does, less popping trials that wait for something else.
            return Trial(self._study, self._storage.create_new_trial(self._study._study_id))
        trial_id = self._ids[step.number]
        if self._storage.get_trial(trial_id).user_attrs.get(PROMOTED_ATTR, 0) < step.stage:
            # The owner first: one who died in a stage before is no owner of this one. It is
            # written again, and counted, where every trial's is.
            owner = replace(self._owner, taken=0)
            self._storage.set_trial_user_attr(trial_id, WORKER_ATTR, owner.to_dict())
            self._storage.set_trial_user_attr(trial_id, PROMOTED_ATTR, step.stage)
        if not self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
            return None
        self._study._thread_local.cached_all_trials = None
        return Trial(self._study, trial_id)

    def recall(self, trial: Trial, stage: int) -> Recalled | None:
        """Return what a stage told before its worker died; None: it has not ended."""
        record = trial.user_attrs.get(f"{STAGE_ATTR}{stage}")
        if record is None or record["values"] is None:
            return None
        return Recalled((record["proxy"], record["trained"]), record.get("seconds", 0.0))

    def record(self, trial: Trial, stage: int, outcome: Outcome, seconds: float) -> TrialState:
        """Write down what a stage told; return the state that the trial goes to."""
        proxy, trained = outcome.result["proxy"], outcome.result["trained"]
        record = stage_record(outcome.values, proxy, trained, seconds)
        trial.set_user_attr(f"{STAGE_ATTR}{stage}", record)
        if stage == self._plan.last:
            return TrialState.COMPLETE
        feasible = all(violation <= 0 for violation in outcome.violations.values())
        return TrialState.WAITING if feasible else TrialState.PRUNED

    def record_failure(self, trial: Trial, stage: int, seconds: float) -> None:
        """Write down what a training that failed has cost."""
        if self._plan.epochs[stage] is not None:
            trial.set_user_attr(f"{STAGE_ATTR}{stage}", failed_record(seconds))

    @property
    def _storage(self) -> BaseStorage:
        return self._study._storage
