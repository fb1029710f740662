"""The study file: what to search, on which latency model, with which objectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tadnn.errors import StudyMismatch
from tadnn.search.spec_parts import (
    LATENCY,
    LATENCY_MS,
    PHASE,
    AccuracySpec,
    BudgetSpec,
    ConstraintsSpec,
    Count,
    FinalistsSpec,
    Part,
    StageSpec,
    check_stages,
)

OBJECTIVES = ("latency", "accuracy", "parameters", "flops", "memory")
CONSTRAINTS = ("latency_ms", "parameters", "flops", "memory_bytes")
DTYPES = ("fp32", "fp16", "bf16")
SAMPLERS = ("random", "nsga2", "tpe", "gp", "frontier")
#: Those that trials which are stopped early don't lead astray.
STAGE_SAMPLERS = ("frontier", "random")
AUTO = "auto"

#: Keys that say how far and how a study is run, not what it searches: they may change on resume.
EXECUTION_KEYS = frozenset({"name", "trials", "workers", "finalists", "storage", "budget"})

_PHASE_OBJECTIVE = re.compile(PHASE + LATENCY)


def _known_objective(name: str) -> str:
    if name not in OBJECTIVES and not _PHASE_OBJECTIVE.fullmatch(name):
        raise PydanticCustomError("unknown_objective", "{name}", {"name": name})
    return name


Objective = Annotated[StrictStr, AfterValidator(_known_objective)]

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StudySpec(Part):
    """A study as its YAML states it, checked; `load_spec` makes one.

    What is optional stays as written (None: its default); see `thread_count`, `study_storage`,
    the data set and the space for what it then is.
    """

    name: StrictStr
    space: tuple[StrictStr, ...] = Field(min_length=1)
    overrides: Mapping[StrictStr, Any] = Field(default_factory=dict)
    dataset: StrictStr | None = None
    input_shape: tuple[Count, ...] | None = None
    classes: Count | None = None
    latency_model: StrictStr | None = None
    runtime: StrictStr = "torch-eager"
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    threads: Count | None = None
    batch: Count = 1
    objectives: tuple[Objective, ...] = Field(min_length=1)
    accuracy: AccuracySpec | None = None
    stages: tuple[StageSpec, ...] | None = None
    budget: BudgetSpec | None = None
    constraints: ConstraintsSpec = ConstraintsSpec()
    sampler: Literal["random", "nsga2", "tpe", "gp", "frontier"] = "nsga2"
    start_from: StrictStr | None = None
    tail_aware: StrictBool = False
    trials: Count
    workers: Count = 1
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] = 0
    storage: StrictStr | None = None
    finalists: FinalistsSpec | None = None

    _path: Path | None = PrivateAttr(default=None)

    @field_validator("space", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("input_shape", mode="before")
    @classmethod
    def _sizes(cls, value: object) -> object:
        if not isinstance(value, list | tuple) or len(value) not in (1, 2, 3):
            raise ValueError(
                "must list the sizes of one input: channels, height, width of images, or the "
                "length of a sequence"
            )
        return value

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not _FOLDER_NAME.fullmatch(value):
            raise ValueError(
                "names the results folder: letters, digits, '.', '_' and '-', "
                "a letter or digit first"
            )
        return value

    @field_validator("space", "objectives")
    @classmethod
    def _unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names each entry once")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> StudySpec:
        if "accuracy" in self.objectives and self.accuracy is None and self.stages is None:
            raise ValueError("the objective accuracy needs the key 'accuracy', or 'stages'")
        if self.stages is not None:
            self._check_stages(self.stages)
        if self.trains and self.dataset is None:
            raise ValueError("accuracy by training needs the key 'dataset'")
        if self.proxy == AUTO and self.dataset is None:
            raise ValueError("proxy: auto trains a sample, so it needs the key 'dataset'")
        if self.budget is not None and not self.trains:
            raise ValueError("a budget of training needs 'stages', or accuracy by training")
        if self.dataset is not None and self.classes is not None:
            raise ValueError(
                "the classes are those of the data set: leave out one of the keys 'classes' and "
                f"'dataset'; received classes {self.classes}"
            )
        images = self.dataset is not None and self.input_shape is not None
        if images and len(self.input_shape or ()) != 3:
            raise ValueError(
                "input_shape must list 3 sizes of images: channels, height, width; "
                f"received {list(self.input_shape or ())}"
            )
        trained = self.finalists is not None and self.finalists.epochs is not None
        if trained and self.dataset is None:
            raise ValueError("finalists that are trained (epochs) need the key 'dataset'")
        if self.latency_model is None:
            timed = "latency" in self.objectives or self.constraints.latency_ms is not None
            if timed or self.phases or (self.finalists is not None and self.finalists.measure):
                raise ValueError(
                    "objectives and constraints of latency, and measured finalists, "
                    "need the key 'latency_model'"
                )
            if self.tail_aware:
                raise ValueError("tail_aware snaps widths by latency: it needs 'latency_model'")
        return self

    def _check_stages(self, stages: tuple[StageSpec, ...]) -> None:
        if self.accuracy is not None:
            raise ValueError("stages say how accuracy is told: leave out the key 'accuracy'")
        if "accuracy" not in self.objectives:
            raise ValueError("stages need the objective accuracy")
        if self.sampler not in STAGE_SAMPLERS:
            raise ValueError(
                f"stages need a sampler that learns from trials stopped early: "
                f"{' or '.join(STAGE_SAMPLERS)}; received {self.sampler!r}"
            )
        check_stages(stages)

    @property
    def proxy(self) -> str | None:
        """The proxy that tells accuracy, of the first stage where there are stages."""
        first = self.accuracy if self.stages is None else self.stages[0]
        return None if first is None else first.proxy

    @property
    def trains(self) -> bool:
        """Whether the search itself trains; finalists are another matter."""
        last = self.accuracy if self.stages is None else self.stages[-1]
        return last is not None and last.train is not None

    @property
    def phases(self) -> tuple[str, ...]:
        """The further phases of the space whose latencies the study looks at, each once."""
        named = [o.removesuffix(LATENCY) for o in self.objectives if o.endswith(LATENCY)]
        bounds = self.constraints.bounds()
        named += [b.removesuffix(LATENCY_MS) for b in bounds if b.endswith(LATENCY_MS)]
        return tuple(dict.fromkeys(named))

    @property
    def path(self) -> Path | None:
        """The YAML that the spec was read from; None when it was made in Python."""
        return self._path

    def at(self, path: Path) -> StudySpec:
        """Return the same spec, remembered as read from ``path``."""
        placed = self.model_copy()
        placed._path = path
        return placed

    def canonical(self) -> dict[str, Any]:
        """Return the spec as a JSON-able dict; what is off is left out, one space is a string."""
        record: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        if len(self.space) == 1:
            record["space"] = self.space[0]
        if not self.tail_aware:
            del record["tail_aware"]  # studies that began before there was one
        return {key: value for key, value in record.items() if value != {}}

    def frozen(self) -> dict[str, Any]:
        """Return the part of `canonical` that a study may never change."""
        return {key: value for key, value in self.canonical().items() if key not in EXECUTION_KEYS}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return one line ``key: old -> new`` for every leaf in which two JSON-able dicts differ."""
    lines = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {_shown(before)} -> {_shown(after)}")
    return lines


def require_same(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to resume a study whose frozen part changed.

    Raises:
        StudyMismatch: with a line for every difference.
    """
    lines = differences(old, new)
    if lines:
        raise StudyMismatch(
            f"a study is resumed with the {what} it began with; this one differs:\n  "
            + "\n  ".join(lines)
            + "\nTake back the change, or give the study another name. (Only "
            + ", ".join(sorted(EXECUTION_KEYS - {"name"}))
            + " may change.)"
        )


def study_folder(spec: StudySpec) -> Path:
    """Return where the study's results go: ``NAME/`` beside its YAML.

    For a built-in study, and for a spec made in Python, it is ``studies/NAME`` in the working
    directory: an installed package is no place to write.
    """
    from tadnn.files import STUDIES

    builtin = STUDIES.roots()[-1]
    if spec.path is None or spec.path.resolve().parent == builtin.resolve():
        return STUDIES.local / spec.name
    return spec.path.parent / spec.name


def study_storage(spec: StudySpec) -> str:
    """Return the Optuna storage URL: the spec's, or a SQLite file in the study's folder."""
    return spec.storage or f"sqlite:///{study_folder(spec) / 'study.db'}"


def thread_count(spec: StudySpec) -> int:
    """Return how many threads networks run on: the spec's, or every physical core we may use."""
    return spec.threads or physical_cores()


def physical_cores() -> int:
    """Return the number of physical cores that this process may use, at least 1."""
    import os

    import psutil

    physical: int | None = psutil.cpu_count(logical=False)
    # Only Linux tells the affinity; a container's share of cores shows there.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(physical or 1, allowed or 1))


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)
