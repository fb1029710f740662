from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

from tadnn.errors import RequestError, TableError, Unwritable
from tadnn.kernels import (
    Kernel,
    KernelRow,
    TimingRow,
    is_timing_table,
    read_kernel_table,
    read_timing_table,
    write_kernel_table,
    write_timing_table,
)

LINEAR = Kernel("linear", (1, 10, 64))
HEADER = "kernel,latency_us,spread_us,repeats\n"
LINE = f'"{LINEAR.key}",12.5,0.25,7\n'

KERNEL_ROWS = [
    KernelRow(LINEAR, 12.5, 0.25, 7),
    KernelRow(Kernel("relu", (3, 4), "fp16"), 0.001, 0.0, 1),
    KernelRow(
        Kernel("conv2d", (1, 3, 8, 8, 4, 3, 3, 1, 1, 1, 1), "bf16", ("bias", "relu")), 1234.5
    ),
]
TIMING_ROWS = [
    TimingRow("resnet50", 8, 3.25, 0.5),
    TimingRow("file.py:make, with a comma", 1, 0.125),
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def refused(path: Path, content: str | bytes, message: str) -> None:
    """Both the message and, for kernel tables, the file's name are shown."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TableError, match=re.escape(message)) as caught:
        read_kernel_table(path)
    assert str(path) in str(caught.value)


class TestRoundTrip:
    @pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
    def test_kernel_tables(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "new" / name
        write_kernel_table(path, KERNEL_ROWS)
        assert read_kernel_table(path) == KERNEL_ROWS
        assert not is_timing_table(path)
        assert [p.name for p in path.parent.iterdir()] == [name]

    @pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
    def test_timing_tables(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write_timing_table(path, TIMING_ROWS)
        assert read_timing_table(path) == TIMING_ROWS
        assert is_timing_table(path)

    def test_what_is_written(self, table: Path) -> None:
        write_kernel_table(table, KERNEL_ROWS[:1])
        assert table.read_bytes() == (HEADER + LINE).encode()
        write_timing_table(table, TIMING_ROWS)
        assert table.read_text() == (
            "target,batch,latency_ms,spread_ms\n"
            "resnet50,8,3.25,0.5\n"
            '"file.py:make, with a comma",1,0.125,\n'
        )

    def test_gzipped_bytes_do_not_depend_on_the_clock(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv.gz"
        write_kernel_table(path, KERNEL_ROWS)
        raw = path.read_bytes()
        assert raw[4:8] == bytes(4)  # the time stamp of the gzip format
        assert gzip.decompress(raw).startswith(b"kernel,latency_us")

    def test_six_digits_are_kept(self, table: Path) -> None:
        rng = random.Random(0)
        rows = [KernelRow(LINEAR, rng.uniform(0, 1) * 10 ** rng.randint(-4, 7)) for _ in range(200)]
        write_kernel_table(table, rows)
        for before, after in zip(rows, read_kernel_table(table), strict=True):
            assert after.latency_us == pytest.approx(before.latency_us, rel=5e-6)

    def test_unwritable(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(Unwritable, match=r"cannot write .*t\.csv"):
            write_kernel_table(tmp_path / "file" / "t.csv", KERNEL_ROWS)


class TestAccepted:
    @pytest.mark.parametrize(
        "content",
        [
            HEADER + LINE,
            (HEADER + LINE).replace("\n", "\r\n"),
            (HEADER + LINE).replace("\n", "\r"),
            (HEADER + LINE).rstrip("\n"),
            "\ufeff" + HEADER + LINE,
            HEADER + "\n" + LINE + "\n\n",
            f'repeats, spread_us , kernel,latency_us\n7,0.25,"{LINEAR.key}",12.5\n',
        ],
        ids=["plain", "crlf", "cr", "no end", "byte order mark", "blank lines", "other order"],
    )
    def test_variants_read_alike(self, table: Path, content: str) -> None:
        table.write_bytes(content.encode())
        assert read_kernel_table(table) == KERNEL_ROWS[:1]

    def test_only_the_required_columns(self, table: Path) -> None:
        table.write_text(f'kernel,latency_us\n"{LINEAR.key}",1e2\n')
        assert read_kernel_table(table) == [KernelRow(LINEAR, 100.0, None, None)]
        table.write_text("target,batch,latency_ms\na,1,2\n")
        assert read_timing_table(table) == [TimingRow("a", 1, 2.0, None)]

    def test_optional_fields_may_be_empty(self, table: Path) -> None:
        table.write_text(HEADER + f'"{LINEAR.key}",12.5,,\n')
        assert read_kernel_table(table) == [KernelRow(LINEAR, 12.5, None, None)]


class TestHeader:
    @pytest.mark.parametrize(
        ("header", "message"),
        [
            ("kernel,latency_ms", "line 1: wrong unit 'latency_ms'; the unit here is 'latency_us'"),
            ("kernel,latency_ns", "wrong unit 'latency_ns'; the unit here is 'latency_us'"),
            ("kernel,latency_us,spread_ms", "wrong unit 'spread_ms'; the unit here is 'spread_us'"),
            ("kernel,latency", "unknown column 'latency'; the header of this table is kernel,lat"),
            ("kernel,latency_us,power_w", "unknown column 'power_w'"),
            ("kernel,latency_us,", "unknown column ''"),
            ("kernel,latency_us,latency_us", "a column stands twice"),
            ("kernel", "no column latency_us"),
            ("latency_us", "no column kernel"),
            ("", "no column kernel, latency_us"),
            ("target,batch,latency_ms", "unknown column 'target'"),
        ],
    )
    def test_kernel_tables(self, table: Path, header: str, message: str) -> None:
        refused(table, f"{header}\n{LINE}", message)

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            ("target,batch,latency_us", "wrong unit 'latency_us'; the unit here is 'latency_ms'"),
            ("target,latency_ms", "no column batch"),
            ("target,batch,batch,latency_ms", "a column stands twice"),
            ("kernel,latency_us", "unknown column 'kernel'"),
        ],
    )
    def test_timing_tables(self, table: Path, header: str, message: str) -> None:
        table.write_text(f"{header}\na,1,2\n")
        with pytest.raises(TableError, match=re.escape(message)):
            read_timing_table(table)

    def test_empty_files(self, table: Path) -> None:
        refused(table, "", "line 1: no column kernel, latency_us")
        assert not is_timing_table(table)
        refused(table, HEADER, "a table has at least one row; got none")


class TestRows:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (f'"{LINEAR.key}",12.5', "a row has 4 fields (kernel,latency_us,spread_us,repeats)"),
            (f'"{LINEAR.key}",12.5,0.2,7,8', "got 5"),
            (LINEAR.key + ",12.5,0.25,7", "a row has 4 fields"),
            (f'"{LINEAR.key}', "line of CSV"),
            (f'"{LINEAR.key}"x,1,1,1', "line of CSV"),
            (f'"{LINEAR.key}",,0.2,7', "latency_us is a number; got ''"),
            (f'"{LINEAR.key}",fast,0.2,7', "latency_us is a number; got 'fast'"),
            (f'"{LINEAR.key}",12.5us,0.2,7', "latency_us is a number; got '12.5us'"),
            (f'"{LINEAR.key}",1_000,0.2,7', "latency_us is a number; got '1_000'"),
            (f'"{LINEAR.key}",nan,0.2,7', "a positive, finite number; got 'nan'"),
            (f'"{LINEAR.key}",-inf,0.2,7', "a positive, finite number; got '-inf'"),
            (f'"{LINEAR.key}",-3,0.2,7', "a positive, finite number; got '-3'"),
            (f'"{LINEAR.key}",0,0.2,7', "a positive, finite number; got '0'"),
            (f'"{LINEAR.key}",1e999,0.2,7', "a positive, finite number; got '1e999'"),
            (f'"{LINEAR.key}",12.5,-0.1,7', "spread_us is a finite number, not negative"),
            (f'"{LINEAR.key}",12.5,nan,7', "spread_us is a finite number, not negative"),
            (f'"{LINEAR.key}",12.5,wide,7', "spread_us is a number; got 'wide'"),
            (f'"{LINEAR.key}",12.5,0.2,7.0', "repeats is a positive whole number; got '7.0'"),
            (f'"{LINEAR.key}",12.5,0.2,0', "repeats is a positive whole number; got '0'"),
            (f'"{LINEAR.key}",12.5,0.2,-7', "repeats is a positive whole number; got '-7'"),
            (f'"{LINEAR.key}",12.5,0.2,{"7" * 5000}', "repeats is a positive whole number"),
            ('"linear(m=1,n=10)",12.5,0.2,7', "linear has the sizes m, n, k; got m, n"),
            ('"linaer(m=1,n=10,k=2)",12.5,0.2,7', "did you mean 'linear'?"),
            (",12.5,0.2,7", "a kernel key reads op(name=value,...)"),
            (f'"{"x" * 200_000}",12.5,0.2,7', "line of CSV"),
        ],
    )
    def test_bad_rows_show_their_line(self, table: Path, line: str, message: str) -> None:
        refused(table, f"{HEADER}{LINE}{line}\n", message)
        refused(table, f"{HEADER}{LINE}{line}\n", f"{table}, line 3: ")

    def test_lines_are_counted_with_blank_ones(self, table: Path) -> None:
        refused(table, f"{HEADER}\n\n{LINE}\n{LINE[:-4]}\n", "line 6: a row has 4 fields")

    def test_lines_are_counted_with_crlf(self, table: Path) -> None:
        text = f"{HEADER}{LINE}{LINE[:-4]}\n{LINE}".replace("\n", "\r\n")
        refused(table, text, "line 3: a row has 4 fields")

    def test_a_quote_cut_off_in_the_middle_is_found_where_it_opens(self, table: Path) -> None:
        refused(table, f"{HEADER}{LINE}{LINE[:20]}\n{LINE}{LINE}", "line 3: ")
        refused(table, f'{HEADER}{LINE}"relu(rows=1,\ncols=2)",1,1,1\n', "line 3: ")

    def test_every_cut_of_a_table_is_refused_or_reads_whole_rows(self, table: Path) -> None:
        """A file that stops anywhere gives an error or rows that were whole, never others."""
        text = HEADER + LINE + LINE
        whole = read = 0
        for end in range(len(text)):
            table.write_text(text[:end])
            try:
                rows = read_kernel_table(table)
            except TableError:
                continue
            read += 1
            assert all(row.kernel == LINEAR and row.latency_us == 12.5 for row in rows)
            whole += len(rows)
        assert 1 <= read < 12
        assert whole >= read

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("a,1", "a row has 3 fields (target,batch,latency_ms); got 2"),
            ("a,0,2", "batch is a positive whole number; got '0'"),
            ("a,one,2", "batch is a positive whole number; got 'one'"),
            ("a,1,nan", "latency_ms is a positive, finite number; got 'nan'"),
            ("a,1,-2", "latency_ms is a positive, finite number; got '-2'"),
            (",1,2", "target names a network; got nothing"),
        ],
    )
    def test_timing_rows(self, table: Path, line: str, message: str) -> None:
        table.write_text(f"target,batch,latency_ms\na,1,2\n{line}\n")
        with pytest.raises(TableError, match=re.escape(f"{table}, line 3: {message}")):
            read_timing_table(table)


class TestFiles:
    def test_no_such_file(self, table: Path) -> None:
        for read in (read_kernel_table, read_timing_table, is_timing_table):
            with pytest.raises(RequestError, match=r"no such file: .*table\.csv"):
                read(table)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="cannot be read as a table"):
            read_kernel_table(tmp_path)

    def test_binary_garbage(self, tmp_path: Path) -> None:
        rng = random.Random(0)
        for name in ("t.csv", "t.csv.gz"):
            for size in (1, 10, 1000):
                path = tmp_path / name
                path.write_bytes(rng.randbytes(size))
                for read in (read_kernel_table, read_timing_table):
                    with pytest.raises(TableError, match=re.escape(name)):
                        read(path)

    def test_damaged_gzip(self, tmp_path: Path) -> None:
        """Wherever a byte is wrong or the file stops: an error of ours, or the true rows."""
        good, path = tmp_path / "good.csv.gz", tmp_path / "t.csv.gz"
        write_kernel_table(good, KERNEL_ROWS * 20)
        raw = good.read_bytes()
        refused_count = 0
        for at in range(0, len(raw), 3):
            flipped = raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :]
            for damaged in (flipped, raw[:at]):
                path.write_bytes(damaged)
                try:
                    assert read_kernel_table(path) == KERNEL_ROWS * 20
                except TableError:
                    refused_count += 1
        assert refused_count > len(raw) / 2

    def test_a_table_that_is_not_gzipped(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv.gz"
        path.write_text(HEADER + LINE)
        with pytest.raises(TableError, match="cannot be read as a table"):
            read_kernel_table(path)
