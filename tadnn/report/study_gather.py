"""Making a study's view from what its storage holds; reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tadnn.report.columns import columns_of
from tadnn.report.study_view import (
    DOMINATED,
    FRONT,
    INFEASIBLE,
    FailureView,
    ProgressView,
    StudyView,
    history_view,
    importance_view,
)
from tadnn.report.views import Record, setting_text

if TYPE_CHECKING:
    from tadnn.search import Study
_SHOWN_FAILURES = 20


def study_view(study: Study) -> StudyView:
    """Return the view of a study that `tadnn.search.read_study` opened, as it is now."""
    from tadnn.search import (
        finalist_facts,
        front_record,
        infeasible_warning,
        knee_trial,
        study_progress,
    )

    spec: Record = study.user_attrs["tadnn:spec"]
    front = front_record(study)
    evaluated = _evaluated(study)
    results = [result for result, _ in evaluated]
    objectives = list(spec["objectives"])
    values = np.array([row for _, row in evaluated], dtype=float).reshape(-1, len(objectives))
    finalists = finalist_facts(study)
    columns = columns_of(results, objectives, values, finalists)
    feasible = np.array([result["feasible"] for result in results], dtype=bool)
    members = {member["trial"] for member in front["members"]}
    trials = np.array([result["trial"] for result in results], dtype=int)
    status = np.where(feasible, DOMINATED, INFEASIBLE)
    status[np.isin(trials, list(members))] = FRONT
    names = dict.fromkeys(name for result in results for name in result["arch"])
    choices = {name: tuple(result["arch"].get(name) for result in results) for name in names}
    goals, subtitle = columns[: len(objectives)], setting_text(front)
    return StudyView(
        name=str(front["study"]),
        subtitle=subtitle,
        progress=progress_view(study),
        objectives=len(objectives),
        columns=columns,
        trials=trials,
        status=status,
        in_range=np.array([_in_range(result) for result in results], dtype=bool),
        choices=choices,
        finalists=finalists,
        knee=knee_trial(front),
        history=history_view(str(front["study"]), subtitle, goals, feasible),
        importance=importance_view(choices, goals),
        failures=tuple(FailureView(*f) for f in study_progress(study)["failed"][-_SHOWN_FAILURES:]),
        warning=infeasible_warning(front) or "",
        front=front,
        spec=spec,
    )


def progress_view(study: Study) -> ProgressView:
    """Return how far a study is; it changes with the processes that work on it, too."""
    from tadnn.search import study_progress

    facts = study_progress(study)
    return ProgressView(
        facts["completed"],
        int(study.user_attrs["tadnn:spec"]["trials"]),
        len(facts["failed"]),
        facts["running"],
        facts["started"] or "",
        facts["updated"] or "",
    )


def _evaluated(study: Study) -> list[tuple[dict[str, Any], list[float]]]:
    """Return each completed trial's result and values, in the order of their numbers."""
    from tadnn.search import trial_records

    values = {t.number: t.values for t in study.get_trials(deepcopy=False) if t.values}
    return [(r, values[r["trial"]]) for r in trial_records(study) if r["trial"] in values]


def _in_range(result: Record) -> bool:
    return all(part.get("in_range", True) for part in result.values() if isinstance(part, dict))
