"""One worker's loop: take a trial, evaluate it, tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from tadnn.errors import (
    CorruptFile,
    DataError,
    MissingPackage,
    SettingMismatch,
    TadnnError,
    UnknownName,
    Unwritable,
    WorkFailed,
)
from tadnn.search.entrants import Plan
from tadnn.search.frontier import Exhausted
from tadnn.search.ledger import Ledger
from tadnn.search.objective import (
    DRAWN_ATTR,
    ERROR_ATTR,
    NET_ATTR,
    PHASE_NET_ATTR,
    RESULT_ATTR,
    Evaluator,
    Outcome,
    pack_net,
)
from tadnn.search.owner import WORKER_ATTR, Owner
from tadnn.search.relay import Relay
from tadnn.search.sampler import DistinctSampler
from tadnn.search.stages import End, Go, Wait

#: So many failures in a row, without a success, are no accident.
MAX_FAILURES_IN_A_ROW = 20
#: So many workers died of one trial that it is the trial's doing.
MAX_TAKEN = 5

_POLL_S = 0.05
# Trainings take longer, and trials that wait cost a reading each time.
_TRAINING_POLL_S = 0.25
# Between asking for a number and writing its owner down lie milliseconds.
_ASKING_S = 600.0

# Nothing that another architecture would do better at: these end the search.
_NOT_THE_ARCHITECTURE = (
    CorruptFile,
    DataError,
    MissingPackage,
    SettingMismatch,
    UnknownName,
    Unwritable,
)
# torch reports shapes, memory and devices as RuntimeError.
_THE_ARCHITECTURE = (TadnnError, RuntimeError, ArithmeticError, MemoryError, ValueError)

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


class Worker:
    """Evaluates trials of one study until it has as many distinct completed ones as wanted.

    Several workers may share a study, in this process's lifetime or another's. Who takes which
    trial is decided under ``lock``; a trial whose worker died is taken up again in place, under
    its own number and with the choices it has.

    Args:
        study: its sampler is replaced.
        evaluator: of the study's spec.
        lock: held while a trial is taken; one per study on this machine.
        shared: whether other machines, which the lock doesn't reach, may work on the study.
        on_change: called with the number of completed trials after every change.
    """

    def __init__(
        self,
        study: optuna.Study,
        evaluator: Evaluator,
        lock: AbstractContextManager[object],
        shared: bool = False,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        spec = evaluator.spec
        self._study, self._evaluator, self._lock = study, evaluator, lock
        self._wanted, self._shared = spec.trials, shared
        self._ledger = Ledger(evaluator.space)
        self._owner = Owner.current()
        self._size = evaluator.space.size()
        self._report = on_change or (lambda complete: None)
        plan = Plan.of(spec)
        self._sampler = DistinctSampler(
            evaluator.space,
            spec.sampler,
            spec.seed,
            self._ledger,
            *evaluator.free(),
            snap=evaluator.snap,
            plan=plan,
        )
        self._snaps = evaluator.snap is not None
        study.sampler = self._sampler
        self._exhausted = False
        self._relay = None if plan is None else Relay(study, plan, spec.trials, self._owner)
        self._poll_s = _POLL_S if plan is None else _TRAINING_POLL_S

    def run(self) -> Ended:
        """Work until nothing is left to do.

        Raises:
            WorkFailed: architecture after architecture fails.
        """
        failures = 0
        while True:
            with self._lock:
                taken = self._take()
            self._report(self._ledger.complete_count)
            if isinstance(taken, Ended):
                return taken
            if taken is None:
                time.sleep(self._poll_s)
                continue
            reason = self._evaluate(taken)
            failures = 0 if reason is None else failures + 1
            if failures >= MAX_FAILURES_IN_A_ROW:
                raise WorkFailed(
                    f"{failures} architectures failed one after the other; the last one, "
                    f"trial {taken.trial.number}: {reason}"
                )

    def _take(self) -> Taken | Ended | None:
        """Return the next trial; None: there is none, but others may still give one back."""
        while True:
            self._ledger.refresh(self._study)
            if self._give_back_the_dead():
                self._ledger.refresh(self._study)
            complete = self._ledger.complete_count
            running = self._ledger.running
            stage = 0
            if self._relay is None:
                if complete >= self._wanted:
                    return Ended("done", complete)
                if complete + len(running) >= self._wanted:
                    return self._idle(running, complete)
                if not self._ledger.waiting and self._is_used_up():
                    return self._none_left(running, complete)
                trial = self._study.ask()
            else:
                step = self._relay.next_step(self._ledger.trials, self._is_used_up())
                if isinstance(step, Wait):
                    return self._idle(running, complete)
                if isinstance(step, End):
                    short = step.why == "done" and complete < self._wanted
                    return Ended("exhausted" if short else step.why, complete)
                claimed = self._relay.claim(step)
                if claimed is None:
                    continue
                trial, stage = claimed, step.stage if isinstance(step, Go) else 0
            try:
                taken = Taken(trial, self._settle(trial), stage)
            except Exhausted as error:
                # A trial that was taken up again found that others have all it could become.
                self._fail(trial, str(error))
                if self._relay is None:
                    return self._none_left(running, complete)
                self._exhausted = True
                continue
            duplicate = self._older_twin(taken) if self._shared and stage == 0 else None
            if duplicate is None:
                return taken
            self._fail(trial, f"duplicate of trial {duplicate}")

    def _is_used_up(self) -> bool:
        return self._exhausted or self._ledger.seen_count >= self._size

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
        if self._ledger.key_of(trial) is not None:
            return written
        arch = trial.relative_params
        if self._snaps:
            trial.set_user_attr(DRAWN_ATTR, self._sampler.drawn)
        for name, value in arch.items():
            if name not in written:
                # What trial.suggest_* does, less its checks of a proposal that is ours.
                distribution = self._sampler.distributions[name]
                self._storage.set_trial_param(
                    trial._trial_id, name, distribution.to_internal_repr(value), distribution
                )
        self._ledger.remember(trial.number, self._sampler.last_key)
        return arch

    def _give_back_the_dead(self) -> bool:
        """Make the trials of dead workers wait; the next ask takes the one of lowest number.

        Returns:
            Whether there were any.
        """
        dead = False
        for trial in self._ledger.running:
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
            self._ledger.refresh(self._study)
            older = [t for t in self._ledger.running if t.number < trial.number]
            # One that is still writing its choices down might turn out the same.
            if not any(self._ledger.key_of(t) is None and self._is_fresh(t) for t in older):
                break
            time.sleep(_POLL_S)
        number = self._ledger.number_of(key)
        return number if number is not None and number < trial.number else None

    @staticmethod
    def _is_fresh(trial: FrozenTrial) -> bool:
        started = trial.datetime_start or datetime.min
        return (datetime.now() - started).total_seconds() < _ASKING_S

    def _evaluate(self, taken: Taken) -> str | None:
        """Evaluate and tell; return the reason of a failure."""
        trial, stage, started = taken.trial, taken.stage, monotonic()
        known = None if self._relay is None else self._relay.recall(trial, stage)
        try:
            judged = None if known is None else known.judged
            outcome = self._evaluator.evaluate(taken.arch, stage, judged)
        except _NOT_THE_ARCHITECTURE:
            self._give_back(trial)
            raise
        except _THE_ARCHITECTURE as error:
            reason = f"{type(error).__name__}: {error}"
            if self._relay is not None:
                self._relay.record_failure(trial, stage, monotonic() - started)
            self._fail(trial, reason)
            return reason
        except BaseException:
            # Ctrl-C, or a bug of ours: the trial has done nothing wrong.
            self._give_back(trial)
            raise
        seconds = monotonic() - started if known is None else known.seconds
        self._complete(taken, outcome, seconds)
        return None

    def _complete(self, taken: Taken, outcome: Outcome, seconds: float) -> None:
        trial = taken.trial
        trial.set_user_attr(RESULT_ATTR, outcome.result)
        trial.set_user_attr(NET_ATTR, pack_net(outcome.net))
        for phase, net in outcome.phases.items():
            trial.set_user_attr(PHASE_NET_ATTR + phase, pack_net(net))
        # A trial that died between here and its end has them; Optuna sets them only once.
        known = trial.constraints if outcome.violations else {}
        for key, violation in outcome.violations.items():
            if key not in known:
                trial.set_constraint(key, violation)
        state = TrialState.COMPLETE
        if self._relay is not None:
            state = self._relay.record(trial, taken.stage, outcome, seconds)
        if state == TrialState.WAITING:
            self._give_back(trial)  # until it is promoted, or stopped
        else:
            self._end(trial, state, outcome.values if state == TrialState.COMPLETE else None)

    def _fail(self, trial: Trial, reason: str) -> None:
        trial.set_user_attr(ERROR_ATTR, reason)
        self._end(trial, TrialState.FAIL, None)

    def _end(self, trial: Trial, state: TrialState, values: Sequence[float] | None) -> None:
        # What study.tell does, less reading the trial back twice and copying it, which costs a
        # fifth of the loop.
        frozen = trial._get_latest_trial()
        self._sampler.after_trial(self._study, frozen, state, values)
        self._storage.set_trial_state_values(trial._trial_id, state, values)

    def _give_back(self, trial: Trial) -> None:
        self._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    @property
    def _storage(self) -> optuna.storages.BaseStorage:
        # Optuna has no public way back from RUNNING to WAITING.
        return self._study._storage
