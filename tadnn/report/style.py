"""One look for every plot, and saving."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, ParamSpec

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tadnn.errors import RequestError
from tadnn.files import atomic_path
from tadnn.report.text import count_text

P = ParamSpec("P")

# Okabe and Ito's palette: told apart with every common colour blindness, and in grey.
PREDICTED: Final = "#0072B2"
MEASURED: Final = "#D55E00"
DIMMED: Final = "#9AA0A6"
INK: Final = "#222222"
QUIET: Final = "#5F6368"

LOG_SPAN: Final = 5.0
"""Latencies that span more than this factor get a logarithmic axis."""

TITLE_SIZE: Final = 13.0
LINE_SIZE: Final = 9.5

MIN_SPAN: Final = 0.2
"""A latency axis shows at least this share of its highest latency."""

_LOOK: Final[dict[str, Any]] = {
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E6E8",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "errorbar.capsize": 3,
    "savefig.dpi": 150,
    "svg.hashsalt": "tadnn",  # else the ids in a file differ from run to run
    "text.parse_math": False,  # a study may be called $x_1$
}

# Without dates the same figure gives the same bytes.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a drawing function use the one look, whatever the user's matplotlibrc says."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style.context(["default", _LOOK]):
            return draw(*args, **kwargs)

    return drawn


def save_figure(figure: Figure, *paths: Path) -> list[Path]:
    """Write a figure to each path, atomically, as PNG, SVG or PDF by its suffix.

    Returns:
        The paths.

    Raises:
        RequestError: another suffix.
        Unwritable: a folder cannot be written or the disk is full.
    """
    for path in paths:
        if path.suffix not in _METADATA:
            raise RequestError(
                f"a plot's suffix is one of {', '.join(sorted(_METADATA))}; got {path.name!r}"
            )
    with style.context(["default", _LOOK]):
        for path in paths:
            with atomic_path(path) as temporary:
                figure.savefig(temporary, metadata=_METADATA[path.suffix])
    return list(paths)


def new_figure(width: float, height: float, title: str, *lines: str) -> Figure:
    """Return an empty figure in inches with a title block that the axes keep clear of.

    Args:
        width: in inches.
        height: of everything below the title block, in inches.
        title: in bold.
        lines: what stands below it; empty ones are left out, long ones are wrapped.
    """
    # Letters of this font are 0.55 em wide on average, wide ones of bold titles 0.66.
    titles = textwrap.wrap(title, int((width - 0.3) * 72 / (0.66 * TITLE_SIZE))) or [""]
    room = int((width - 0.3) * 72 / (0.55 * LINE_SIZE))
    wrapped = [part for line in lines if line for part in _wrapped(line, room)]
    head = 0.14 + 0.25 * len(titles) + 0.19 * len(wrapped) + 0.14
    total = height + head
    figure = Figure(figsize=(width, total))
    figure.set_layout_engine(
        "constrained", rect=(0.01, 0.01, 0.98, height / total - 0.01), w_pad=0.1, h_pad=0.06
    )
    at: dict[str, Any] = {"x": 0.12 / width, "va": "top", "ha": "left"}
    y = 0.14
    for text in titles:
        figure.text(y=1 - y / total, s=text, fontsize=TITLE_SIZE, fontweight="bold", **at)
        y += 0.25
    for text in wrapped:
        figure.text(y=1 - (y + 0.03) / total, s=text, fontsize=LINE_SIZE, color=QUIET, **at)
        y += 0.19
    return figure


def _wrapped(line: str, room: int) -> list[str]:
    # Facts are joined by dots; one at the end of a line joins nothing.
    return [part.removesuffix(" ·") for part in textwrap.wrap(line, room)]


def latency_axis(axis: Axis, values: Iterable[float], *, pad: float = 0.06) -> None:
    """Scale an axis to latencies: logarithmic where they span more than ``LOG_SPAN``.

    Ticks read as plain numbers either way; ``pad`` is the margin, a share of the axis.
    """
    found = [v for v in values if math.isfinite(v) and v > 0]
    low, high = (min(found), max(found)) if found else (1.0, 1.0)
    setter = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim  # type: ignore[attr-defined]
    if high > LOG_SPAN * low:
        scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale  # type: ignore[attr-defined]
        scale("log", nonpositive="clip")
        reach = (high / low) ** pad
        setter(low / reach, high * reach)
        subs = (1.0, 2.0, 5.0) if high < 100 * low else (1.0, 3.0) if high < 1e4 * low else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    # Never so close that noise looks like a difference.
    middle, half = (low + high) / 2, max(high - low, MIN_SPAN * high) * (0.5 + pad)
    setter(middle - half, middle + half)
    axis.set_major_locator(MaxNLocator(6))


def count_axis(axis: Axis) -> None:
    """Write an axis's ticks with magnitudes, as ``20 M``."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))


def say(axes: Axes, text: str) -> None:
    """Write why there is nothing to draw into empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
    axes.set_xticks([])
    axes.set_yticks([])
