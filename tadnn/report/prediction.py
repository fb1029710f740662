"""Predicted against measured latency."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from tadnn.report.style import DIMMED, PREDICTED, QUIET, latency_axis, new_figure, say, styled
from tadnn.report.views import PairView, PredictionView

BAND = 0.1


@styled
def prediction_figure(view: PredictionView) -> Figure:
    """Draw predictions against measurements, both with error bars, and how well they agree."""
    figure = new_figure(6.0, 5.8, view.title, view.subtitle, _summary(view))
    axes = figure.subplots()
    axes.set_xlabel("Measured latency (ms)")
    axes.set_ylabel("Predicted latency (ms)")
    if view.mape is None:
        say(axes, "nothing was measured")
        return figure
    measured = [p.measured_ms for p in view.pairs]
    predicted = [p.predicted_ms for p in view.pairs]
    reach = [x + e for p in view.pairs for x, e in _ends(p)]
    axes.errorbar(
        measured,
        predicted,
        xerr=[p.spread_ms for p in view.pairs],
        yerr=[p.std_ms for p in view.pairs],
        fmt="o",
        ms=4.5,
        capthick=0.8,
        color=PREDICTED,
        elinewidth=1,
        zorder=3,
        label="network: spread across, std up",
    )
    for axis in (axes.xaxis, axes.yaxis):
        latency_axis(axis, reach, pad=0.08)
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color=QUIET, lw=1, label="equal")
    axes.fill_between(
        ends,
        ends * (1 - BAND),
        ends * (1 + BAND),
        color=DIMMED,
        alpha=0.18,
        lw=0,
        label=f"within {100 * BAND:.0f} %",
    )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal", anchor="W")
    figure.legend(loc="outside lower left", ncols=3)
    return figure


def _ends(pair: PairView) -> list[tuple[float, float]]:
    return [
        (value, sign * error)
        for value, error in ((pair.predicted_ms, pair.std_ms), (pair.measured_ms, pair.spread_ms))
        for sign in (-1, 1)
    ]


def _summary(view: PredictionView) -> str:
    if view.mape is None:
        return ""
    networks = f"{len(view.pairs)} network{'' if len(view.pairs) == 1 else 's'}"
    text = f"{networks}: mean absolute error {view.mape:.1f} %"
    if view.ordered is not None:
        text += f"; {100 * view.ordered:.0f} % of pairs over 10 % apart are ordered rightly"
    return text
