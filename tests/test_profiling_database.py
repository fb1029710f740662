from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tadnn.errors import CorruptFile, Unwritable, WorkFailed
from tadnn.kernels import Kernel
from tadnn.profiling import Measurement, ProfileDatabase
from tadnn.runtimes import Setting

ONE, TWO = Setting(threads=1), Setting(threads=2)
HERE = {"torch": "2.13.0", "cores": "2"}


def kernel(n: int) -> Kernel:
    return Kernel.of("linear", m=1, n=n, k=64, epilogue=("bias",))


def took(latency_us: float) -> Measurement:
    return Measurement(latency_us, 0.1, 7)


def filled(path: Path, count: int = 2000) -> Path:
    """A database whose write-ahead log is folded into the file."""
    with ProfileDatabase(path) as database:
        database.add_kernels("cpu-a", ONE, HERE, {kernel(n): took(n) for n in range(1, count + 1)})
    return path


def test_measurements_come_back_by_device_and_setting(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.db"
    with ProfileDatabase(path) as database:
        assert database.kernels("cpu-a", ONE) == {}
        database.add_kernels("cpu-a", ONE, HERE, {kernel(1): took(1.25), kernel(2): took(2.5)})
        database.add_kernels("cpu-a", TWO, HERE, {kernel(1): took(3.0)})
        database.add_kernels("cpu-b", ONE, HERE, {kernel(1): took(4.0)})
        database.add_kernels("cpu-b", ONE, HERE, {})
    with ProfileDatabase(path) as database:
        assert database.kernels("cpu-a", ONE) == {kernel(1): took(1.25), kernel(2): took(2.5)}
        assert database.kernels("cpu-a", TWO) == {kernel(1): took(3.0)}
        assert database.kernels("cpu-b", ONE) == {kernel(1): took(4.0)}
        assert database.kernels("cpu-c", ONE) == {}


def test_the_latest_measurement_counts_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "profile.db"
    later = {**HERE, "torch": "2.14.0"}
    with ProfileDatabase(path) as database:
        database.add_kernels("cpu-a", ONE, HERE, {kernel(1): took(1.0)})
        database.add_kernels("cpu-a", ONE, HERE, {kernel(2): took(2.0)})
        database.add_kernels("cpu-a", ONE, later, {kernel(1): took(9.0)})
        assert database.kernels("cpu-a", ONE) == {kernel(1): took(9.0), kernel(2): took(2.0)}
        assert database.environments() == [HERE, later]
    with sqlite3.connect(path) as raw:
        rows = raw.execute(
            "SELECT kernel, latency_us, e.record FROM kernel_measurements k "
            "JOIN environments e ON e.id = k.environment ORDER BY k.id"
        ).fetchall()
    raw.close()
    assert [(row[0], row[1], "2.14.0" in row[2]) for row in rows] == [
        (kernel(1).key, 1.0, False),
        (kernel(2).key, 2.0, False),
        (kernel(1).key, 9.0, True),
    ]


def test_networks_come_back_by_key_and_batch(tmp_path: Path) -> None:
    net = {"format": "tadnn-net-1", "blocks": []}
    with ProfileDatabase(tmp_path / "profile.db") as database:
        database.add_net("cpu-a", ONE, HERE, "k1", 1, net, took(1.0))
        database.add_net("cpu-a", ONE, HERE, "k1", 8, net, took(8.0))
        database.add_net("cpu-a", ONE, HERE, "k2", 1, {"other": 1}, took(2.0))
        database.add_net("cpu-a", ONE, HERE, "k1", 1, net, took(1.5))
        assert sorted(database.nets("cpu-a", ONE), key=lambda row: row[:2]) == [
            ("k1", 1, net, took(1.5)),
            ("k1", 8, net, took(8.0)),
            ("k2", 1, {"other": 1}, took(2.0)),
        ]
        assert database.nets("cpu-a", TWO) == []


def test_an_add_is_all_or_nothing(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "profile.db") as database:
        bad = {kernel(1): took(1.0), kernel(2): Measurement(2.0, None, 7)}  # type: ignore[arg-type]
        with pytest.raises(WorkFailed, match="NOT NULL"):
            database.add_kernels("cpu-a", ONE, HERE, bad)
        assert database.kernels("cpu-a", ONE) == {}
        assert database.environments() == []


@pytest.mark.parametrize(
    "garbage", [b"kernel,latency_us\n", random.Random(0).randbytes(5000)], ids=["csv", "noise"]
)
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "profile.db"
    path.write_bytes(garbage)
    with pytest.raises(CorruptFile, match=r"profile\.db is damaged, or no database"):
        ProfileDatabase(path)
    assert path.read_bytes() == garbage


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_database_is_refused(tmp_path: Path, share: float) -> None:
    path = filled(tmp_path / "profile.db")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CorruptFile, match=r"profile\.db"):
        ProfileDatabase(path)


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "profile.db")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"profile\.db"):
        ProfileDatabase(path)


def test_a_damaged_row_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "profile.db", count=3)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE kernel_measurements SET kernel = 'linear(m=' WHERE id = 2")
    raw.close()
    with ProfileDatabase(path) as database:
        with pytest.raises(CorruptFile, match="damaged kernel"):
            database.kernels("cpu-a", ONE)


def test_another_version_or_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "profile.db", count=3)
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(CorruptFile, match="has version 99, this tadnn reads version 1"):
        ProfileDatabase(path)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE studies (id INTEGER)")
    raw.close()
    with pytest.raises(CorruptFile, match="no profile database of tadnn"):
        ProfileDatabase(other)


def test_a_missing_table_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "profile.db", count=3)
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TABLE kernel_measurements")
    raw.close()
    with ProfileDatabase(path) as database:
        with pytest.raises(CorruptFile, match="lacks a part of its schema"):
            database.kernels("cpu-a", ONE)


def test_a_folder_that_cannot_be_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unwritable, match="cannot write"):
        ProfileDatabase(tmp_path / "file" / "profile.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unwritable, match="cannot write"):
        ProfileDatabase(tmp_path / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_unwritable(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    with pytest.raises(Unwritable, match="cannot write"):
        ProfileDatabase(folder / "profile.db")


def run(code: str, path: Path) -> subprocess.Popen[str]:
    header = (
        "import sys, pathlib\n"
        "from tadnn.errors import Unwritable\n"
        "from tadnn.kernels import Kernel\n"
        "from tadnn.profiling import Measurement, ProfileDatabase\n"
        "from tadnn.runtimes import Setting\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "def kernel(n):\n"
        "    return Kernel.of('linear', m=1, n=n, k=64, epilogue=('bias',))\n"
    )
    command = [sys.executable, "-c", header + code, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_keeps_what_it_had_added(tmp_path: Path) -> None:
    path = tmp_path / "profile.db"
    code = """
database = ProfileDatabase(path)
n = 1
while True:
    database.add_kernels("cpu-a", Setting(), {}, {kernel(n): Measurement(n, 0.1, 7)})
    print(n, flush=True)
    n += 1
"""
    with run(code, path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 50:
                process.send_signal(signal.SIGKILL)
                break
        last = max([50, *(int(line) for line in process.stdout if line.endswith("\n"))])
    assert process.returncode == -signal.SIGKILL
    with ProfileDatabase(path) as database:
        found = database.kernels("cpu-a", ONE)
    assert set(found) >= {kernel(n) for n in range(1, last + 1)}
    assert len(found) <= last + 1
    assert all(m.latency_us == k.dim("n") for k, m in found.items())


def test_a_full_disk_is_unwritable_and_costs_nothing_finished(tmp_path: Path) -> None:
    path = tmp_path / "profile.db"
    code = """
import resource
database = ProfileDatabase(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
n = 1
try:
    while n < 10_000:
        database.add_kernels("cpu-a", Setting(), {}, {kernel(n): Measurement(n, 0.1, 7)})
        n += 1
except Unwritable as error:
    print(n, error)
"""
    with run(code, path) as process:
        assert process.stdout is not None
        told = process.stdout.read()
    assert "cannot write" in told
    first_lost = int(told.split()[0])
    with ProfileDatabase(path) as database:
        assert set(database.kernels("cpu-a", ONE)) == {kernel(n) for n in range(1, first_lost)}


def test_several_processes_create_and_fill_one_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.db"
    code = """
import os
for n in range(1, 21):
    with ProfileDatabase(path) as database:
        database.add_kernels("cpu-a", Setting(), {"pid": str(os.getpid())},
                             {kernel(n): Measurement(n, 0.1, 7)})
"""
    processes = [run(code, path) for _ in range(3)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    with ProfileDatabase(path) as database:
        assert len(database.kernels("cpu-a", ONE)) == 20
        assert len(database.environments()) == 3
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM kernel_measurements").fetchone() == (60,)
    raw.close()
