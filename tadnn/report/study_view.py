"""A whole study as one frozen record: what its page, its report and its history plot show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tadnn import pareto
from tadnn.report.columns import MORE, Column
from tadnn.report.views import Record

FRONT, DOMINATED, INFEASIBLE = 0, 1, 2
"""What a trial is: on the front, dominated, or beyond a constraint."""

_STEPS: Final = 120
_MOST_OBJECTIVES: Final = 3
# Exact volumes of three objectives cost the square of the front.
_FEWER_STEPS: Final = 30
_PADDING: Final = 0.1


@dataclass(frozen=True)
class HistoryView:
    """How the hypervolume grew.

    Args:
        title: of what.
        subtitle: the setting, or empty.
        trials: how many had completed, ascending.
        volumes: what the front of those dominates, as a share of the last one.
        volume: the last one, in the objectives' own units multiplied.
        reference: the worst corner, one value per objective.
        objectives: their titles.
    """

    title: str
    subtitle: str
    trials: tuple[int, ...]
    volumes: tuple[float, ...]
    volume: float | None
    reference: tuple[float, ...]
    objectives: tuple[str, ...]


@dataclass(frozen=True)
class ImportanceView:
    """What share of an objective's variance one choice alone explains, 0 to 1."""

    choice: str
    shares: tuple[float, ...]


@dataclass(frozen=True)
class ProgressView:
    """How far a study is.

    Args:
        completed: distinct architectures evaluated.
        wanted: how many are asked for.
        failed: trials that failed.
        running: trials that a living process works on.
        started: of the first trial, ISO 8601; empty before it.
        updated: when the last trial ended, ISO 8601; empty before that.
    """

    completed: int
    wanted: int
    failed: int
    running: int
    started: str
    updated: str

    @property
    def state(self) -> str:
        """``running``, ``done`` or ``stopped``."""
        if self.running:
            return "running"
        return "done" if self.completed >= self.wanted else "stopped"


@dataclass(frozen=True)
class FailureView:
    """A trial that failed, and why."""

    trial: int
    reason: str


@dataclass(frozen=True, eq=False)
class StudyView:
    """A study.

    Args:
        name: its name.
        subtitle: device, runtime, dtype, threads, batch and input in one line.
        progress: how far it is.
        objectives: how many of the columns, from the first, are objectives.
        columns: every number, [n] each; n counts the trials with a result.
        trials: their numbers, [n].
        status: ``FRONT``, ``DOMINATED`` or ``INFEASIBLE``, [n].
        in_range: whether each prediction stays in the latency model's range, [n].
        choices: by name the architectures' values, [n]; None where a choice is inactive.
        finalists: by trial number what was measured and trained.
        knee: the knee's trial number; None where there is no front.
        history: how the hypervolume grew.
        importance: of every choice, the largest share first.
        failures: the latest trials that failed.
        warning: what to say above everything; empty where nothing is wrong.
        front: the content of ``front.json``.
        spec: the study as its YAML states it.
    """

    name: str
    subtitle: str
    progress: ProgressView
    objectives: int
    columns: tuple[Column, ...]
    trials: np.ndarray
    status: np.ndarray
    in_range: np.ndarray
    choices: Mapping[str, tuple[Any, ...]]
    finalists: Mapping[int, Record]
    knee: int | None
    history: HistoryView
    importance: tuple[ImportanceView, ...]
    failures: tuple[FailureView, ...]
    warning: str
    front: Record
    spec: Record

    @property
    def goals(self) -> tuple[Column, ...]:
        """The columns that are objectives."""
        return self.columns[: self.objectives]

    @property
    def members(self) -> int:
        """How many trials stand on the front."""
        return int(np.count_nonzero(self.status == FRONT))

    def index(self, trial: int) -> int | None:
        """Return where a trial stands in the columns; None where it has no result."""
        found = np.flatnonzero(self.trials == trial)
        return int(found[0]) if len(found) else None


def losses(columns: Sequence[Column]) -> np.ndarray:
    """Return objectives as losses, [n, objectives]: less is better in each."""
    signs = [-1.0 if column.better == MORE else 1.0 for column in columns]
    found: np.ndarray = np.stack([column.values for column in columns], axis=1) * np.array(signs)
    return found


def worst_corner(points: np.ndarray) -> np.ndarray:
    """Return the reference of hypervolumes: the worst of each loss, a tenth of its range worse.

    Where all agree it is a tenth of the magnitude, or 1. ``points`` is [n, objectives].
    """
    worst, span = points.max(axis=0), np.ptp(points, axis=0)
    padding = np.where(span > 0, span, np.abs(worst)) * _PADDING
    corner: np.ndarray = worst + np.where(padding > 0, padding, 1.0)
    return corner


def history_view(
    name: str, subtitle: str, goals: Sequence[Column], feasible: np.ndarray
) -> HistoryView:
    """Return how the hypervolume of all objectives grew with the trials.

    Exact for one to three objectives, at some 120 steps (30 for three); empty for more.

    Args:
        name: the study's.
        subtitle: the setting.
        goals: the objectives, trials in the order of their numbers.
        feasible: whether each trial meets the constraints, [n].
    """
    title, titles = f"{name}: hypervolume over trials", tuple(goal.title for goal in goals)
    points = losses(goals) if goals else np.empty((0, 0))
    finite = np.isfinite(points).all(axis=1) if len(points) else np.zeros(0, dtype=bool)
    if not finite.any() or len(goals) > _MOST_OBJECTIVES:
        return HistoryView(title, subtitle, (), (), None, (), titles)
    corner = worst_corner(points[finite])
    steps = _STEPS if len(goals) < _MOST_OBJECTIVES else _FEWER_STEPS
    counts = np.unique(np.linspace(1, len(points), min(steps, len(points))).round().astype(int))
    volumes: list[float] = []
    front = np.empty((0, len(goals)))
    usable = finite & feasible
    before = 0
    for count in counts:
        fresh = points[before:count][usable[before:count]]
        grown = np.concatenate([front, fresh])
        grown = grown[pareto.front_mask(grown)] if len(grown) else grown
        if volumes and np.array_equal(grown, front):
            volumes.append(volumes[-1])
        else:
            volumes.append(pareto.hypervolume(grown, corner) if len(grown) else 0.0)
        front, before = grown, int(count)
    last = volumes[-1]
    signs = np.array([-1.0 if goal.better == MORE else 1.0 for goal in goals])
    return HistoryView(
        title,
        subtitle,
        tuple(int(count) for count in counts),
        tuple(volume / last if last else 0.0 for volume in volumes),
        last,
        tuple(float(value) for value in corner * signs),
        titles,
    )


def importance_view(
    choices: Mapping[str, Sequence[Any]], goals: Sequence[Column]
) -> tuple[ImportanceView, ...]:
    """Return how much of each objective's variance every choice alone explains.

    Epsilon squared of a one-way analysis of variance: the correlation ratio less what chance
    would give it (Kelley, "An unbiased correlation ratio measure", PNAS 1935). An inactive
    choice is a value of its own. Choices that never varied are left out.
    """
    found = []
    for name, values in choices.items():
        codes, count = _codes(values)
        if count > 1:
            shares = tuple(_explained(codes, count, goal.values) for goal in goals)
            found.append(ImportanceView(name, shares))
    found.sort(key=lambda view: -max(view.shares, default=0.0))
    return tuple(found)


def _codes(values: Sequence[Any]) -> tuple[np.ndarray, int]:
    known: dict[Any, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], dtype=int)
    return codes, len(known)


def _explained(codes: np.ndarray, count: int, values: np.ndarray) -> float:
    finite = np.isfinite(values)
    y, groups = values[finite], codes[finite]
    sizes = np.bincount(groups, minlength=count)
    present = int(np.count_nonzero(sizes))
    freedom = len(y) - present
    total = float(np.sum((y - y.mean()) ** 2)) if len(y) else 0.0
    if present < 2 or freedom < 1 or total <= 0 or not math.isfinite(total):
        return 0.0
    means = np.bincount(groups, weights=y, minlength=count) / np.maximum(sizes, 1)
    within = float(np.sum((y - means[groups]) ** 2)) / freedom
    between = total - within * freedom
    return float(np.clip((between - (present - 1) * within) / total, 0.0, 1.0))
