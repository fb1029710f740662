"""What a trial costs and gives: architecture to network, latency, accuracy, objective values."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tadnn.errors import RequestError, WorkFailed
from tadnn.nets import Net
from tadnn.search.ensemble import proxy_judge
from tadnn.search.free import FreeMeasures, free_objectives
from tadnn.search.frontier import Measure
from tadnn.search.judges import Judge, Judgement, TrainingJudge
from tadnn.search.spec import StudySpec
from tadnn.search.spec_parts import LATENCY, LATENCY_MS

if TYPE_CHECKING:
    from tadnn.spaces import Space

RESULT_ATTR = "tadnn:result"
NET_ATTR = "tadnn:net"
PHASE_NET_ATTR = "tadnn:net:"
ERROR_ATTR = "tadnn:error"
#: How many architectures were drawn and snapped until the trial's was a new one.
DRAWN_ATTR = "tadnn:drawn"

Snap = Callable[[Mapping[str, Any], Collection[str]], dict[str, Any]]
"""Moves an architecture onto the edges of its stairs; the choices named stay."""


class Predicted(Protocol):
    """The part of a prediction that a trial stores."""

    @property
    def latency_ms(self) -> float:
        """Milliseconds for a batch."""

    @property
    def std_ms(self) -> float:
        """Standard deviation, milliseconds."""

    @property
    def in_range(self) -> bool:
        """Whether every kernel lies in the profiled range."""

    @property
    def unprofiled_share(self) -> float:
        """The share of the latency that is of kinds of kernels that nobody measured."""


class Predictor(Protocol):
    """The part of a latency model that a search needs."""

    def predict_net(self, net: Net, batch: int = 1) -> Predicted:
        """Predict a network's latency."""


@dataclass(frozen=True)
class Outcome:
    """What an evaluation found.

    Attributes:
        values: one per objective of the study, in its order.
        violations: by constraint, how far beyond its bound in shares of the bound; feasible
            where at most 0.
        result: the JSON-able record that a trial stores.
        net: the network.
        phases: the networks of the phases that the study looks at, by name.
    """

    values: tuple[float, ...]
    violations: Mapping[str, float]
    result: Mapping[str, Any]
    net: Net
    phases: Mapping[str, Net] = field(default_factory=dict)


class Evaluator:
    """Evaluates architectures of one study; deterministic in the study's seed and the key.

    Args:
        spec: the study.
        space: its space, narrowed.
        predictor: the latency model; None: latency is not known.
        judge: of accuracy, in the first stage where there are stages; None: nobody asks for it.
        input_shape: of the networks; the space's default when None.
        classes: their outputs; the space's default when None.
        snap: moves widths onto the edges of their stairs; None: they stay.
        later: the judges of the stages after the first.
    """

    def __init__(
        self,
        spec: StudySpec,
        space: Space,
        predictor: Predictor | None,
        judge: Judge | None,
        input_shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        snap: Snap | None = None,
        later: Sequence[Judge] = (),
    ) -> None:
        self.spec, self.space, self.snap = spec, space, snap
        self._predictor = predictor
        self._judges = [*([] if judge is None else [judge]), *later]
        self.input_shape = space.default_input if input_shape is None else input_shape
        self._classes = classes
        self._bounds = spec.constraints.bounds()

    def evaluate(
        self, arch: Mapping[str, Any], stage: int = 0, judged: Judgement | None = None
    ) -> Outcome:
        """Evaluate one architecture.

        Args:
            arch: the architecture.
            stage: whose judge tells the accuracy, from 0.
            judged: what that one told already; None: it is asked.

        Raises:
            TadnnError: it cannot be built, or a value is not finite; the message says which.
        """
        key = self.space.key(arch)
        net = self.space.build(arch, self.input_shape, self._classes)
        sizes = {
            "parameters": net.parameters,
            "flops": net.flops(),
            "memory_bytes": net.memory_bytes(self.spec.batch, self.spec.dtype),
        }
        measures: dict[str, float] = {**sizes, "memory": sizes["memory_bytes"]}
        predicted = self._predicted(net)
        if predicted is not None:
            measures["latency"] = measures["latency_ms"] = predicted["latency_ms"]
        phases = {
            phase: self.space.build(arch, self.input_shape, self._classes, phase)
            for phase in self.spec.phases
        }
        in_phases = {phase: self._predicted(run_as) for phase, run_as in phases.items()}
        for phase, found in in_phases.items():
            if found is not None:
                measures[phase + LATENCY] = measures[phase + LATENCY_MS] = found["latency_ms"]
        # What is cheap is checked before money is spent on the accuracy.
        self._require_finite(measures, [o for o in self.spec.objectives if o != "accuracy"])
        self._require_finite(measures, list(self._bounds))
        if judged is None:
            judged = self._judges[stage].judge(net, key) if self._judges else (None, None)
        proxy, trained = judged
        if proxy is not None:
            measures["accuracy"] = proxy["value"]
        elif trained is not None:
            measures["accuracy"] = trained["accuracy"]
        self._require_finite(measures, self.spec.objectives)
        # What only some studies have is absent from the others: an input of the network's own
        # where the study's is a bound, such as the greatest length of a sequence; phases.
        extra: dict[str, Any] = {}
        if net.input_shape != self.input_shape:
            extra["input_shape"] = list(net.input_shape)
        if phases:
            extra["phases"] = {phase: {"predicted": found} for phase, found in in_phases.items()}
        return Outcome(
            values=tuple(float(measures[objective]) for objective in self.spec.objectives),
            violations={k: measures[k] / bound - 1.0 for k, bound in self._bounds.items()},
            result={
                "key": key,
                "space": arch.get("space", self.space.name),
                "arch": dict(arch),
                **sizes,
                "predicted": predicted,
                "proxy": proxy,
                "trained": trained,
                **extra,
            },
            net=net,
            phases=phases,
        )

    def _predicted(self, net: Net) -> dict[str, Any] | None:
        if self._predictor is None:
            return None
        prediction = self._predictor.predict_net(net, self.spec.batch)
        share = float(prediction.unprofiled_share)
        return {
            "latency_ms": float(prediction.latency_ms),
            "std_ms": float(prediction.std_ms),
            "in_range": bool(prediction.in_range),
            # Absent where everything was measured, as it is with models of this machine.
            **({"unprofiled_share": share} if share > 0 else {}),
        }

    def free(self) -> tuple[dict[int, Measure], list[Measure]]:
        """Return the objectives that cost nothing, by index, and the constraints.

        See `free_objectives`.
        """
        free = FreeMeasures(
            self.space,
            self._predictor,
            self.spec.batch,
            self.spec.dtype,
            self.input_shape,
            self._classes,
        )
        return free_objectives(free, self.spec.objectives, self._bounds)

    def prepare(self) -> None:
        """Load what evaluations need, so that what is missing shows before the first trial."""
        for judge in self._judges:
            judge.prepare()

    @staticmethod
    def _require_finite(measures: Mapping[str, float], names: list[str] | tuple[str, ...]) -> None:
        for name in names:
            if not math.isfinite(measures[name]):
                raise WorkFailed(f"{name} must be finite; it is {measures[name]}")


def network_shape(spec: StudySpec, space: Space) -> tuple[tuple[int, ...], int | None]:
    """Return the (C, H, W) and the number of outputs (None: the space's) of a study's networks.

    Raises:
        UnknownName: no such data set.
        DataError: the data set cannot be read.
    """
    if spec.dataset is None:
        return spec.input_shape or space.default_input, spec.classes
    from tadnn.accuracy import load_dataset

    dataset = load_dataset(spec.dataset, spec.input_shape)
    return dataset.input_shape, dataset.classes


def build_evaluator(spec: StudySpec, space: Space, predictor: Predictor | None) -> Evaluator:
    """Return the evaluator that a study's spec asks for.

    Raises:
        UnknownName: no such data set or proxy.
        DataError: the data set cannot be read.
    """
    shape, classes = network_shape(spec, space)
    stages = spec.stages or (() if spec.accuracy is None else (spec.accuracy,))
    judges: list[Judge] = []
    for stage in stages:
        if stage.train is None:
            judges.append(proxy_judge(spec, space, shape, classes))
        else:
            assert spec.dataset is not None  # the spec's own rule
            epochs = stage.train.epochs
            judges.append(TrainingJudge(epochs, spec.dataset, spec.input_shape, spec.seed))
    snap = _snap(spec, space, predictor, shape, classes) if spec.tail_aware else None
    judge = judges[0] if judges else None
    evaluator = Evaluator(spec, space, predictor, judge, shape, classes, snap, judges[1:])
    evaluator.prepare()
    return evaluator


def _snap(
    spec: StudySpec,
    space: Space,
    predictor: Predictor | None,
    shape: tuple[int, ...],
    classes: int | None,
) -> Snap:
    """Return what moves an architecture's widths onto the edges of their stairs."""
    from tadnn.latency import LatencyModel
    from tadnn.tail import Snapper

    if not isinstance(predictor, LatencyModel):
        raise RequestError(f"tail_aware needs a latency model; got {predictor!r}")
    return Snapper(space, predictor, spec.batch, shape, classes).snap


def pack_net(net: Net) -> str:
    """Return a network as the text that a trial stores."""
    data = net.to_json()
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")


def unpack_net(text: str) -> Net:
    """Return the network that `pack_net` stored."""
    return Net.from_json(json.loads(zlib.decompress(base64.b64decode(text))))
