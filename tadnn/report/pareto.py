"""The front: what the study found, and what its finalists turned out to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tadnn.report.front_view import FrontView, PointView
from tadnn.report.labels import place_label
from tadnn.report.style import (
    DIMMED,
    INK,
    MEASURED,
    PREDICTED,
    count_axis,
    latency_axis,
    new_figure,
    say,
    styled,
)


class Spot(NamedTuple):
    """Where a trial stands in a panel, with the error of its latency."""

    trial: int
    x: float
    y: float
    error: float

    @property
    def reach(self) -> tuple[float, float]:
        """The ends of the error bar."""
        return self.x - self.error, self.x + self.error


@styled
def pareto_figure(view: FrontView) -> Figure:
    """Draw a study's front.

    One panel: every trial's score against its predicted latency. Where finalists were trained, a
    second one in units of its own: their accuracy against measured and predicted latency.
    """
    two = any(p.finalist and p.accuracy is not None for p in view.members)
    figure = new_figure(10.8 if two else 7.0, 4.7, view.study, view.subtitle, _doubts(view))
    panels = figure.subplots(1, 2 if two else 1, squeeze=False)[0]
    spots = [_search_panel(panels[0], view, measured=not two)]
    if two:
        spots.append(_finalist_panel(panels[1], view))
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = 5 if two else 3
        figure.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=columns)
    # Last, because where there is room depends on everything else.
    for panel, shown in zip(panels, spots, strict=True):
        knee = next((spot for spot in shown if spot.trial == view.knee), None)
        if knee is not None:
            others = [(spot.x, spot.y) for spot in shown]
            place_label(panel, f"knee: trial {knee.trial}", (knee.x, knee.y), others)
    return figure


def _search_panel(axes: Axes, view: FrontView, *, measured: bool) -> list[Spot]:
    axes.set_title("All trials, as predicted")
    axes.set_xlabel(f"Predicted {_latency_of(view)}")
    axes.set_ylabel(view.score_label)
    members = _spots(view.members, "predicted", "score")
    dominated = _spots((p for p in view.others if p.feasible), "predicted", "score")
    infeasible = _spots((p for p in view.others if not p.feasible), "predicted", "score")
    shown = [*members, *dominated, *infeasible]
    if not shown:
        say(axes, "no trial has a predicted latency and a score")
        return []
    if infeasible:
        label = f"infeasible ({len(infeasible)})"
        axes.scatter(
            *_xy(infeasible), s=18, marker="x", color=DIMMED, lw=0.9, alpha=0.8, label=label
        )
    if dominated:
        label = f"dominated ({len(dominated)})"
        axes.scatter(*_xy(dominated), s=14, color=DIMMED, alpha=0.55, lw=0, label=label)
    if view.joined and len(members) > 1:
        axes.step(*_xy(members), where="post", color=PREDICTED, lw=1.2, alpha=0.7, zorder=3)
    if members:
        label = f"front, predicted ± std ({len(members)})"
        _errorbar(axes, members, label, color=PREDICTED, zorder=4)
    if measured:
        found = _spots(view.members, "measured", "score")
        _measured(axes, found)
        shown += found
        if found:
            axes.set_title("All trials as predicted, the front measured too")
            axes.set_xlabel(_latency_of(view, "Latency"))
    latency_axis(axes.xaxis, _reach(shown), pad=0.1)
    if view.score_is_count:
        latency_axis(axes.yaxis, [s.y for s in shown], pad=0.1)
        count_axis(axes.yaxis)
    else:
        axes.margins(y=0.12)
    _ring_knee(axes, view, members)
    return shown


def _finalist_panel(axes: Axes, view: FrontView) -> list[Spot]:
    axes.set_xlabel(_latency_of(view, "Latency"))
    axes.set_ylabel(view.accuracy_label)
    finalists = [p for p in view.members if p.finalist]
    predicted = _spots(finalists, "predicted", "accuracy")
    measured = _spots(finalists, "measured", "accuracy")
    axes.set_title(f"Finalists, trained{' and measured again' if measured else ''}")
    before = {spot.trial: spot for spot in predicted}
    for spot in measured:
        if spot.trial in before:
            axes.plot([before[spot.trial].x, spot.x], [spot.y, spot.y], color=DIMMED, lw=1)
    if predicted:
        _errorbar(
            axes, predicted, "finalist, predicted ± std", color=PREDICTED, mfc="white", zorder=3
        )
    _measured(axes, measured)
    latency_axis(axes.xaxis, _reach([*predicted, *measured]), pad=0.1)
    axes.margins(y=0.14)
    _ring_knee(axes, view, [*measured, *predicted])
    return [*measured, *predicted]


def _latency_of(view: FrontView, latency: str = "latency") -> str:
    return f"{latency} (ms)" if view.phase is None else f"{latency} of {view.phase} (ms)"


def _measured(axes: Axes, spots: Sequence[Spot]) -> None:
    if spots:
        _errorbar(axes, spots, "measured ± spread", color=MEASURED, fmt="D", ms=4, zorder=5)


def _errorbar(axes: Axes, spots: Sequence[Spot], label: str, **look: Any) -> None:
    look = {"fmt": "o", "ms": 4.5, "mew": 1, "elinewidth": 1, "capthick": 0.8, **look}
    axes.errorbar(*_xy(spots), xerr=[spot.error for spot in spots], label=label, **look)


def _ring_knee(axes: Axes, view: FrontView, spots: Sequence[Spot]) -> None:
    for spot in spots:
        if spot.trial == view.knee:
            axes.plot([spot.x], [spot.y], "o", ms=12, mfc="none", mec=INK, mew=1.3, zorder=6)
            return


def _spots(
    points: Iterable[PointView],
    latency: Literal["predicted", "measured"],
    height: Literal["score", "accuracy"],
) -> list[Spot]:
    """Place the points that have both; the others are left out."""
    spots = []
    for p in points:
        x, error = (
            (p.predicted_ms, p.std_ms) if latency == "predicted" else (p.measured_ms, p.spread_ms)
        )
        y = p.score if height == "score" else p.accuracy
        if x is not None and y is not None:
            spots.append(Spot(p.trial, x, y, error))
    return spots


def _xy(spots: Sequence[Spot]) -> tuple[list[float], list[float]]:
    return [spot.x for spot in spots], [spot.y for spot in spots]


def _reach(spots: Sequence[Spot]) -> list[float]:
    return [x for spot in spots for x in (spot.x, *spot.reach)]


def _doubts(view: FrontView) -> str:
    doubtful = sum(not p.in_range for p in view.members)
    if not doubtful:
        return ""
    return f"{doubtful} of {len(view.members)} on the front outside of the latency model's range"
