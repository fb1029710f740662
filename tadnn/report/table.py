"""The front as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from tadnn.report.front_view import FrontView, PointView
from tadnn.report.text import count_text, number_text, pair_text

ARCHITECTURE = "architecture"
COLUMNS = (
    "trial",
    ARCHITECTURE,
    "predicted ms",
    "measured ms",
    "proxy",
    "accuracy",
    "parameters",
    "FLOPs",
)
KNEE = "knee "
ROOM = 24
GAP = 2
UNKNOWN = "–"
OUT_OF_RANGE = "?"


def front_rows(view: FrontView) -> list[tuple[str, ...]]:
    """Return the members as rows of text, one value per entry of ``COLUMNS``.

    The knee is marked in the first column; a prediction out of the latency model's range ends
    in a question mark.
    """
    return [_row(view, point) for point in view.members]


def front_table(view: FrontView, width: int = 80) -> Table:
    """Return the members as a table for a terminal ``width`` columns wide; the knee stands out.

    Numbers are never cut. Architectures are shown where there is room for them.
    """
    rows = front_rows(view)
    numbers = [i for i, column in enumerate(COLUMNS) if column != ARCHITECTURE]
    needed = sum(
        max(len(text) for text in (*COLUMNS[i].split(), *(r[i] for r in rows))) for i in numbers
    )
    room = width - needed - GAP * len(COLUMNS) - 2
    table = Table(
        title=f"{view.study}: {len(rows)} on the front",
        caption=_caption(view),
        box=box.SIMPLE_HEAD,
        padding=(0, GAP - 1, 0, 0),
    )
    shown = [i for i, column in enumerate(COLUMNS) if column != ARCHITECTURE or room >= ROOM]
    for i in shown:
        if COLUMNS[i] == ARCHITECTURE:
            table.add_column(COLUMNS[i], overflow="fold", max_width=room)
        else:
            table.add_column(COLUMNS[i].replace(" ", "\n"), justify="right", no_wrap=True)
    for point, row in zip(view.members, rows, strict=True):
        style = "bold" if point.trial == view.knee else None
        table.add_row(*(row[i] for i in shown), style=style)
    return table


def _row(view: FrontView, point: PointView) -> tuple[str, ...]:
    predicted = measured = UNKNOWN
    if point.predicted_ms is not None:
        predicted = pair_text(point.predicted_ms, point.std_ms)
        predicted += "" if point.in_range else OUT_OF_RANGE
    if point.measured_ms is not None:
        measured = pair_text(point.measured_ms, point.spread_ms)
    return (
        f"{KNEE if point.trial == view.knee else ''}{point.trial}",
        point.arch,
        predicted,
        measured,
        UNKNOWN if point.proxy is None else number_text(point.proxy),
        UNKNOWN if point.accuracy is None else f"{point.accuracy:.3f}",
        count_text(point.parameters),
        count_text(point.flops),
    )


def _caption(view: FrontView) -> str:
    doubtful = sum(not point.in_range for point in view.members)
    if not doubtful:
        return view.subtitle
    return f"{view.subtitle}\n{OUT_OF_RANGE}: outside of the latency model's range"
