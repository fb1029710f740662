"""One device of one public table, as a kernel table or a timing table.

    python benchmarks/public_tables.py TABLE --device SLUG -o OUT.csv [--data DIR]
        [--where COLUMN=VALUE ...]
    python benchmarks/public_tables.py --list

TABLE is a file of DIR without its ending (``neusight_gemm_fp32``), or enough of its beginning.
DEVICE is tadnn's slug or any name that the tables use. Where one shape was measured several
times, a row holds the median, its spread (1.4826 x the median absolute deviation) and the count.
What a table holds and an adapter can't express is left out and counted on stderr. ``--where``
picks among what may not be mixed (``dtype=fp16``, ``layout=nhwc``, ``torch=pt221``); each table
has its defaults. Whole networks have the targets ``timm:MODEL@SIZE`` and
``neusight:MODEL@TOKENS``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from table_adapter import Measured, Row, TableAdapter
from table_adapters import ADAPTERS, REFUSED

from tadnn.errors import RequestError, TadnnError, UnknownName
from tadnn.hardware import DeviceSpec, find_device
from tadnn.kernels import Kernel, KernelRow, TimingRow, write_kernel_table, write_timing_table

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_SPREAD = 1.4826  # of a normal variable's median absolute deviation


def find_table(name: str, data: Path = DATA) -> tuple[TableAdapter, Path]:
    """Return the adapter of a table and its file.

    Raises:
        UnknownName: there is no such table.
        RequestError: it is one that holds neither kernels nor networks, or DIR lacks it.
    """
    stem = Path(name).name.removesuffix(".gz").removesuffix(".csv")
    known = [*ADAPTERS, *REFUSED]
    matches = [stem] if stem in known else [k for k in known if stem and k.startswith(stem)]
    if len(matches) != 1:
        raise UnknownName("table", name, matches or known)
    if matches[0] in REFUSED:
        raise RequestError(
            f"{matches[0]} has no kernels and no networks that tadnn can build: "
            f"{REFUSED[matches[0]]}. Tables: {', '.join(ADAPTERS)}"
        )
    for ending in (".csv.gz", ".csv"):
        path = data / f"{matches[0]}{ending}"
        if path.is_file():
            return ADAPTERS[matches[0]], path
    raise RequestError(f"--data is the folder of the tables; there is no {matches[0]} in {data}")


def read_rows(path: Path) -> list[Row]:
    """Read a CSV file, gzipped or not.

    Raises:
        RequestError: it is damaged.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            return list(csv.DictReader(file))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error


def devices_of(rows: Sequence[Row], adapter: TableAdapter) -> dict[str, set[str]]:
    """Return the names that a table uses for each device, by slug; unknown ones by themselves."""
    slugs: dict[str, set[str]] = {}
    for name in sorted({adapter.device(row) for row in rows}):
        try:
            slug = find_device(name).slug
        except UnknownName:
            slug = name
        slugs.setdefault(slug, set()).add(name)
    return slugs


def select(
    rows: Sequence[Row], adapter: TableAdapter, device: str, where: Mapping[str, str]
) -> tuple[DeviceSpec, list[Row]]:
    """Return a device and its rows: those that ``where``, and the table's defaults, pick.

    Raises:
        UnknownName: the device isn't known, or isn't in the table.
        RequestError: a column isn't there, or nothing is left.
    """
    slugs = devices_of(rows, adapter)
    try:
        spec = find_device(device)
    except UnknownName:
        raise UnknownName("device of this table", device, slugs) from None
    if spec.slug not in slugs:
        raise UnknownName("device of this table", device, slugs)
    picked = [row for row in rows if adapter.device(row) in slugs[spec.slug]]
    for column in where:
        if column not in picked[0]:
            raise RequestError(
                f"--where names a column; got {column!r}. Columns: {', '.join(picked[0])}"
            )
    for column, value in {**dict.fromkeys(adapter.defaults), **where}.items():
        values = sorted({row[column] for row in picked})
        wanted = adapter.defaults[column](values) if value is None else value
        picked = [row for row in picked if row[column] == wanted]
        if value is None and len(values) > 1:
            print(
                f"{column}: {wanted} of {', '.join(v or '(none)' for v in values)}", file=sys.stderr
            )
        if not picked:
            raise RequestError(f"no row has {column}={wanted}; values there: {', '.join(values)}")
    return spec, picked


def convert(
    rows: Sequence[Row], adapter: TableAdapter, spec: DeviceSpec
) -> tuple[list[KernelRow] | list[TimingRow], Counter[str]]:
    """Return the rows of one device as measurements, in order of kernel, and what was left out.

    Raises:
        RequestError: nothing can be expressed.
    """
    skipped: Counter[str] = Counter()
    groups: dict[object, list[Measured]] = {}
    for made in adapter.convert(rows, spec):
        if isinstance(made, str):
            skipped[made] += 1
        else:
            groups.setdefault(made.subject, []).append(made)
    if not groups:
        why = ", ".join(f"{reason} ({n})" for reason, n in skipped.items())
        raise RequestError(f"no row of {spec.slug} can be expressed: {why}")
    if adapter.timings:
        return list(_timings(groups)), skipped
    return sorted(_kernels(groups), key=lambda row: row.kernel.key), skipped


def read_device(
    table: str, device: str, data: Path = DATA, where: Mapping[str, str] | None = None
) -> tuple[DeviceSpec, list[KernelRow] | list[TimingRow]]:
    """Return a device's facts and its rows of a table.

    Raises:
        TadnnError: as :func:`find_table`, :func:`select` and :func:`convert`.
    """
    adapter, path = find_table(table, data)
    spec, rows = select(read_rows(path), adapter, device, where or {})
    return spec, convert(rows, adapter, spec)[0]


def _kernels(groups: Mapping[object, Sequence[Measured]]) -> Iterator[KernelRow]:
    for kernel, made in groups.items():
        assert isinstance(kernel, Kernel)
        middle, spread, repeats = _together(made)
        yield KernelRow(kernel, _digits(middle), _digits(spread), repeats)


def _timings(groups: Mapping[object, Sequence[Measured]]) -> Iterator[TimingRow]:
    for subject, made in sorted(groups.items(), key=lambda item: str(item[0])):
        assert isinstance(subject, tuple)
        middle, spread, _ = _together(made)
        spread_ms = None if spread is None else _digits(spread / 1e3)
        yield TimingRow(subject[0], subject[1], _digits(middle / 1e3), spread_ms)


def _together(made: Sequence[Measured]) -> tuple[float, float | None, int | None]:
    """Return the median of repeated rows, their spread or that of the only one, and the count."""
    if len(made) == 1:
        return made[0].latency_us, made[0].spread_us, made[0].repeats
    values = sorted(m.latency_us for m in made)
    middle = _median(values)
    spread = _SPREAD * _median(sorted(abs(v - middle) for v in values))
    return middle, spread, sum(m.repeats or 1 for m in made)


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _listing() -> str:
    lines = [f"{name:34}{adapter.about}" for name, adapter in ADAPTERS.items()]
    return "\n".join([*lines, *(f"{name:34}refused: {why}" for name, why in REFUSED.items())])


def _where(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"--where reads COLUMN=VALUE; got {text!r}")
    return column, value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", nargs="?", metavar="TABLE", help="which table")
    parser.add_argument("--list", action="store_true", help="list the tables and end")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where they are")
    parser.add_argument("--device", metavar="SLUG", help="which device")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT.csv", help="the table to write")
    parser.add_argument("--where", type=_where, action="append", default=[], metavar="COLUMN=VALUE")
    args = parser.parse_args(argv)
    if args.list:
        print(_listing())
        return 0
    if args.table is None or args.out is None:
        parser.error("TABLE, --device and -o are needed; --list shows the tables")
    try:
        adapter, path = find_table(args.table, args.data)
        spec, picked = select(read_rows(path), adapter, args.device or "", dict(args.where))
        rows, skipped = convert(picked, adapter, spec)
        if adapter.timings:
            write_timing_table(args.out, rows)
        else:
            write_kernel_table(args.out, rows)
    except TadnnError as error:
        print(f"public_tables: {error}", file=sys.stderr)
        return error.exit_code
    for reason, count in sorted(skipped.items()):
        print(f"left out {count} rows: {reason}", file=sys.stderr)
    print(f"{spec.slug}: {len(rows)} rows -> {args.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
