"""The front of a study as a record: the content of ``front.json``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tadnn.pareto import front_mask, hypervolume
from tadnn.search.objective import DRAWN_ATTR, RESULT_ATTR
from tadnn.search.spec import StudySpec
from tadnn.search.stage_report import stages_record
from tadnn.search.storage import ENVIRONMENT_ATTR, INPUT_ATTR, MODEL_ATTR, SPEC_ATTR

if TYPE_CHECKING:
    from optuna import Study

FINALIST_ATTR = "tadnn:finalist:"
LEAST_INFEASIBLE = 5

_PADDING = 0.1
_MEMBER_KEYS = ("key", "arch", "parameters", "flops", "memory_bytes", "predicted", "proxy")


def front_record(study: Study) -> dict[str, Any]:
    """Return the study's front: feasible, finite, distinct, non-dominated.

    ``hypervolume`` is over predicted latency in milliseconds (minimised) and the accuracy
    objective (maximised, in its own unit), as ``reference`` [latency_ms, accuracy]: what the
    members dominate up to that point. The reference is the worst finite value of each among
    all completed trials, feasible or not, made worse by a tenth of the range between the best
    and the worst (a tenth of its magnitude, or 1, where all agree). Both are None where the
    study has not both objectives.

    Where nothing is feasible, ``members`` is empty and ``least_infeasible`` lists the trials
    that violate the constraints least, by the sum of their relative violations.

    A study of stages has what `stages_record` tells, too; only trials that ended the last stage can
    be members.

    ``tail_aware`` is there in a tail-aware study: how many architectures were ``sampled``, and
    how many ``distinct`` ones remained of them once snapped.
    """
    attributes = study.user_attrs
    spec = StudySpec.model_validate(attributes[SPEC_ATTR])
    trials = _distinct(_completed(study))
    feasible = [trial for trial in trials if _violation(trial) == 0]
    losses = _losses(feasible, study.directions)
    on_front = front_mask(losses) if feasible else np.zeros(0, dtype=bool)
    chosen = [trial for trial, kept in zip(feasible, on_front, strict=True) if kept]
    members = [member_record(trial, attributes) for trial in chosen]
    members.sort(key=_cost)
    volume, reference = _volume(spec, chosen, trials)
    record = {
        "study": spec.name,
        **_setting(spec, attributes),
        "input_shape": _input_shape(members, attributes[INPUT_ATTR]),
        "environment": _model(attributes).get("environment") or attributes[ENVIRONMENT_ATTR],
        "objectives": list(spec.objectives),
        "hypervolume": volume,
        "reference": reference,
        "members": members,
        **stages_record(spec, study),
    }
    if spec.tail_aware:
        taken = [t for t in study.get_trials(deepcopy=False) if DRAWN_ATTR in t.user_attrs]
        record["tail_aware"] = {
            "sampled": sum(t.user_attrs[DRAWN_ATTR] for t in taken),
            "distinct": len(taken),
        }
    if not feasible:
        trials = _distinct(_infeasible(study))
    if not feasible and trials:
        nearest = sorted(trials, key=lambda trial: (_violation(trial), trial.number))
        record["least_infeasible"] = [
            {**member_record(trial, attributes), "violations": dict(trial.constraints)}
            for trial in nearest[:LEAST_INFEASIBLE]
        ]
    return record


def infeasible_warning(record: Mapping[str, Any]) -> str | None:
    """Return what to say where nothing met the constraints; None where something did."""
    nearest = record.get("least_infeasible")
    if not nearest:
        return None
    worst = ", ".join(
        f"{key} {violation + 1:.3g} times over" if violation >= 10 else f"{key} by {violation:.1%}"
        for key, violation in nearest[0]["violations"].items()
        if violation > 0
    )
    return (
        f"no trial of study {record['study']!r} meets the constraints; the nearest, trial "
        f"{nearest[0]['trial']}, exceeds {worst}"
    )


def front_csv(record: Mapping[str, Any]) -> str:
    """Return the members as CSV, nested records flattened to ``predicted.latency_ms`` and so on."""
    rows = [dict(_flattened(member)) for member in record["members"]]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or ["trial"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _completed(study: Study) -> list[FrozenTrial]:
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [t for t in trials if RESULT_ATTR in t.user_attrs and all(map(math.isfinite, t.values))]


def _infeasible(study: Study) -> list[FrozenTrial]:
    """Return what was evaluated in vain; a study of stages stops such trials after the first."""
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = study.get_trials(deepcopy=False, states=ended)
    return [t for t in trials if RESULT_ATTR in t.user_attrs and _violation(t) > 0]


def _distinct(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    first: dict[str, FrozenTrial] = {}
    for trial in trials:
        first.setdefault(trial.user_attrs[RESULT_ATTR]["key"], trial)
    return list(first.values())


def _violation(trial: FrozenTrial) -> float:
    return sum(value for value in trial.constraints.values() if value > 0)


def _losses(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> np.ndarray:
    signs = [-1.0 if d == StudyDirection.MAXIMIZE else 1.0 for d in directions]
    return np.array([trial.values for trial in trials], dtype=float).reshape(-1, len(signs)) * signs


def _volume(
    spec: StudySpec, chosen: Sequence[FrozenTrial], trials: Sequence[FrozenTrial]
) -> tuple[float | None, list[float] | None]:
    if not {"latency", "accuracy"} <= set(spec.objectives) or not trials:
        return None, None
    columns = [spec.objectives.index("latency"), spec.objectives.index("accuracy")]
    signs = np.array([1.0, -1.0])
    every = np.array([trial.values for trial in trials], dtype=float)[:, columns] * signs
    worst, span = every.max(axis=0), np.ptp(every, axis=0)
    padding = np.where(span > 0, span, np.abs(worst)) * _PADDING
    corner = worst + np.where(padding > 0, padding, 1.0)
    points = np.array([trial.values for trial in chosen], dtype=float).reshape(
        -1, len(spec.objectives)
    )
    volume = hypervolume(points[:, columns] * signs, corner)
    return volume, [float(value) for value in corner * signs]


def member_record(trial: FrozenTrial, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial as a member of the front, with what it got as a finalist.

    Args:
        trial: an evaluated trial.
        attributes: the study's user attributes.
    """
    result = trial.user_attrs[RESULT_ATTR]
    finalist = attributes.get(f"{FINALIST_ATTR}{trial.number}") or {}
    return {
        "trial": trial.number,
        **{key: result[key] for key in _MEMBER_KEYS},
        **{key: result[key] for key in ("input_shape",) if key in result},
        # A finalist's training is longer than a trial's own.
        "trained": _trained(finalist.get("trained")) or result["trained"],
        "measured": finalist.get("measured"),
        **phase_records(result, finalist),
    }


def phase_records(result: Mapping[str, Any], finalist: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"phases": {phase: {"predicted", "measured"}}}``; nothing without phases."""
    phases = {
        phase: {**facts, "measured": finalist.get("phases", {}).get(phase)}
        for phase, facts in result.get("phases", {}).items()
    }
    return {"phases": phases} if phases else {}


def _trained(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: facts[key] for key in ("accuracy", "epochs", "split")} if facts else None


def _cost(member: Mapping[str, Any]) -> tuple[float, int]:
    predicted = member["predicted"]
    # A study without a latency model is ordered by what comes nearest.
    return (predicted["latency_ms"] if predicted else member["flops"], member["trial"])


def _model(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    return attributes.get(MODEL_ATTR) or {}


def _setting(spec: StudySpec, attributes: Mapping[str, Any]) -> dict[str, Any]:
    model = _model(attributes)
    setting = model.get("setting") or {}
    return {
        "latency_model": model.get("name"),
        "device": model.get("device"),
        "runtime": setting.get("runtime", spec.runtime),
        "dtype": setting.get("dtype", spec.dtype),
        "threads": setting.get("threads", spec.threads),
        "batch": spec.batch,
    }


def _input_shape(members: Sequence[Mapping[str, Any]], bound: list[int]) -> list[int]:
    """Return the input of all members; where they differ, or there are none, the study's."""
    own = [list(member.get("input_shape", bound)) for member in members]
    return own[0] if own and all(shape == own[0] for shape in own) else bound


def _flattened(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
