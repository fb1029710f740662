"""The front as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from tadnn.report.front_view import FrontView, PhaseView, PointView
from tadnn.report.text import count_text, number_text, pair_text, share_text

ARCHITECTURE = "architecture"
LATENCIES = ("predicted ms", "measured ms")
COLUMNS = ("trial", ARCHITECTURE, *LATENCIES, "proxy", "accuracy", "parameters", "FLOPs")
KNEE = "knee "
ROOM = 24
GAP = 2
UNKNOWN = "–"
OUT_OF_RANGE = "?"


def front_columns(view: FrontView) -> tuple[str, ...]:
    """Return the names of the columns: ``COLUMNS``, and both latencies of every phase."""
    named = tuple(f"{phase} {column}" for phase in view.phases for column in LATENCIES)
    at = COLUMNS.index(LATENCIES[-1]) + 1
    return (*COLUMNS[:at], *named, *COLUMNS[at:])


def front_rows(view: FrontView) -> list[tuple[str, ...]]:
    """Return the members as rows of text, one value per entry of ``front_columns``.

    The knee is marked in the first column; a prediction out of the latency model's range ends
    in a question mark.
    """
    return [_row(view, point) for point in view.members]


def front_table(view: FrontView, width: int = 80) -> Table:
    """Return the members as a table for a terminal ``width`` columns wide; the knee stands out.

    Numbers are never cut: where there is no room even for them the table is wider, so print it
    without cropping. Architectures are shown where there is room for them.
    """
    rows, columns = front_rows(view), front_columns(view)
    numbers = [i for i, column in enumerate(columns) if column != ARCHITECTURE]
    needed = sum(
        max(len(text) for text in (*columns[i].split(), *(r[i] for r in rows))) for i in numbers
    )
    room = width - needed - GAP * len(columns) - 2
    table = Table(
        title=f"{view.study}: {len(rows)} on the front",
        caption=_caption(view),
        box=box.SIMPLE_HEAD,
        padding=(0, GAP - 1, 0, 0),
    )
    shown = [i for i, column in enumerate(columns) if column != ARCHITECTURE or room >= ROOM]
    for i in shown:
        if columns[i] == ARCHITECTURE:
            table.add_column(columns[i], overflow="fold", max_width=room)
        else:
            table.add_column(columns[i].replace(" ", "\n"), justify="right", no_wrap=True)
    for point, row in zip(view.members, rows, strict=True):
        style = "bold" if point.trial == view.knee else None
        table.add_row(*(row[i] for i in shown), style=style)
    if room < 0:  # long lines are better than lost digits
        table.width = width - room
    return table


def _row(view: FrontView, point: PointView) -> tuple[str, ...]:
    unknown = PhaseView()
    return (
        f"{KNEE if point.trial == view.knee else ''}{point.trial}",
        point.arch,
        *_latencies(point),
        *(text for p in view.phases for text in _latencies(point.phases.get(p, unknown))),
        UNKNOWN if point.proxy is None else number_text(point.proxy),
        UNKNOWN if point.accuracy is None else f"{point.accuracy:.3f}",
        count_text(point.parameters),
        count_text(point.flops),
    )


def _latencies(latency: PointView | PhaseView) -> tuple[str, str]:
    predicted = measured = UNKNOWN
    if latency.predicted_ms is not None:
        predicted = pair_text(latency.predicted_ms, latency.std_ms)
        predicted += "" if latency.in_range else OUT_OF_RANGE
    if latency.measured_ms is not None:
        measured = pair_text(latency.measured_ms, latency.spread_ms)
    return predicted, measured


def _caption(view: FrontView) -> str:
    latencies: list[PointView | PhaseView] = [*view.members]
    latencies += [phase for point in view.members for phase in point.phases.values()]
    lines = [view.subtitle]
    if not all(latency.in_range for latency in latencies):
        lines.append(f"{OUT_OF_RANGE}: outside of the latency model's range")
    shares = [latency.unprofiled_share for latency in latencies if latency.unprofiled_share]
    if shares:
        least, most = share_text(min(shares)), share_text(max(shares))
        span = least if least == most else f"{least} to {most}"
        lines.append(f"{span} of the latencies is of kinds of kernels that nobody measured")
    return "\n".join(lines)
