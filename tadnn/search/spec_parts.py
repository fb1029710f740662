"""The parts of a study file: accuracy, stages, budget, constraints, finalists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tadnn.epochs import EPOCHS, whole_or_share

#: An objective or a constraint on a further phase of a space is its name and one of these.
LATENCY, LATENCY_MS = "_latency", "_latency_ms"

PHASE = r"[a-z][a-z0-9_]*"
_PHASE_BOUND = re.compile(PHASE + LATENCY_MS)

Count = Annotated[StrictInt, Field(ge=1)]
Bound = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(gt=0, le=1, allow_inf_nan=False)]


def _length(epochs: float) -> float:
    found = whole_or_share(epochs)
    if found is None:
        raise ValueError(f"must be {EPOCHS}")
    return found


class Part(BaseModel):
    """A part of a study file: keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainSpec(Part):
    """Accuracy by short training, of whole epochs or a share of one."""

    epochs: Annotated[float, Strict(), AfterValidator(_length)]

    @property
    def length(self) -> str:
        """How long, in words."""
        return f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"


class AccuracySpec(Part):
    """How a trial's accuracy is told: exactly one of a zero-cost proxy and short training."""

    proxy: StrictStr | None = None
    train: TrainSpec | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> AccuracySpec:
        if (self.proxy is None) == (self.train is None):
            raise ValueError("takes exactly one of proxy and train")
        return self


class StageSpec(Part):
    """One stage of a study: how accuracy is told there, and which share goes on to the next."""

    proxy: StrictStr | None = None
    train: TrainSpec | None = None
    keep: Share | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> StageSpec:
        if (self.proxy is None) == (self.train is None):
            raise ValueError("takes exactly one of proxy and train")
        return self

    @property
    def label(self) -> str:
        """What messages call the stage."""
        if self.train is None:
            return f"proxy {self.proxy}"
        return self.train.length


class BudgetSpec(Part):
    """What a search may spend: minutes of training, of all workers and runs together."""

    train_minutes: Bound


def check_stages(stages: Sequence[StageSpec]) -> None:
    """Check that stages go from cheap to dear.

    Raises:
        ValueError: they don't; the message says the rule and what was received.
    """
    if len(stages) < 2:
        raise ValueError(
            f"stages are two or more; one alone is the key 'accuracy'; received {len(stages)}"
        )
    if any(stage.train is None for stage in stages[1:]):
        raise ValueError("only the first of the stages may be a proxy; the others train")
    epochs = [stage.train.epochs for stage in stages if stage.train is not None]
    if any(later <= before for before, later in pairwise(epochs)):
        raise ValueError(
            f"each stage trains for more epochs than the one before; received {epochs}"
        )
    if any(stage.keep is None for stage in stages[:-1]):
        raise ValueError(
            "every stage but the last says which share goes on: 'keep', above 0 and at most 1"
        )
    if stages[-1].keep is not None:
        raise ValueError(
            f"nothing comes after the last stage: it has no 'keep'; received {stages[-1].keep}"
        )


class ConstraintsSpec(Part):
    """Upper bounds, beyond which nothing is feasible; also ``PHASE_latency_ms`` of a phase."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Bound] = Field(init=False)

    latency_ms: Bound | None = None
    parameters: Bound | None = None
    flops: Bound | None = None
    memory_bytes: Bound | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        for key in value if isinstance(value, Mapping) else ():
            if key not in cls.model_fields and not _PHASE_BOUND.fullmatch(str(key)):
                raise PydanticCustomError("unknown_constraint", "{name}", {"name": str(key)})
        return value

    def bounds(self) -> dict[str, float]:
        """Return the bounds that are set, by name."""
        return {key: value for key, value in self if value is not None}


class FinalistsSpec(Part):
    """What happens to the best of the front after the search."""

    count: Count
    epochs: Count | None = None
    measure: StrictBool = False
