"""Reading what trials stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

from tadnn.errors import TargetError
from tadnn.search.objective import RESULT_ATTR

if TYPE_CHECKING:
    from optuna import Study


def evaluated_trials(study: Study) -> dict[int, FrozenTrial]:
    """Return every trial that stored a result, by number."""
    trials = study.get_trials(deepcopy=False)
    return {t.number: t for t in trials if RESULT_ATTR in t.user_attrs}


def evaluated_trial(study: Study, number: int) -> FrozenTrial:
    """Return one evaluated trial.

    Raises:
        TargetError: there is none of that number.
    """
    trials = evaluated_trials(study)
    if number not in trials:
        span = f", from {min(trials)} to {max(trials)}" if trials else ""
        raise TargetError(
            f"study {study.study_name} has no evaluated trial {number}; it has {len(trials)}{span}"
        )
    return trials[number]


def trial_records(study: Study) -> list[dict[str, Any]]:
    """Return each completed trial's stored result with ``trial`` (number) and ``feasible``.

    Trials that were stopped early are not among them: their accuracies don't compare.
    """
    return [
        {
            **trial.user_attrs[RESULT_ATTR],
            "trial": number,
            "feasible": all(violation <= 0 for violation in trial.constraints.values()),
        }
        for number, trial in evaluated_trials(study).items()
        if trial.state == TrialState.COMPLETE
    ]
