"""What reads a public table, one row at a time; the tables are in :mod:`table_adapters`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import KernelError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel

Row = Mapping[str, str]
Pick = Callable[[Sequence[str]], str]
"""Picks one of a column's values, where no one else does."""


@dataclass(frozen=True)
class Measured:
    """One row: a kernel, or a network's target and batch; microseconds."""

    subject: Kernel | tuple[str, int]
    latency_us: float
    spread_us: float | None = None
    repeats: int | None = None


class TableAdapter(ABC):
    """Reads one public table."""

    about: ClassVar[str]
    timings: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Pick]] = {}

    def device(self, row: Row) -> str:
        """Return the device's name as the table writes it."""
        return row["device"]

    @abstractmethod
    def convert(self, rows: Sequence[Row], spec: DeviceSpec) -> Iterator[Measured | str]:
        """Yield what was measured on one device, or why a row is left out."""


class RowByRow(TableAdapter):
    """Rows that don't need each other."""

    def convert(self, rows: Sequence[Row], spec: DeviceSpec) -> Iterator[Measured | str]:
        for row in rows:
            try:
                yield self.one(row)
            except KernelError as error:
                yield f"no such kernel: {str(error).split(';')[0]}"
            except (KeyError, ValueError, OverflowError) as error:
                yield f"unreadable row ({type(error).__name__})"

    @abstractmethod
    def one(self, row: Row) -> Measured | str:
        """Return what a row measured, or why it is left out."""


def us_of(row: Row, column: str, scale: float = 1e3) -> float:
    value = float(row[column]) * scale
    if not (math.isfinite(value) and value > 0):
        raise ValueError(column)
    return value


def int_of(text: str) -> int:
    value = float(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def prefer(*wanted: str) -> Pick:
    """Return a pick of the first of ``wanted`` that is there, or the last value."""
    return lambda values: next((w for w in wanted if w in values), values[-1])
