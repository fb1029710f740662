"""Where a network's latency goes."""

from __future__ import annotations

from matplotlib.figure import Figure

from tadnn.report.style import DIMMED, PREDICTED, QUIET, new_figure, say, styled
from tadnn.report.text import number_text
from tadnn.report.views import BreakdownView, ShareView

BARS = 14


@styled
def breakdown_figure(view: BreakdownView) -> Figure:
    """Draw the largest shares of a latency as bars, the others together in the last one."""
    shares = _largest(view.shares)
    doubtful = any(not share.in_range for share in shares)
    legend = "Hatched: outside of the latency model's range" if doubtful else ""
    figure = new_figure(8.4, 0.8 + 0.31 * max(len(shares), 3), view.title, view.subtitle, legend)
    axes = figure.subplots()
    axes.set_xlabel(f"Predicted latency (µs), {number_text(view.total_us)} µs together")
    if not shares:
        say(axes, "no kernel is launched")
        return figure
    places = range(len(shares))
    bars = axes.barh(
        places,
        [share.latency_us for share in shares],
        xerr=[share.std_us for share in shares],
        height=0.68,
        color=[_colour(share) if share.in_range else "white" for share in shares],
        edgecolor=[_colour(share) for share in shares],
        error_kw={"elinewidth": 1, "ecolor": QUIET},
    )
    for bar, share in zip(bars, shares, strict=True):
        if not share.in_range:
            bar.set_hatch("////")
    axes.set_yticks(places, [_label(share) for share in shares])
    axes.set_ylim(max(len(shares), 3) - 0.5, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    for place, share in zip(places, shares, strict=True):
        axes.annotate(
            f"{100 * share.latency_us / view.total_us:.0f} %",
            (share.latency_us + share.std_us, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xlim(0, 1.12 * max(share.latency_us + share.std_us for share in shares))
    return figure


def _largest(shares: tuple[ShareView, ...]) -> list[ShareView]:
    if len(shares) <= BARS:
        return list(shares)
    rest = shares[BARS - 1 :]
    together = ShareView(
        f"{sum(share.count for share in rest)} launches of {len(rest)} other kinds",
        1,
        sum(share.latency_us for share in rest),
        # Errors of different kernels are not independent either: the cautious sum.
        sum(share.std_us for share in rest),
        all(share.in_range for share in rest),
    )
    return [*shares[: BARS - 1], together]


def _colour(share: ShareView) -> str:
    return PREDICTED if share.is_kernel else DIMMED


def _label(share: ShareView) -> str:
    return share.label if share.count == 1 else f"{share.count} × {share.label}"
