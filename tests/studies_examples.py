"""Tiny whole studies on a clock that computes its times: seconds from YAML to front."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tadnn.latency import Budget
from tadnn.progress import Advance, Progress
from tadnn.search import SearchResult, StudySpec, find_study, load_spec, run_search

#: 3^4 widths: what the fake clock makes of them spans a front.
OVERRIDES = {"width": {"low": 8, "high": 24}, "depth": 1, "kernel": 3, "block": "basic"}
TINY: dict[str, Any] = {
    "name": "tiny",
    "space": "resnet",
    "overrides": OVERRIDES,
    "dataset": "digits",
    "input_shape": [1, 16, 16],
    "latency_model": "auto",
    "threads": 1,
    "objectives": ["latency", "accuracy"],
    "accuracy": {"proxy": "parameters"},
    "sampler": "random",
    "trials": 12,
    "seed": 0,
    "finalists": {"count": 3, "epochs": 1, "measure": True},
}
BUDGET = Budget(kernels=60, nets=6)

#: Another space, with the same layers and choices of other names.
MINI = """\
from tadnn.nets import Conv2d, Flatten, GlobalAvgPool, Linear, NetBuilder, ReLU, block
from tadnn.spaces import Int

default_input = (1, 16, 16)
default_classes = 10
choices = {"layers": Int(1, 2), "channels": Int(8, 24, step=8, group="width")}


@block
def conv(b, width):
    b.add(Conv2d(width, 3), b.input, name="conv")
    b.add(ReLU(), name="relu")


@block
def head(b, classes):
    b.add(GlobalAvgPool(), b.input, name="pool")
    b.add(Flatten(), name="flatten")
    b.add(Linear(classes), name="classifier")


def build(arch, input_shape, classes):
    net = NetBuilder(input_shape)
    for i in range(arch["layers"]):
        net.add(f"conv{i}", conv(arch["channels"]))
    net.add("head", head(classes))
    return net.build()
"""


def write_study(folder: Path, **changes: Any) -> Path:
    """Write ``studies/NAME.yaml``: TINY with some keys changed, those that are None left out."""
    record = {k: v for k, v in {**TINY, **changes}.items() if v is not None}
    path = folder / "studies" / f"{record['name']}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(record, sort_keys=False))
    return path


def write_space(folder: Path, name: str = "mini", text: str = MINI) -> Path:
    path = folder / "search_spaces" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def run(
    name: str = "tiny", progress: Progress | None = None, device: str = "fake"
) -> tuple[StudySpec, SearchResult]:
    """Run a study of the working directory."""
    spec = load_spec(name)
    progress = Progress() if progress is None else progress
    return spec, run_search(spec, device=device, budget=BUDGET, progress=progress)


@contextmanager
def finished(folder: Path, **changes: Any) -> Iterator[tuple[StudySpec, SearchResult]]:
    """Enter a folder with a finished tiny study, ready to be copied."""
    write_study(folder, **changes)
    with contextlib.chdir(folder):
        done = run(str(changes.get("name", "tiny")))
        for database in folder.rglob("*.db"):
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield done


def trial_facts(spec: StudySpec) -> list[tuple[Any, ...]]:
    """Return of every trial what must not depend on interruptions."""
    return [
        (t.number, t.state, t.params, t.values, t.constraints, t.user_attrs.get("tadnn:result"))
        for t in find_study(spec).get_trials(deepcopy=False)
    ]


def profiled(folder: Path) -> tuple[int, int]:
    """Return how many measurements of kernels and of networks the profile database holds."""
    path = folder / "latency_models" / "profiles.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("kernel_measurements", "net_measurements")
        ]
    return counts[0], counts[1]


class Recorder(Progress):
    """Remembers the steps of every task, and interrupts one after some of its steps.

    Args:
        at: the beginning of the label of the task to interrupt; never when empty.
        after: how many steps it may do.
    """

    def __init__(self, at: str = "", after: int = 0) -> None:
        self.at, self.after = at, after
        self.steps: dict[str, int] = {}
        self.notes: list[str] = []

    @contextmanager
    def task(self, label: str, total: int | None) -> Iterator[Advance]:
        self.steps.setdefault(label, 0)

        def advance(steps: int) -> None:
            self.steps[label] += steps
            self._interrupt(label)

        if self.after == 0:
            self._interrupt(label)
        yield advance

    def note(self, text: str) -> None:
        self.notes.append(text)

    def _interrupt(self, label: str) -> None:
        if self.at and label.startswith(self.at) and self.steps[label] >= self.after:
            raise KeyboardInterrupt
