"""The check of a GPU machine: rehearsed without one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_a_failing_or_hanging_step_does_not_stop_the_next(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(name: str, code: str, limit_s: float = 30.0) -> object:
        return gpu_check.Step(name, limit_s, [sys.executable, "-c", code])

    steps = [
        step("breaks", "print('why'); raise SystemExit(3)"),
        step("hangs", "import time; time.sleep(600)", 1.5),
        step("works", "import os; os.mkdir('sweeps'); open('sweeps/a.csv', 'w').close()"),
    ]
    monkeypatch.setattr(gpu_check, "steps", lambda *_: steps)
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    work.mkdir()
    assert gpu_check.check(out, work, None, False) == 1
    summary = json.loads((out / "summary.json").read_text())
    statuses = {name: result["status"] for name, result in summary["steps"].items()}
    assert statuses == {
        "breaks": "failed with exit code 3",
        "hangs": "stopped after 2 s",
        "works": "done",
    }
    assert summary["failed"] == ["breaks", "hangs"]
    with tarfile.open(out / "sweeps.tar.gz") as archive:
        assert "sweeps/a.csv" in archive.getnames()
    with tarfile.open(out / "logs.tar.gz") as archive:
        file = archive.extractfile("logs/breaks.txt")
        assert file is not None
        assert file.read() == b"why\n"


def test_no_step_begins_after_the_deadline(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "DEADLINE_S", 0.0)
    step = gpu_check.Step("late", 30.0, [sys.executable, "-c", "raise SystemExit(0)"])
    (result,) = (gpu_check.run_step(step, tmp_path, 0.0, {}),)
    assert result["status"] == "out of time before it began"


def test_the_limits_fit_the_time(gpu_check: ModuleType) -> None:
    steps = gpu_check.steps(None, False)
    names = [step.name for step in steps]
    assert len(set(names)) == len(names) == 7
    assert sum(step.limit_s for step in steps) <= gpu_check.DEADLINE_S < 480
    tests = next(step for step in steps if step.name == "tests")
    assert any(part.endswith("test_gpu.py") for part in tests.command)


def test_wheels_are_unpacked_where_missing_or_newer(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("absent_thing-1.0-py3-none-any.whl", "numpy-1.0-py3-none-any.whl"):
        with zipfile.ZipFile(wheels / name, "w") as archive:
            archive.writestr(f"{name.partition('-')[0]}/__init__.py", "")
    monkeypatch.setattr(gpu_check, "WHEELS", wheels)
    site, unpacked = gpu_check.unpack_missing(tmp_path / "site")
    assert unpacked == ["absent_thing-1.0-py3-none-any.whl"]
    assert sorted(path.name for path in site.iterdir()) == ["absent_thing"]
    assert gpu_check.older("2.9.1", "2.11.0")
    assert not gpu_check.older("2.11.0+cu128", "2.11.0")


def test_a_full_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    told = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True)
    assert told.returncode == 2
    assert b"new or an empty folder" in told.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["fake", "cpu"])
def test_the_rehearsal_works(where: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shell = str(SCRIPT.with_suffix(".sh"))
    told = subprocess.run(
        [shell, str(out), "--rehearse", where, "--short"],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert len(list(out.iterdir())) <= 8
    summary = json.loads((out / "summary.json").read_text())
    assert summary["failed"] == []
    assert summary["steps"]["study"]["facts"]["check"]["n"] >= 1
    assert summary["steps"]["held-out"]["facts"].keys() == {"fp32", "bf16"}
