"""Everything a screening scored, and the front of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tadnn.report.style import DIMMED, PREDICTED, count_axis, latency_axis, new_figure, styled

_LABELS = {"parameters": "Parameters", "flops": "FLOPs"}
# More dots than this only make the file larger.
_MOST_DOTS = 5_000


@styled
def screening_figure(
    title: str, subtitle: str, proxy: str, points: np.ndarray, front: Sequence[tuple[float, float]]
) -> Figure:
    """Draw the proxy against predicted latency.

    Args:
        title: in bold.
        subtitle: what was scored.
        proxy: ``parameters`` or ``flops``.
        points: latency in ms and proxy of everything scored, [n, 2].
        front: the same of the front, fastest first.
    """
    figure = new_figure(7.6, 4.4, title, subtitle)
    axes = figure.subplots()
    shown = points[:: max(1, -(-len(points) // _MOST_DOTS))]
    axes.plot(shown[:, 0], shown[:, 1], ".", ms=2, color=DIMMED, label="scored", rasterized=True)
    axes.step(*zip(*front, strict=True), where="post", color=PREDICTED, lw=1.3)
    axes.plot(*zip(*front, strict=True), "o", ms=3.5, color=PREDICTED, label="front")
    axes.set_xlabel("Predicted latency (ms)")
    axes.set_ylabel(_LABELS.get(proxy, proxy))
    latency_axis(axes.xaxis, [*shown[:, 0].tolist(), *(latency for latency, _ in front)])
    count_axis(axes.yaxis)
    figure.legend(loc="outside lower left", ncols=2)
    return figure
