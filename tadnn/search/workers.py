"""Several worker processes for one study; they die with their parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import optuna

import tadnn
from tadnn import errors
from tadnn.errors import TadnnError, WorkFailed
from tadnn.search.ledger import Keyed, Ledger
from tadnn.search.spec import StudySpec, physical_cores
from tadnn.search.taking import Ended

_POLL_S = 0.1
# Trainings take longer, and trials that wait for them cost a reading each time.
_TRAINING_POLL_S = 1.0
_GRACE_S = 10.0
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class Job:
    """What a worker process is told; travels as JSON.

    Attributes:
        spec: the study's canonical spec.
        path: its YAML, which decides where results go.
        latency_model: name of the frozen model; None without one.
        setup: ``module:function`` that makes the `Evaluator` of (spec, latency model's name).
        parent: the process to die with.
        import_path: where modules are found.
    """

    spec: dict[str, Any]
    path: str | None
    latency_model: str | None
    setup: str
    parent: int
    import_path: tuple[str, ...]

    @classmethod
    def of(cls, spec: StudySpec, latency_model: str | None, setup: str) -> Job:
        """Return the job of one worker of this process's."""
        path = str(spec.path) if spec.path is not None else None
        return cls(spec.canonical(), path, latency_model, setup, os.getpid(), tuple(sys.path))

    @property
    def trains(self) -> bool:
        """Whether the study has stages or a budget of training."""
        return "stages" in self.spec or "budget" in self.spec

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))


def run_workers(
    job: Job,
    count: int,
    study: optuna.Study,
    space: Keyed,
    on_change: Callable[[int], None] | None = None,
) -> Ended:
    """Start ``count`` worker processes and wait for them.

    A worker that dies leaves its trial to the others. Ctrl-C reaches them all.

    Args:
        job: what each is told.
        count: how many.
        study: the study, to follow its progress.
        space: the study's space.
        on_change: called with the number of completed trials while they work.

    Raises:
        TadnnError: what made a worker give up.
        WorkFailed: all workers died.
    """
    ledger = Ledger(space)
    poll_s = _TRAINING_POLL_S if job.trains else _POLL_S
    children = [_Child(job, max(1, physical_cores() // count)) for _ in range(count)]
    try:
        while any(child.is_running() for child in children):
            time.sleep(poll_s)
            ledger.refresh(study)
            if on_change is not None:
                on_change(ledger.complete_count)
            for child in children:
                child.raise_its_error()
        ended = [child.ended() for child in children]
    finally:
        for child in children:
            child.release()
        for child in children:
            child.close()
    reports = [report for report in ended if report is not None]
    if not reports:
        raise WorkFailed("all workers died; " + children[-1].last_words)
    ledger.refresh(study)
    if on_change is not None:
        on_change(ledger.complete_count)
    return Ended(reports[-1].why, ledger.complete_count)


class _Child:
    """A worker process and what it said."""

    def __init__(self, job: Job, threads: int) -> None:
        package = str(Path(tadnn.__file__).resolve().parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": package + (os.pathsep + inherited if inherited else ""),
            **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        }
        # Not a pipe: nobody reads it while the worker works.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tadnn.search._worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self.last_words = ""
        self._said: dict[str, Any] | None = None
        assert self._process.stdin is not None
        try:
            # The pipe stays open: its end is how a worker notices that we are gone.
            self._process.stdin.write(job.to_json().encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.last_words = "it died before it began"

    def is_running(self) -> bool:
        """Tell whether it still works."""
        return self._process.poll() is None

    def raise_its_error(self) -> None:
        """Raise what made it give up, as the class it was."""
        said = self._listen()
        if said is not None and "error" in said:
            kind = getattr(errors, said["error"], WorkFailed)
            failure = TadnnError.__new__(kind)
            Exception.__init__(failure, said["message"])
            raise failure

    def ended(self) -> Ended | None:
        """Return why it stopped; None where it died."""
        said = self._listen()
        return Ended(said["why"], int(said["complete"])) if said and "why" in said else None

    def release(self) -> None:
        """Let it know that it is no longer wanted."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended already

    def close(self) -> None:
        """Wait for its end; end it where it does not come."""
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _listen(self) -> dict[str, Any] | None:
        if self._said is None and not self.is_running():
            assert self._process.stdout is not None
            lines = self._process.stdout.read().decode(errors="replace").strip().splitlines()
            self._errors.seek(0)
            complaint = self._errors.read().decode(errors="replace").strip()
            self.last_words = f"exit code {self._process.returncode}: {complaint[-2000:]}"
            try:
                said = json.loads(lines[-1]) if lines else {}
            except json.JSONDecodeError:
                said = {}
            self._said = said if isinstance(said, dict) else {}
        return self._said
