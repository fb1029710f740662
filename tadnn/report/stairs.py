"""One layer's staircase, and where the chosen network stands on it."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tadnn.report.style import INK, MEASURED, PREDICTED, new_figure, say, styled
from tadnn.report.views import StairView


@styled
def stairs_figure(view: StairView) -> Figure:
    """Draw latency against width with its standard deviation, the present width marked."""
    figure = new_figure(7.6, 4.0, view.title, view.subtitle)
    axes = figure.subplots()
    axes.set_xlabel(view.axis.capitalize())
    axes.set_ylabel("Predicted latency (µs)")
    if not view.widths:
        say(axes, "no width was predicted")
        return figure
    low = [us - std for us, std in zip(view.latency_us, view.std_us, strict=True)]
    high = [us + std for us, std in zip(view.latency_us, view.std_us, strict=True)]
    # A width costs what is predicted there; between two of them there is nothing.
    axes.fill_between(
        view.widths, low, high, step="mid", color=PREDICTED, alpha=0.15, lw=0, label="± std"
    )
    axes.step(view.widths, view.latency_us, where="mid", color=PREDICTED, lw=1.3, label="predicted")
    if view.efficient:
        axes.plot(
            view.efficient,
            view.efficient_us,
            "o",
            ms=4.4,
            mfc="white",
            color=PREDICTED,
            label="efficient",
        )
    if view.measured_us is not None:
        axes.plot(view.widths, view.measured_us, ".", ms=4, color=MEASURED, label="measured")
        high = [*high, *view.measured_us]
    margin = 0.02 * (view.widths[-1] - view.widths[0]) or 1
    axes.set_xlim(view.widths[0] - margin, view.widths[-1] + margin)
    axes.set_ylim(0, 1.14 * max(high) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 1.6, 3.2, 6.4, 10]))
    if view.present is not None:
        axes.axvline(view.present, color=MEASURED, lw=1, ls=(0, (4, 3)))
        left = view.present > (axes.get_xlim()[0] + axes.get_xlim()[1]) / 2
        axes.annotate(
            f"{view.label}: {view.present}",
            (view.present, axes.get_ylim()[1]),
            xytext=(-6 if left else 6, -2),
            textcoords="offset points",
            ha="right" if left else "left",
            va="top",
            fontsize=9.5,
            fontweight="bold",
            color=INK,
        )
    if view.present is not None and view.present_us is not None:
        axes.plot([view.present], [view.present_us], "D", ms=7, color=MEASURED, zorder=5)
    figure.legend(loc="outside lower left", ncols=2)
    return figure
