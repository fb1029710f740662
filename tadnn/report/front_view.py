"""A study's front as a frozen record, made from what studies store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tadnn import pareto
from tadnn.errors import RequestError
from tadnn.report.text import arch_text
from tadnn.report.views import Record, setting_text

_COUNTS: Final = {
    "parameters": ("parameters", "Parameters"),
    "flops": ("flops", "FLOPs"),
    "memory": ("memory_bytes", "Memory (bytes)"),
}


_LATENCY: Final = "_latency"  # a phase's name before it makes an objective


@dataclass(frozen=True)
class PhaseView:
    """A trial's latency in one phase, such as a decoder's next token; what is unknown is None."""

    predicted_ms: float | None = None
    std_ms: float = 0.0
    in_range: bool = True
    measured_ms: float | None = None
    spread_ms: float = 0.0
    unprofiled_share: float = 0.0


@dataclass(frozen=True)
class PointView:
    """One trial as a point; what is unknown is None.

    Args:
        trial: its number.
        arch: the architecture, summarised.
        score: the study's other objective beside latency, such as a proxy's value.
        predicted_ms: milliseconds per batch.
        std_ms: standard deviation of the prediction.
        in_range: whether the prediction stays within what the latency model was fitted on.
        unprofiled_share: of the predicted latency, of kinds of kernels that nobody measured.
        measured_ms: milliseconds per batch, re-measured.
        spread_ms: of the measurement.
        accuracy: reached by training, a fraction.
        finalist: whether it was measured, or trained beyond what the search did.
        proxy: the proxy's value.
        parameters: trained values.
        flops: at the study's batch.
        feasible: whether every constraint is met.
        phases: latencies of what the architecture runs as besides, by phase.
    """

    trial: int
    arch: str
    score: float | None = None
    predicted_ms: float | None = None
    std_ms: float = 0.0
    in_range: bool = True
    measured_ms: float | None = None
    spread_ms: float = 0.0
    accuracy: float | None = None
    finalist: bool = False
    proxy: float | None = None
    parameters: int = 0
    flops: int = 0
    feasible: bool = True
    phases: Mapping[str, PhaseView] = field(default_factory=dict)
    unprofiled_share: float = 0.0


@dataclass(frozen=True)
class FrontView:
    """A study's front, and its other trials.

    Args:
        study: the study's name.
        subtitle: device, runtime, dtype, threads, batch and input in one line.
        members: the front, by predicted latency.
        others: every other trial.
        knee: the trial number of the knee; None where there is no front.
        score_label: what ``score`` is, with its direction.
        score_is_count: whether it is a positive count, of which less is better.
        joined: whether the latency that is shown and the score are the study's only objectives,
            so that a line through the members bounds what the study found.
        accuracy_label: what the finalists' accuracy is.
        phases: the phases whose latencies the study looked at.
        phase: the one whose latencies the points have; None: the networks themselves.
        beside: the study's objectives beside the score.
        score_phase: the phase whose latency is the score, where objectives are latencies alone.
    """

    study: str
    subtitle: str
    members: tuple[PointView, ...]
    others: tuple[PointView, ...]
    knee: int | None
    score_label: str
    score_is_count: bool
    joined: bool
    accuracy_label: str
    phases: tuple[str, ...] = ()
    phase: str | None = None
    beside: frozenset[str] = frozenset()
    score_phase: str | None = None

    @classmethod
    def from_records(
        cls, front: Record, trials: Iterable[Record] = (), *, knee: int | None = None
    ) -> FrontView:
        """Make the view of a study.

        Args:
            front: the content of ``front.json``.
            trials: of every trial its stored result (``tadnn:result``) with its number as
                ``trial`` and, where a constraint is violated, ``feasible`` false.
            knee: the knee's trial number; found from the members when absent.
        """
        members, results = list(front["members"]), {t["trial"]: t for t in trials}
        objectives = list(front["objectives"])
        others = [o for o in objectives if o != "latency"]
        second = next((o for o in others if not o.endswith(_LATENCY)), [*others, "accuracy"][0])
        # A finalist's longer training must not stand in for what the search saw.
        seen = [results.get(m["trial"], m) for m in members]
        proxy = next((r["proxy"]["name"] for r in [*seen, *results.values()] if r["proxy"]), None)
        label, count = _score(second, proxy, [*seen, *results.values()])
        source = _COUNTS[second][0] if second in _COUNTS else "proxy" if proxy else "trained"
        source = second if second.endswith(_LATENCY) else source
        points = [
            _point(m, _value(s, source), _again(m, s, source))
            for m, s in zip(members, seen, strict=True)
        ]
        splits = {
            m["trained"]["split"]
            for m, p in zip(members, points, strict=True)
            if m["trained"] and p.finalist
        }
        points.sort(key=_by_latency)
        on_front = {point.trial for point in points}
        others = [
            _point(r, _value(r, source), finalist=False)
            for number, r in results.items()
            if number not in on_front
        ]
        return cls(
            study=str(front["study"]),
            subtitle=setting_text(front),
            members=tuple(points),
            others=tuple(others),
            knee=_knee(points, -1 if count else 1) if knee is None else knee,
            score_label=label,
            score_is_count=count,
            joined=set(objectives) == {"latency", second},
            beside=frozenset(objectives) - {second},
            score_phase=second.removesuffix(_LATENCY) if second.endswith(_LATENCY) else None,
            accuracy_label=_accuracy_label(splits),
            phases=tuple(dict.fromkeys(phase for r in seen for phase in r.get("phases", {}))),
        )

    def in_phase(self, phase: str) -> FrontView:
        """Return the same front with the latencies of a phase."""

        def placed(points: Iterable[PointView]) -> list[PointView]:
            return [replace(p, **vars(p.phases.get(phase, PhaseView()))) for p in points]

        members = sorted(placed(self.members), key=_by_latency)
        return replace(
            self,
            members=tuple(members),
            others=tuple(placed(self.others)),
            joined=self.beside == {phase + _LATENCY},
            phase=phase,
        )


def _by_latency(point: PointView) -> float:
    return math.inf if point.predicted_ms is None else point.predicted_ms


def _score(second: str, proxy: str | None, records: Sequence[Record]) -> tuple[str, bool]:
    if second in _COUNTS:
        return f"{_COUNTS[second][1]}, less is better", True
    if second.endswith(_LATENCY):
        phase = second.removesuffix(_LATENCY)
        return f"Predicted latency of {phase} (ms), less is better", True
    if second != "accuracy":
        valid = ", ".join(["accuracy", "latency", *sorted(_COUNTS)])
        raise RequestError(f"unknown objective {second!r}. Valid: {valid}.")
    if proxy:
        return f"{proxy} score, more is better", False
    return _accuracy_label({r["trained"]["split"] for r in records if r["trained"]}), False


def _accuracy_label(splits: set[str]) -> str:
    return f"{splits.pop().capitalize()} accuracy" if len(splits) == 1 else "Accuracy"


def _value(record: Record, source: str) -> float | None:
    if source.endswith(_LATENCY):
        return _phase(record["phases"][source.removesuffix(_LATENCY)]).predicted_ms
    found = record[source]
    if isinstance(found, Mapping):
        found = found["value" if source == "proxy" else "accuracy"]
    return _finite(found)


def _again(member: Record, seen: Record, source: str) -> bool:
    """Tell whether a member was measured, or trained beyond what the search saw of it."""
    if member["measured"]:
        return True
    if seen is member:  # what the search saw is unknown
        return bool(member["trained"]) and source != "trained"
    return bool(member["trained"]) and member["trained"] != seen["trained"]


def _phase(record: Record) -> PhaseView:
    predicted, measured = record["predicted"], record.get("measured")
    return PhaseView(
        predicted_ms=_finite(predicted["latency_ms"]) if predicted else None,
        std_ms=predicted["std_ms"] if predicted else 0.0,
        in_range=predicted["in_range"] if predicted else True,
        measured_ms=measured["latency_ms"] if measured else None,
        spread_ms=measured["spread_ms"] if measured else 0.0,
        unprofiled_share=predicted.get("unprofiled_share", 0.0) if predicted else 0.0,
    )


def _point(record: Record, score: float | None, finalist: bool) -> PointView:
    return PointView(
        **vars(_phase(record)),
        trial=record["trial"],
        arch=arch_text(record["arch"]),
        score=score,
        accuracy=record["trained"]["accuracy"] if record["trained"] else None,
        finalist=finalist,
        proxy=_value(record, "proxy"),
        parameters=record["parameters"],
        flops=record["flops"],
        feasible=record.get("feasible", True),
        phases={phase: _phase(facts) for phase, facts in record.get("phases", {}).items()},
    )


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _knee(points: Sequence[PointView], direction: int) -> int | None:
    placed = [
        (p.trial, p.predicted_ms, -direction * p.score)
        for p in points
        if p.predicted_ms is not None and p.score is not None
    ]
    if not placed:
        return None
    return placed[pareto.knee([row[1:] for row in placed])][0]
