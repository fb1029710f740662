"""The numbers of a study's trials as columns: what a plot's axis can show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tadnn.report.views import Record

LESS, MORE = "min", "max"

_LABELS: Final = {
    "latency": "Predicted latency",
    "accuracy": "Accuracy",
    "parameters": "Parameters",
    "flops": "FLOPs",
    "memory": "Memory",
    "memory_bytes": "Memory",
    "trained.accuracy": "Trained accuracy",
    "trained.epochs": "Epochs trained",
    "trial": "Trial number",
}
_UNITS: Final = {"latency": "ms", "memory": "bytes", "memory_bytes": "bytes"}
_ERROR_OF: Final = {"std": "latency", "spread": "latency"}


@dataclass(frozen=True)
class Column:
    """One number of every trial.

    Args:
        key: unique in a study.
        label: what an axis says, without the unit.
        unit: such as ``ms``; empty where there is none.
        better: ``min`` or ``max`` of an objective; empty where nothing is sought.
        values: [n] float64, NaN where unknown.
        errors: one standard deviation, [n]; None where there is none.
        measured: by trial number what finalists were measured to be, and its spread.
    """

    key: str
    label: str
    unit: str
    better: str
    values: np.ndarray
    errors: np.ndarray | None = None
    measured: Mapping[int, tuple[float, float]] | None = None

    @property
    def title(self) -> str:
        """The label with its unit, and what is sought."""
        sought = {LESS: ", less is better", MORE: ", more is better"}.get(self.better, "")
        return f"{self.label}{f' ({self.unit})' if self.unit else ''}{sought}"


def columns_of(
    results: Sequence[Record],
    objectives: Sequence[str],
    values: np.ndarray,
    finalists: Mapping[int, Record],
) -> tuple[Column, ...]:
    """Return the objectives, then every other number that trials stored, each once.

    Args:
        results: of each trial its stored result, ``trial`` (number) added.
        objectives: the study's, in order.
        values: [n, objectives], as Optuna has them.
        finalists: by trial number what the study stored about it.
    """
    stored = _stored(results)
    goals = [_objective(name, values[:, i], stored) for i, name in enumerate(objectives)]
    numbers = [int(result["trial"]) for result in results]
    trained = {n: f["trained"]["accuracy"] for n, f in finalists.items() if f.get("trained")}
    if trained:
        accuracy = np.array([trained.get(number, math.nan) for number in numbers])
        stored["finalist.accuracy"] = accuracy
    others = [
        Column(key, _label(key, results), _unit(key), "", column, _errors(key, stored))
        for key, column in stored.items()
        if not any(_same(column, goal.values) for goal in goals) and not _is_error(key)
    ]
    measured = {
        n: (float(f["measured"]["latency_ms"]), float(f["measured"]["spread_ms"]))
        for n, f in finalists.items()
        if f.get("measured")
    }
    every = [*goals, *others, Column("trial", "Trial number", "", "", np.array(numbers, float))]
    predicted = stored.get("predicted.latency_ms")
    return tuple(
        replace(column, measured=measured)
        if measured and predicted is not None and _same(column.values, predicted)
        else column
        for column in every
    )


def _objective(name: str, values: np.ndarray, stored: Mapping[str, np.ndarray]) -> Column:
    same = [key for key, column in stored.items() if _same(column, values)]
    better = MORE if name.startswith("accuracy") else LESS
    label = _LABELS.get(name, name.replace("_", " ").replace(":", ", ").capitalize())
    if better == MORE:  # several numbers may agree, such as a count and a proxy that counts
        same.sort(key=lambda key: not key.startswith(("proxy.", "trained.")))
    key = same[0] if same else ""
    if key.startswith("proxy."):
        label = f"{key.removeprefix('proxy.')} score"
    unit = _unit(key or name) or _UNITS.get(name, "")
    return Column(name, label, unit, better, values, _errors(key, stored))


def _stored(results: Sequence[Record]) -> dict[str, np.ndarray]:
    """Return every numeric leaf of the results as a column, NaN where a trial lacks it."""
    found: dict[str, np.ndarray] = {}
    for i, result in enumerate(results):
        for key, value in _leaves(result):
            if key not in found:
                found[key] = np.full(len(results), math.nan)
            found[key][i] = value
    return found


def _leaves(record: Record, prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if key in ("arch", "trial", "feasible"):
            continue
        if isinstance(value, Mapping):
            # A proxy's value goes by the proxy's name.
            if key == "proxy" and "value" in value:
                yield f"proxy.{value.get('name', 'proxy')}", float(value["value"])
                continue
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _errors(key: str, stored: Mapping[str, np.ndarray]) -> np.ndarray | None:
    for error, of in _ERROR_OF.items():
        head, _, last = key.rpartition(".")
        if head and last.startswith(of):
            found = stored.get(f"{head}.{last.replace(of, error, 1)}")
            if found is not None:
                return found
    return None


def _is_error(key: str) -> bool:
    return key.rpartition(".")[2].split("_")[0] in _ERROR_OF


def _label(key: str, results: Sequence[Record]) -> str:
    if key == "finalist.accuracy":
        return "Accuracy of finalists"
    if key in _LABELS:
        return _LABELS[key]
    if key.startswith("proxy."):
        return f"{key.removeprefix('proxy.')} score"
    words = key.removesuffix("_ms").removesuffix("_us").replace(".", " ").replace("_", " ")
    return words.capitalize()


def _unit(key: str) -> str:
    last = key.rpartition(".")[2]
    for suffix in ("ms", "us", "bytes"):
        if last.endswith(f"_{suffix}"):
            return "µs" if suffix == "us" else suffix
    return ""


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True))
