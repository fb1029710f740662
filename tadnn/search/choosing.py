"""Choosing one network of a front: the knee, a trial, the best within a latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tadnn import pareto
from tadnn.errors import RequestError
from tadnn.search.spec_parts import LATENCY

Member = Mapping[str, Any]

# Objectives of which less is better, by the member's field.
_FEWER = {"parameters": "parameters", "flops": "flops", "memory": "memory_bytes"}


def knee_trial(record: Mapping[str, Any]) -> int | None:
    """Return the trial number of a front's knee; None where the front is empty.

    Where finalists were trained, it is theirs: trained accuracy against measured latency
    (predicted, where nothing was measured). Otherwise it is that of the whole front: the
    first objective that is no latency against predicted latency. A study without the objective
    latency has the knee of its first two objectives.
    """
    members = record["members"]
    if not members:
        return None
    cost, second = _axes(record["objectives"])
    finalists = _finalists(members)
    if finalists:
        timed = all(_latency(m) is not None for m in finalists)
        axis = "latency" if timed and not _is_latency(cost or "") else cost
        points = [(_loss(m, axis), -m["trained"]["accuracy"]) for m in finalists]
        return int(finalists[pareto.knee(points)]["trial"])
    points = [(_loss(m, cost), _loss(m, second)) for m in members]
    return int(members[pareto.knee(points)]["trial"])


def best_within(record: Mapping[str, Any], max_latency_ms: float) -> int:
    """Return the trial number of the best member whose latency is within a bound.

    Measured latency counts where there is one, else the predicted one. Best is the
    highest trained accuracy among finalists; without a finalist within the bound, the
    best value of the study's first objective that is no latency.

    Raises:
        RequestError: no member is that fast; the fastest is named.
    """
    members = record["members"]
    able = [m for m in members if _latency(m) is not None and _latency(m) <= max_latency_ms]
    if not able:
        timed = sorted((_latency(m), m["trial"]) for m in members if _latency(m) is not None)
        fastest = f"the fastest, trial {timed[0][1]}, takes {timed[0][0]:.3f} ms" if timed else ""
        raise RequestError(
            f"no network of the front runs within {max_latency_ms:g} ms; "
            f"{fastest or 'none has a latency'}"
        )
    finalists = _finalists(able)
    if finalists:  # of equal accuracies the faster one: members are ordered by latency
        return int(max(finalists, key=lambda m: m["trained"]["accuracy"])["trial"])
    beside = _bought(record["objectives"], "latency") or "latency"
    return int(min(able, key=lambda m: _loss(m, beside))["trial"])


def _axes(objectives: Sequence[str]) -> tuple[str | None, str | None]:
    """Return what a front's knee weighs: a cost, and what is bought with it."""
    cost = next((o for o in ("latency", *objectives) if o in objectives and o != "accuracy"), None)
    return cost, _bought(objectives, cost)


def _bought(objectives: Sequence[str], cost: str | None) -> str | None:
    """Return the first objective beside a cost; one that is no latency, where there is one."""
    others = [o for o in objectives if o != cost]
    return next((o for o in others if not _is_latency(o)), others[0] if others else None)


def _is_latency(objective: str) -> bool:
    return objective == "latency" or objective.endswith(LATENCY)


def _finalists(members: Sequence[Member]) -> list[Member]:
    return [m for m in members if m["trained"] and m["trained"]["split"] == "test"]


def _latency(member: Member) -> Any:
    for source in ("measured", "predicted"):
        if member.get(source):
            return member[source]["latency_ms"]
    return None


def _loss(member: Member, objective: str | None) -> float:
    """Return a member's value of an objective, less being better; all alike without one."""
    if objective is None:
        return 0.0
    if objective == "latency":
        return float(_latency(member))
    if objective.endswith(LATENCY):
        return float(_latency(member["phases"][objective.removesuffix(LATENCY)]))
    if objective in _FEWER:
        return float(member[_FEWER[objective]])
    return -float(member["proxy"]["value"] if member["proxy"] else member["trained"]["accuracy"])
