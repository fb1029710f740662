"""Check tadnn on a machine with a CUDA device: ``python benchmarks/gpu_check.py OUT``.

Runs the steps of ``gpu_steps.py`` and the GPU-marked tests, each in a process of its own with a
time limit; one that fails doesn't stop the next. Packs what they wrote into at most eight files
in OUT; ``summary.json`` says what happened. Exit code: 0 all steps worked, 1 some failed, 2 the
request was wrong. Nothing but the standard library is needed to get this far.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WHEELS = HERE / "wheels"
DEADLINE_S = 460.0  # of 480: packing takes a few seconds
MOST_FILES = 8


@dataclass(frozen=True)
class Step:
    """One process: its name, the most seconds it may take, what it runs."""

    name: str
    limit_s: float
    command: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--rehearse", choices=("fake", "cpu"), help="without a GPU")
    parser.add_argument("--short", action="store_true", help="a rehearsal with little work")
    asked = parser.parse_args()
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        print(f"OUT is a new or an empty folder; got {asked.out}", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the running step as well
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        return check(asked.out, Path(folder), asked.rehearse, asked.short)


def check(out: Path, work: Path, rehearse: str | None, short: bool) -> int:
    """Run every step in ``work``, pack into ``out``, and return the exit code."""
    start = time.monotonic()
    site, unpacked = unpack_missing(work / "site")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": str(work / "mpl"),
        "TMPDIR": str(work),
    }
    add_openmp(work / "lib", environment)
    results: dict[str, dict[str, object]] = {}
    for step in steps(rehearse, short):
        left = DEADLINE_S - (time.monotonic() - start)
        print(f"{step.name} ...", flush=True)
        results[step.name] = run_step(step, work, min(step.limit_s, left), environment)
        print(f"{step.name}: {results[step.name]['status']}", flush=True)
    failed = [name for name, result in results.items() if result["status"] != "done"]
    summary = {
        "rehearsal": rehearse,
        "python": platform.python_version(),
        "unpacked_wheels": unpacked,
        "wall_s": round(time.monotonic() - start, 1),
        "failed": failed,
        "steps": results,
    }
    pack(out, work, summary)
    print(f"{len(failed)} of {len(results)} steps failed; see {out / 'summary.json'}")
    return 1 if failed else 0


def steps(rehearse: str | None, short: bool) -> list[Step]:
    """Return what is run, in order; together the limits are the whole time."""
    device = {"fake": "fake:h200", "cpu": "cpu", None: "cuda:0"}[rehearse]
    marked = [str(path) for path in sorted((ROOT / "tests").glob("test_*.py")) if is_gpu_test(path)]
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    # Warnings of versions that aren't pinned are no failures.
    pytest += ["-W", "default", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    work = [sys.executable, str(HERE / "gpu_steps.py"), "--device", device]
    work += ["--short"] if short else []
    return [
        Step("environment", 30, [*work, "environment"]),
        Step("tests", 90, [*pytest, *marked]),
        Step("profile-fp32", 110, [*work, "profile", "fp32"]),
        Step("profile-bf16", 95, [*work, "profile", "bf16"]),
        Step("held-out", 45, [*work, "held-out"]),
        Step("sweeps", 45, [*work, "sweeps"]),
        Step("study", 45, [*work, "study"]),
    ]


def is_gpu_test(path: Path) -> bool:
    """Say whether a test file has tests that need a GPU."""
    return "mark.gpu" in path.read_text(encoding="utf-8")


def run_step(
    step: Step, work: Path, limit_s: float, environment: dict[str, str]
) -> dict[str, object]:
    """Run a step in ``work``; its output becomes ``logs/NAME.txt``."""
    logs = work / "logs"
    logs.mkdir(exist_ok=True)
    start, status = time.monotonic(), "out of time before it began"
    code: int | None = None
    if limit_s > 1:
        with open(logs / f"{step.name}.txt", "w", encoding="utf-8") as log:
            # In a session of its own, so that what it started ends with it.
            process = subprocess.Popen(
                step.command,
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
                status = "done" if code == 0 else f"failed with exit code {code}"
            except subprocess.TimeoutExpired:
                status = f"stopped after {limit_s:.0f} s"
            finally:
                if process.poll() is None:  # too slow, or this process is told to end
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    result: dict[str, object] = {"status": status, "wall_s": round(time.monotonic() - start, 1)}
    facts = work / "facts" / f"{step.name}.json"
    if facts.is_file():
        result["facts"] = json.loads(facts.read_text(encoding="utf-8"))
    return result


def unpack_missing(site: Path) -> tuple[Path, list[str]]:
    """Unpack the carried wheels of packages that are missing or older here."""
    site.mkdir(parents=True)
    unpacked = []
    for wheel in sorted(WHEELS.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        present = installed(name)
        if present is not None and not older(present, version):
            continue
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        # What a wheel keeps for site-packages under its data folder belongs beside the rest.
        for data in site.glob(f"{name}-{version}.data/*lib"):
            shutil.copytree(data, site, dirs_exist_ok=True)
        unpacked.append(wheel.name)
    return site, unpacked


def installed(name: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def older(present: str, wanted: str) -> bool:
    """Say whether the first version is older than the second, by their numbers."""
    first, second = ([int(n) for n in re.findall(r"\d+", v)[:3]] for v in (present, wanted))
    return first < second


def add_openmp(folder: Path, environment: dict[str, str]) -> None:
    """Let LightGBM find OpenMP's library where the system has none: torch brings one along."""
    try:
        ctypes.CDLL("libgomp.so.1")
        return
    except OSError:
        spec = importlib.util.find_spec("torch")
    places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        for library in [*place.glob("lib/libgomp*.so*"), *place.glob("../torch.libs/libgomp*")]:
            folder.mkdir(exist_ok=True)
            (folder / "libgomp.so.1").symlink_to(library.resolve())
            before = environment.get("LD_LIBRARY_PATH", "")
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder), before]))
            return


def pack(out: Path, work: Path, summary: dict[str, object]) -> None:
    """Write ``summary.json`` and the archives."""
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    for name in ("logs", "latency_models", "studies", "sweeps"):
        if (work / name).is_dir():
            with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(work / name, name, filter=_kept)
    for picture in sorted((work / "sweeps").glob("*.png"))[: MOST_FILES - 5]:
        shutil.copy(picture, out)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # The database holds what the tables hold; locks and journals are of no use elsewhere.
    return None if entry.name.endswith((".db-wal", ".db-shm", ".lock")) else entry


if __name__ == "__main__":
    sys.exit(main())
