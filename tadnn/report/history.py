"""How the hypervolume grew with the trials."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tadnn.report.study_view import HistoryView
from tadnn.report.style import PREDICTED, new_figure, say, styled
from tadnn.report.text import number_text


@styled
def history_figure(view: HistoryView) -> Figure:
    """Draw the hypervolume over trials as a share of the last one."""
    figure = new_figure(7.0, 3.6, view.title, view.subtitle, _corner(view))
    axes = figure.subplots()
    axes.set_xlabel("Completed trials")
    axes.set_ylabel("Share of the last hypervolume")
    if not view.volumes:
        say(axes, "a hypervolume takes one to three objectives and a trial")
        return figure
    axes.step(view.trials, view.volumes, where="post", color=PREDICTED, lw=1.6)
    axes.set_ylim(0, 1.05)
    axes.set_xlim(0, view.trials[-1])
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    return figure


def _corner(view: HistoryView) -> str:
    if view.volume is None:
        return ""
    corner = ", ".join(number_text(value) for value in view.reference)
    text = f"{number_text(view.volume)} at the end, up to {corner} ({'; '.join(view.objectives)})"
    return textwrap.shorten(text, 200)
