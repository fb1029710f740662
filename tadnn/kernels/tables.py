"""The two exchange formats for measurements: kernel tables and timing tables.

Kernel table: CSV with the header ``kernel,latency_us`` and optionally
``spread_us,repeats``. Timing table: CSV with the header
``target,batch,latency_ms`` and optionally ``spread_ms``. Both may be gzipped
(``.csv.gz``).
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tadnn.errors import KernelError, RequestError, TableError
from tadnn.files import atomic_open
from tadnn.kernels.kernel import Kernel


@dataclass(frozen=True)
class KernelRow:
    """One measured kernel; microseconds."""

    kernel: Kernel
    latency_us: float
    spread_us: float | None = None
    repeats: int | None = None


@dataclass(frozen=True)
class TimingRow:
    """One measured network; milliseconds per batch."""

    target: str
    batch: int
    latency_ms: float
    spread_ms: float | None = None


def read_kernel_table(path: Path) -> list[KernelRow]:
    """Read a kernel table.

    Raises:
        TableError: a row breaks a rule; the message gives the line.
        RequestError: there is no such file.
    """
    rows = []
    for where, fields in _rows(path, ("kernel", "latency_us"), ("spread_us", "repeats")):
        try:
            kernel = Kernel.parse(fields["kernel"])
        except KernelError as error:
            raise TableError(f"{where}: {error}") from error
        rows.append(
            KernelRow(
                kernel,
                _latency(where, "latency_us", fields["latency_us"]),
                _optional_spread(where, "spread_us", fields.get("spread_us", "")),
                _count(where, "repeats", fields["repeats"]) if fields.get("repeats") else None,
            )
        )
    return rows


def write_kernel_table(path: Path, rows: Iterable[KernelRow]) -> None:
    """Write a kernel table (gzipped when the name ends in ``.gz``), atomically."""
    _write(
        path,
        ("kernel", "latency_us", "spread_us", "repeats"),
        ((row.kernel.key, row.latency_us, row.spread_us, row.repeats) for row in rows),
    )


def read_timing_table(path: Path) -> list[TimingRow]:
    """Read a timing table.

    Raises:
        TableError: a row breaks a rule; the message gives the line.
        RequestError: there is no such file.
    """
    rows = []
    for where, fields in _rows(path, ("target", "batch", "latency_ms"), ("spread_ms",)):
        if not fields["target"]:
            raise TableError(f"{where}: target names a network; got nothing")
        rows.append(
            TimingRow(
                fields["target"],
                _count(where, "batch", fields["batch"]),
                _latency(where, "latency_ms", fields["latency_ms"]),
                _optional_spread(where, "spread_ms", fields.get("spread_ms", "")),
            )
        )
    return rows


def write_timing_table(path: Path, rows: Iterable[TimingRow]) -> None:
    """Write a timing table (gzipped when the name ends in ``.gz``), atomically."""
    _write(
        path,
        ("target", "batch", "latency_ms", "spread_ms"),
        ((row.target, row.batch, row.latency_ms, row.spread_ms) for row in rows),
    )


def is_timing_table(path: Path) -> bool:
    """Tell a timing table from a kernel table by its header."""
    return "target" in next(_records(path), (0, []))[1]


def _rows(
    path: Path, required: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    records = _records(path)
    _, header = next(records, (0, []))
    _check_header(path, header, required, optional)
    count = 0
    for line, row in records:
        where = f"{path}, line {line}"
        if not row:
            continue
        if len(row) != len(header):
            raise TableError(
                f"{where}: a row has {len(header)} fields ({','.join(header)}); "
                f"got {len(row)}: {','.join(row)!r}"
            )
        count += 1
        yield where, dict(zip(header, row, strict=True))
    if not count:
        raise TableError(f"{path}: a table has at least one row; got none")


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each record's fields and the line it starts on."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    line = 1
    try:
        for row in reader:
            # A quote that was cut off swallows the lines that follow.
            if any("\n" in value or "\r" in value for value in row):
                raise TableError(f"{path}, line {line}: a quoted field ends on its line")
            yield line, [value.strip() for value in row]
            line = reader.line_num + 1
    except csv.Error as error:
        raise TableError(f"{path}, line {line}: not a line of CSV: {error}") from error


def _check_header(
    path: Path, header: list[str], required: Sequence[str], optional: Sequence[str]
) -> None:
    rule = f"the header of this table is {','.join(required)} and optionally {','.join(optional)}"
    for name in header:
        if name in required or name in optional:
            continue
        stem, _, unit = name.rpartition("_")
        wanted = next(
            (known for known in (*required, *optional) if known.startswith(stem + "_")), ""
        )
        if stem and wanted and unit in {"ns", "us", "ms", "s", "sec", "seconds"}:
            raise TableError(f"{path}, line 1: wrong unit {name!r}; the unit here is {wanted!r}")
        raise TableError(f"{path}, line 1: unknown column {name!r}; {rule}")
    if len(set(header)) != len(header):
        raise TableError(f"{path}, line 1: a column stands twice; {rule}")
    missing = [name for name in required if name not in header]
    if missing:
        raise TableError(f"{path}, line 1: no column {', '.join(missing)}; {rule}")


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if path.name.endswith(".gz"):
            raw = gzip.decompress(raw)
        # Spreadsheets put a byte order mark in front and end lines as they like.
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TableError(f"{path} cannot be read as a table: {error}") from error


def _number(where: str, column: str, text: str) -> float:
    try:
        if "_" not in text:  # which Python allows in numbers, and nobody else
            return float(text)
    except ValueError:
        pass
    raise TableError(f"{where}: {column} is a number; got {text!r}")


def _latency(where: str, column: str, text: str) -> float:
    value = _number(where, column, text)
    if not (math.isfinite(value) and value > 0):
        raise TableError(f"{where}: {column} is a positive, finite number; got {text!r}")
    return value


def _optional_spread(where: str, column: str, text: str) -> float | None:
    if not text:
        return None
    value = _number(where, column, text)
    if not (math.isfinite(value) and value >= 0):
        raise TableError(f"{where}: {column} is a finite number, not negative; got {text!r}")
    return value


def _count(where: str, column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise TableError(f"{where}: {column} is a positive whole number; got {text!r}")
    return int(text)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with atomic_open(path, "wb") as file:
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(
                "" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in row
            )
        data = buffer.getvalue().encode()
        # A fixed time stamp keeps the bytes, and so the hash on a card, reproducible.
        file.write(gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)
