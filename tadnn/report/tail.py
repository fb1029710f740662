"""Every group's staircase, and where the network stands on it."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tadnn.report.style import INK, MEASURED, PREDICTED, new_figure, say, styled
from tadnn.report.views import StairView, TailView

MOST_DRAWN = 24
_COLUMNS = 4


@styled
def tail_figure(view: TailView) -> Figure:
    """Draw a small staircase per group, the present width marked; the slowest groups first."""
    shown = view.stairs[:MOST_DRAWN]
    rows = max(1, math.ceil(len(shown) / _COLUMNS))
    left = len(view.stairs) - len(shown)
    subtitle = view.subtitle + (f" · {left} smaller groups are not drawn" if left else "")
    figure = new_figure(11.0, 1.2 + 1.9 * rows, view.title, subtitle)
    if not shown:
        say(figure.subplots(), "no width of this network can change")
        return figure
    columns = min(_COLUMNS, len(shown))
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index < len(shown):
            _draw(axes, shown[index])
        else:
            axes.set_axis_off()
    figure.supxlabel("Width", fontsize=10, color=INK)
    figure.supylabel("Latency (µs)", fontsize=10, color=INK)
    return figure


def _draw(axes: Axes, stair: StairView) -> None:
    axes.set_title(stair.title, fontsize=8.5)
    axes.step(stair.widths, stair.latency_us, where="mid", color=PREDICTED, lw=1.1)
    axes.plot(
        stair.efficient, stair.efficient_us, "o", ms=2.8, mfc="white", color=PREDICTED, mew=0.8
    )
    axes.set_ylim(0, 1.1 * max(stair.latency_us) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(labelsize=7.5)
    if stair.present is not None:
        axes.axvline(stair.present, color=MEASURED, lw=0.9, ls=(0, (4, 3)))
        if stair.present_us is not None:
            axes.plot([stair.present], [stair.present_us], "D", ms=4.5, color=MEASURED, zorder=5)
