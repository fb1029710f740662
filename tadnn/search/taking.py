"""Which trial a worker takes next, and whose trials are given back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from tadnn.search.entrants import Plan
from tadnn.search.frontier import Exhausted
from tadnn.search.ledger import Ledger
from tadnn.search.objective import DRAWN_ATTR, ERROR_ATTR, Evaluator
from tadnn.search.owner import WORKER_ATTR, Owner
from tadnn.search.relay import Relay
from tadnn.search.sampler import DistinctSampler
from tadnn.search.stages import End, Foresight, Go, Wait

#: So many workers died of one trial that it is the trial's doing.
MAX_TAKEN = 5

_POLL_S = 0.05
# Trainings take longer, and trials that wait cost a reading each time.
_TRAINING_POLL_S = 0.25
# Between asking for a number and writing its owner down lie milliseconds.
_ASKING_S = 600.0

Ending = Literal["done", "exhausted", "elsewhere", "budget"]


@dataclass(frozen=True)
class Ended:
    """Why a worker stopped.

    ``done``: the study has its trials. ``exhausted``: the space has no architecture left.
    ``elsewhere``: only workers on other machines still have trials. ``budget``: what is left of
    it is too little for any training that is due. ``complete`` counts the study's distinct
    completed trials; where there are stages, those that ended the first one.
    """

    why: Ending
    complete: int


@dataclass(frozen=True)
class Taken:
    """A trial that is ours to evaluate, with all its choices written down."""

    trial: Trial
    arch: Mapping[str, Any]
    stage: int = 0


class Taker:
    """Takes trials of one study for one worker, and ends them.

    Args:
        study: its sampler is replaced.
        evaluator: of the study's spec.
        shared: whether other machines may work on the study.

    Attributes:
        ledger: what the study has evaluated.
        relay: takes trials from stage to stage; None where there are no stages.
        poll_s: how long to wait before asking again.
    """

    def __init__(self, study: optuna.Study, evaluator: Evaluator, shared: bool) -> None:
        spec, plan = evaluator.spec, Plan.of(evaluator.spec)
        self._study, self._evaluator = study, evaluator
        self._wanted, self._shared = spec.trials, shared
        self._owner = Owner.current()
        self._size = evaluator.space.size()
        self._exhausted = False
        self.ledger = Ledger(evaluator.space)
        self.relay = None if plan is None else Relay(study, plan, spec.trials, self._owner)
        self.poll_s = _POLL_S if plan is None else _TRAINING_POLL_S
        self._sampler = DistinctSampler(
            evaluator.space,
            spec.sampler,
            spec.seed,
            self.ledger,
            *evaluator.free(),
            snap=evaluator.snap,
            plan=plan,
        )
        study.sampler = self._sampler

    def take(self) -> Taken | Ended | None:
        """Return the next trial; None: there is none, but others may still give one back."""
        while True:
            self.ledger.refresh(self._study)
            if self._give_back_the_dead():
                self.ledger.refresh(self._study)
            complete = self.ledger.complete_count
            running = self.ledger.running
            stage = 0
            if self.relay is None:
                if complete >= self._wanted:
                    return Ended("done", complete)
                if complete + len(running) >= self._wanted:
                    return self._idle(running, complete)
                if not self.ledger.waiting and self._is_used_up():
                    return self._none_left(running, complete)
                trial = self._study.ask()
            else:
                foresee = self._foresee()
                step = self.relay.next_step(self.ledger.trials, self._is_used_up(), foresee)
                if isinstance(step, Wait):
                    return self._idle(running, complete)
                if isinstance(step, End):
                    short = step.why == "done" and complete < self._wanted
                    return Ended("exhausted" if short else step.why, complete)
                claimed = self.relay.claim(step)
                if claimed is None:
                    continue
                trial, stage = claimed, step.stage if isinstance(step, Go) else 0
            try:
                taken = Taken(trial, self._settle(trial), stage)
            except Exhausted as error:
                # A trial that was taken up again found that others have all it could become.
                self.fail(trial, str(error))
                if self.relay is None:
                    return self._none_left(running, complete)
                self._exhausted = True
                continue
            duplicate = self._older_twin(taken) if self._shared and stage == 0 else None
            if duplicate is None:
                return taken
            self.fail(trial, f"duplicate of trial {duplicate}")

    def _foresee(self) -> Foresight | None:
        if self._evaluator.spec.sampler != "frontier":
            return None
        return self._sampler.guide.foresight(self._study, self.ledger.trials)

    def _is_used_up(self) -> bool:
        return self._exhausted or self.ledger.seen_count >= self._size

    def _none_left(self, running: list[FrozenTrial], complete: int) -> Ended | None:
        return self._idle(running, complete) if running else Ended("exhausted", complete)

    def _idle(self, running: list[FrozenTrial], complete: int) -> Ended | None:
        owners = [Owner.of(trial.user_attrs) for trial in running]
        if all(owner is not None and not owner.is_here() for owner in owners):
            return Ended("elsewhere", complete)
        return None

    def _settle(self, trial: Trial) -> Mapping[str, Any]:
        """Write down who has the trial, then its choices; return them."""
        before = Owner.of(trial.user_attrs)
        owner = self._owner if before is None else replace(self._owner, taken=before.taken + 1)
        trial.set_user_attr(WORKER_ATTR, owner.to_dict())
        written = trial.params
        if self.ledger.key_of(trial) is not None:
            return written
        arch = trial.relative_params
        if self._evaluator.snap is not None:
            trial.set_user_attr(DRAWN_ATTR, self._sampler.drawn)
        for name, value in arch.items():
            if name not in written:
                # What trial.suggest_* does, less its checks of a proposal that is ours.
                distribution = self._sampler.distributions[name]
                self._storage.set_trial_param(
                    trial._trial_id, name, distribution.to_internal_repr(value), distribution
                )
        self.ledger.remember(trial.number, self._sampler.last_key)
        return arch

    def _give_back_the_dead(self) -> bool:
        """Make the trials of dead workers wait; the next ask takes the one of lowest number.

        Returns:
            Whether there were any.
        """
        dead = False
        for trial in self.ledger.running:
            owner = Owner.of(trial.user_attrs)
            if not self._is_dead(trial, owner):
                continue
            dead = True
            if owner is not None and owner.taken >= MAX_TAKEN:
                reason = f"its worker died {owner.taken} times"
                self._storage.set_trial_user_attr(trial._trial_id, ERROR_ATTR, reason)
                self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            else:
                self._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        return dead

    def _is_dead(self, trial: FrozenTrial, owner: Owner | None) -> bool:
        if owner is None:
            # Taking a trial and signing it is one step under the lock, so here its taker died;
            # on another machine it may be in the middle of it.
            started = trial.datetime_start or datetime.min
            age = (datetime.now() - started).total_seconds()
            return not self._shared or age > _ASKING_S
        # This process takes a trial only after it has ended the one before.
        return owner.is_same(self._owner) or (owner.is_here() and not owner.is_alive())

    def _older_twin(self, taken: Taken) -> int | None:
        """Return the lower number of a trial with the same architecture."""
        key, trial = self._evaluator.space.key(taken.arch), taken.trial
        while True:
            self.ledger.refresh(self._study)
            older = [t for t in self.ledger.running if t.number < trial.number]
            # One that is still writing its choices down might turn out the same.
            if not any(self.ledger.key_of(t) is None and self._is_fresh(t) for t in older):
                break
            time.sleep(_POLL_S)
        number = self.ledger.number_of(key)
        return number if number is not None and number < trial.number else None

    @staticmethod
    def _is_fresh(trial: FrozenTrial) -> bool:
        started = trial.datetime_start or datetime.min
        return (datetime.now() - started).total_seconds() < _ASKING_S

    def fail(self, trial: Trial, reason: str) -> None:
        """End a trial that failed, with the reason."""
        trial.set_user_attr(ERROR_ATTR, reason)
        self.end(trial, TrialState.FAIL, None)

    def end(self, trial: Trial, state: TrialState, values: Sequence[float] | None) -> None:
        """End a trial."""
        # What study.tell does, less reading the trial back twice and copying it, which costs a
        # fifth of the loop.
        frozen = trial._get_latest_trial()
        self._sampler.after_trial(self._study, frozen, state, values)
        self._storage.set_trial_state_values(trial._trial_id, state, values)

    def give_back(self, trial: Trial) -> None:
        """Let a trial wait: for another worker, or for its promotion."""
        self._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    @property
    def _storage(self) -> optuna.storages.BaseStorage:
        # Optuna has no public way back from RUNNING to WAITING.
        return self._study._storage
