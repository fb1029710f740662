"""Views as plain JSON: what ``.json`` answers, and what the pages' script draws."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tadnn.report.columns import Column
from tadnn.report.compare_view import CompareView
from tadnn.report.library import StudyRow
from tadnn.report.model_view import ModelView
from tadnn.report.network_view import NetworkView
from tadnn.report.study_view import DOMINATED, INFEASIBLE, StudyView

MOST_BYTES: Final = 2_200_000
"""About how large the trials of one page may be; beyond it dominated ones are left out."""

_DIGITS: Final = 6
_BYTES_A_NUMBER, _BYTES_A_CHOICE = 9, 2.2


def dumps(record: object) -> str:
    """Return strict JSON (no NaN), without spaces."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


@lru_cache(maxsize=16)
def study_json(view: StudyView) -> str:
    """Return a study's record as JSON; remembered as long as the view is."""
    return dumps(study_record(view))


def study_record(view: StudyView) -> dict[str, Any]:
    """Return a study as plain data; trials stand in columns, and of very many a part."""
    kept = _kept(view)
    shown: Any = slice(None) if kept is None else kept
    return {
        "name": view.name,
        "subtitle": view.subtitle,
        "progress": {**asdict(view.progress), "state": view.progress.state},
        "warning": view.warning,
        "objectives": [goal.key for goal in view.goals],
        "knee": view.knee,
        "members": view.members,
        "total": len(view.trials),
        "trials": view.trials[shown].tolist(),
        "status": view.status[shown].tolist(),
        "out_of_range": np.flatnonzero(~view.in_range[shown]).tolist(),
        "columns": [_column(column, shown) for column in view.columns],
        "choices": {name: _choice(values, kept) for name, values in view.choices.items()},
        "finalists": {str(n): _plain(dict(facts)) for n, facts in view.finalists.items()},
        "history": _plain(asdict(view.history)),
        "importance": [_plain(asdict(choice)) for choice in view.importance],
        "failures": [asdict(failure) for failure in view.failures],
        "spec": dict(view.spec),
    }


def row_record(row: StudyRow) -> dict[str, Any]:
    """Return a line of the list of studies."""
    if row.view is None:
        return {"key": row.key, "error": row.error}
    view = row.view
    return {
        "key": row.key,
        "name": view.name,
        "subtitle": view.subtitle,
        "progress": {**asdict(view.progress), "state": view.progress.state},
        "members": view.members,
        "objectives": [goal.key for goal in view.goals],
        "hypervolume": view.history.volume,
        "history": {"trials": view.history.trials, "volumes": view.history.volumes},
        "warning": view.warning,
    }


def view_record(view: NetworkView | ModelView | CompareView) -> dict[str, Any]:
    """Return any other view as plain data, its fields by name."""
    plain: dict[str, Any] = _plain(asdict(view))
    return plain


def _kept(view: StudyView) -> np.ndarray | None:
    """Return which trials a page holds, in order; None for all.

    The front and the finalists always stay; of the others, every so many.
    """
    each = len(view.columns) * _BYTES_A_NUMBER + len(view.choices) * _BYTES_A_CHOICE + 8
    most = int(MOST_BYTES / each)
    if len(view.trials) <= most:
        return None
    other = (view.status == DOMINATED) | (view.status == INFEASIBLE)
    other &= ~np.isin(view.trials, list(view.finalists))
    rest = np.flatnonzero(other)
    room = max(1, most - (len(view.trials) - len(rest)))
    some = rest[np.linspace(0, len(rest) - 1, min(room, len(rest))).round().astype(int)]
    return np.sort(np.concatenate([np.flatnonzero(~other), some]))


def _column(column: Column, shown: Any) -> dict[str, Any]:
    measured = column.measured or {}
    return {
        "key": column.key,
        "label": column.label,
        "unit": column.unit,
        "title": column.title,
        "better": column.better,
        "values": _numbers(column.values[shown]),
        "errors": None if column.errors is None else _numbers(column.errors[shown]),
        "measured": {str(n): [_short(v), _short(e)] for n, (v, e) in measured.items()},
    }


def _choice(values: tuple[Any, ...], kept: np.ndarray | None) -> dict[str, Any]:
    """Return a choice as its distinct values and, per trial, which of them; -1 is inactive."""
    known: dict[Any, int] = {}
    index = [-1 if v is None else known.setdefault(v, len(known)) for v in values]
    if kept is not None:
        index = [index[i] for i in kept]
    return {"values": list(known), "index": index}


def _numbers(values: np.ndarray) -> list[float | int | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | int | None:
    """Return a number to six digits, whole ones as they are; None where it is not finite."""
    if not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.{_DIGITS}g}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return _short(value)
    return value
