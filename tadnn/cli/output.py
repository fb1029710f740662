"""Printing: tables for people, JSON for programs, progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from tadnn.progress import Advance, Progress

_SHORT, _FOLDED = 24, 16

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_json(value: object) -> None:
    """Print strict JSON on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; nothing is cut, None is a dash.

    Numbers stand on the right, those of a column with the same decimals. Texts are folded
    where the terminal is too narrow, short names and numbers never.
    """
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown, width = [], 1
    table = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        values = [row[index] for row in rows]
        texts = _texts(values)
        longest = max(map(len, (*column.split("\n"), *texts)))
        fixed = longest <= _SHORT
        side: Literal["left", "right"] = "right" if _numeric(values) else "left"
        table.add_column(column, justify=side, overflow="fold", no_wrap=fixed)
        shown.append(texts)
        width += (longest if fixed else _FOLDED) + 2
    for row in zip(*shown, strict=True):
        table.add_row(*(escape(text) for text in row))
    # Where even the least does not fit, long lines are better than lost digits.
    Console(highlight=False, width=max(width, Console().width)).print(table)


def path_text(path: Path) -> str:
    """Return a path as it is shortest to read here: relative where that leads downwards."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def say(text: str) -> None:
    """Print one line for people on standard error, so that standard output stays the result."""
    print(text, file=sys.stderr)


class Bars(Progress):
    """Progress bars on standard error; plain lines where that is no terminal."""

    @contextmanager
    def task(self, label: str, total: int | None) -> Iterator[Advance]:
        """Draw one bar."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Rich

        console = Console(stderr=True)
        if not console.is_terminal:
            with self._lines(label, total) as advance:
                yield advance
            return
        columns = [TextColumn("{task.description}"), BarColumn()]
        columns += [MofNCompleteColumn()] if total is not None else []
        columns += [TimeElapsedColumn(), TimeRemainingColumn()]
        with Rich(*columns, console=console) as bars:
            task = bars.add_task(label, total=total)
            yield lambda steps: bars.advance(task, steps)
            if total is None:
                bars.update(task, total=1, completed=1)

    def note(self, text: str) -> None:
        """Print a note."""
        say(f"note: {text}")

    @contextmanager
    def _lines(self, label: str, total: int | None) -> Iterator[Advance]:
        done, shown = 0, 0

        def advance(steps: int) -> None:
            nonlocal done, shown
            done += steps
            tenth = 10 * done // total if total else 0
            if tenth > shown:
                shown = tenth
                say(f"{label}: {done}/{total}")

        say(label if total is None else f"{label}: 0/{total}")
        yield advance


def _numeric(values: Sequence[object]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) for value in present)


def _texts(values: Sequence[object]) -> list[str]:
    floats = [v for v in values if isinstance(v, float)]
    exact = all(v == int(v) for v in floats)
    largest = max(map(abs, floats), default=0.0)
    decimals = 0 if exact or largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return [
        "-" if v is None else f"{v:z.{decimals}f}" if isinstance(v, float) else str(v)
        for v in values
    ]
