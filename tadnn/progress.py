"""How long work tells what it is doing; the command line draws it, libraries stay silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


class Progress:
    """Receives progress and says nothing; subclass it to draw.

    Used from one thread at a time.
    """

    @contextmanager
    def task(self, label: str, total: int | None) -> Iterator[Advance]:
        """Enter a piece of ``total`` steps (None: unknown); call the value with steps done."""
        yield lambda steps: None

    def note(self, text: str) -> None:
        """Receive one line worth reading, such as a choice that was made."""


SILENT = Progress()
