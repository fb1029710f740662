"""A study of stages as plain data: its plan, and where each trial stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tadnn.search.objective import RESULT_ATTR

if TYPE_CHECKING:
    from tadnn.search.spec import StudySpec

#: Trial user attribute: what a stage told, by its number.
STAGE_ATTR: Final = "tadnn:stage:"
#: Trial user attribute: the stage that the trial was promoted to.
PROMOTED_ATTR: Final = "tadnn:promoted"


@dataclass(frozen=True)
class Plan:
    """The stages of a study, from the cheapest to the one that counts.

    Attributes:
        epochs: of each stage; None: a proxy.
        keep: of each stage but the last, the share that goes on.
        budget_s: seconds of training, of all workers and runs together.
    """

    epochs: tuple[float | None, ...]
    keep: tuple[float, ...] = ()
    budget_s: float = math.inf

    @classmethod
    def of(cls, spec: StudySpec) -> Plan | None:
        """Return the plan of a study; None where it has neither stages nor a budget."""
        budget_s = math.inf if spec.budget is None else 60.0 * spec.budget.train_minutes
        if spec.stages is not None:
            epochs = tuple(None if s.train is None else s.train.epochs for s in spec.stages)
            return cls(epochs, tuple(s.keep for s in spec.stages if s.keep is not None), budget_s)
        if spec.budget is not None and spec.accuracy is not None and spec.accuracy.train:
            return cls((spec.accuracy.train.epochs,), (), budget_s)
        return None

    @property
    def last(self) -> int:
        """The number of the stage that counts."""
        return len(self.epochs) - 1

    def label(self, stage: int) -> str:
        """Return what messages call a stage's work."""
        epochs = self.epochs[stage]
        if epochs is None:
            return "the proxy"
        return f"a training of {epochs} epoch{'' if epochs == 1 else 's'}"


@dataclass(frozen=True)
class StageResult:
    """What a stage told of a trial.

    Attributes:
        losses: the objectives with this stage's accuracy, minimised; None: it failed.
        seconds: that training took; 0 for a proxy.
    """

    losses: tuple[float, ...] | None
    seconds: float


@dataclass(frozen=True)
class Entrant:
    """A trial of a study of stages.

    Attributes:
        number: the trial's.
        state: its state.
        stage: the one it was promoted to; 0 at first.
        results: by stage, what ended.
        feasible: whether it keeps the constraints, as far as known.
        flops: of its network; 0 while unknown.
    """

    number: int
    state: TrialState
    stage: int
    results: Mapping[int, StageResult]
    feasible: bool = True
    flops: int = 0

    @classmethod
    def of(cls, trial: FrozenTrial, signs: Sequence[float]) -> Entrant:
        """Read a trial; ``signs`` are 1 where less is better, -1 where more is."""
        attributes = trial.user_attrs
        results = {
            int(key.removeprefix(STAGE_ATTR)): _result(record, signs)
            for key, record in attributes.items()
            if key.startswith(STAGE_ATTR)
        }
        return cls(
            trial.number,
            trial.state,
            int(attributes.get(PROMOTED_ATTR, 0)),
            results,
            all(violation <= 0 for violation in trial.constraints.values()),
            int(attributes.get(RESULT_ATTR, {}).get("flops", 0)),
        )

    def reached(self, stage: int) -> bool:
        """Tell whether a stage ended well."""
        return stage in self.results and self.results[stage].losses is not None

    @property
    def is_running(self) -> bool:
        """Whether a worker has it, for all that is known."""
        return self.state == TrialState.RUNNING

    def is_paused(self, last: int) -> bool:
        """Tell whether its stage ended well and it may be promoted."""
        waiting = self.state == TrialState.WAITING and self.feasible
        return waiting and self.stage < last and self.reached(self.stage)

    def is_interrupted(self, last: int) -> bool:
        """Tell whether its stage was begun, or asked for, and has not ended."""
        return self.state == TrialState.WAITING and not self.is_paused(last)


def entrants_of(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> list[Entrant]:
    """Return where the trials of a study stand, in their order."""
    signs = [-1.0 if d == StudyDirection.MAXIMIZE else 1.0 for d in directions]
    return [Entrant.of(trial, signs) for trial in trials]


def is_evaluated(trial: FrozenTrial) -> bool:
    """Tell whether a trial completed; where there are stages, whether the first one ended well."""
    first = trial.user_attrs.get(f"{STAGE_ATTR}0")
    return trial.state == TrialState.COMPLETE or (first is not None and first["values"] is not None)


def stage_record(
    values: Sequence[float],
    proxy: Mapping[str, Any] | None,
    trained: Mapping[str, Any] | None,
    seconds: float,
) -> dict[str, Any]:
    """Return what a trial stores of a stage that ended well."""
    record: dict[str, Any] = {"values": list(values), "proxy": proxy, "trained": trained}
    return {**record, "seconds": round(seconds, 3)} if trained else record


def failed_record(seconds: float) -> dict[str, Any]:
    """Return what a trial stores of a training that failed: it was paid for, too."""
    return {"values": None, "seconds": round(seconds, 3)}


def _result(record: Mapping[str, Any], signs: Sequence[float]) -> StageResult:
    values = record["values"]
    losses = None
    if values is not None:
        losses = tuple(sign * value for sign, value in zip(signs, values, strict=True))
    return StageResult(losses, float(record.get("seconds", 0.0)))
