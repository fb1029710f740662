"""One worker's loop: take a trial, evaluate it, tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic

import optuna
from optuna.trial import TrialState

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
from tadnn.search.objective import (
    NET_ATTR,
    PHASE_NET_ATTR,
    RESULT_ATTR,
    Evaluator,
    Outcome,
    pack_net,
)
from tadnn.search.taking import Ended, Taken, Taker

#: So many failures in a row, without a success, are no accident.
MAX_FAILURES_IN_A_ROW = 20

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
        self._evaluator, self._lock = evaluator, lock
        self._taker = Taker(study, evaluator, shared)
        self._report = on_change or (lambda complete: None)

    def run(self) -> Ended:
        """Work until nothing is left to do.

        Raises:
            WorkFailed: architecture after architecture fails.
        """
        failures = 0
        while True:
            with self._lock:
                taken = self._taker.take()
            self._report(self._taker.ledger.complete_count)
            if isinstance(taken, Ended):
                return taken
            if taken is None:
                time.sleep(self._taker.poll_s)
                continue
            reason = self._evaluate(taken)
            failures = 0 if reason is None else failures + 1
            if failures >= MAX_FAILURES_IN_A_ROW:
                raise WorkFailed(
                    f"{failures} architectures failed one after the other; the last one, "
                    f"trial {taken.trial.number}: {reason}"
                )

    def _evaluate(self, taken: Taken) -> str | None:
        """Evaluate and tell; return the reason of a failure."""
        trial, stage, started = taken.trial, taken.stage, monotonic()
        known = None if self._taker.relay is None else self._taker.relay.recall(trial, stage)
        try:
            judged = None if known is None else known.judged
            outcome = self._evaluator.evaluate(taken.arch, stage, judged)
        except _NOT_THE_ARCHITECTURE:
            self._taker.give_back(trial)
            raise
        except _THE_ARCHITECTURE as error:
            reason = f"{type(error).__name__}: {error}"
            if self._taker.relay is not None:
                self._taker.relay.record_failure(trial, stage, monotonic() - started)
            self._taker.fail(trial, reason)
            return reason
        except BaseException:
            # Ctrl-C, or a bug of ours: the trial has done nothing wrong.
            self._taker.give_back(trial)
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
        if self._taker.relay is not None:
            state = self._taker.relay.record(trial, taken.stage, outcome, seconds)
        if state == TrialState.WAITING:
            self._taker.give_back(trial)  # until it is promoted, or stopped
        else:
            self._taker.end(trial, state, outcome.values if state == TrialState.COMPLETE else None)
