"""Measuring networks side by side, beside some that were measured before."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from tadnn.files import LATENCY_MODELS
from tadnn.latency import NetTiming
from tadnn.nets import Net
from tadnn.profiling import Clock, Measurement, NetRun, ProfileDatabase, Subject, measure
from tadnn.progress import SILENT, Progress
from tadnn.search.learned import PROFILES

_TOUCHSTONES: Final = 3
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 20.0
DRIFTED: Final = 10.0
"""Percent; what a shared machine at rest stays below, and a prediction's error as well."""


@dataclass(frozen=True)
class SideBySide:
    """What measuring networks in turns gave.

    Attributes:
        records: of every network ``latency_ms``, ``spread_ms`` and ``repeats``.
        against_itself: by how many percent a network differs from itself at most; None without
            networks.
        drift: by how many percent networks that were measured on this machine before take longer
            than they did then (below zero: less long); None where there are none.
    """

    records: list[dict[str, Any]]
    against_itself: float | None
    drift: float | None

    def check(self) -> dict[str, float]:
        """Return what the measurement says of itself, rounded."""
        said = {"against_itself": self.against_itself, "drift": self.drift}
        return {name: round(value, 3) for name, value in said.items() if value is not None}


def measure_nets(
    clock: Clock,
    nets: Iterable[Net],
    batch: int,
    label: str,
    progress: Progress = SILENT,
    pause: Callable[[float], None] = time.sleep,
) -> SideBySide:
    """Measure networks in turns, each twice: how finalists and exports are measured.

    A machine that is busy, throttled or just awake after long trainings isn't the one that the
    latency model learned. So up to three networks that were measured on it then, of about the same
    work, take their turns as well. Where these now differ by more than ``DRIFTED`` percent, all is
    measured again after a pause, three times at most; what drifted least is returned.

    Args:
        clock: what measures.
        nets: the networks.
        batch: the batch size.
        label: of the work, for ``progress``.
        progress: told of every measurement.
        pause: waits so many seconds.
    """
    nets = list(nets)
    before = touchstones(clock, nets, batch)
    subjects: list[Subject] = [NetRun(known.net, batch) for known in before]
    subjects += [NetRun(net, batch) for net in nets for _ in range(2)]

    def attempt() -> SideBySide:
        with progress.task(label, len(subjects)) as advance:
            times = measure(clock, subjects, on_result=lambda *_: advance(1))
        return _side_by_side(before, times)

    attempts = [attempt()]
    while drifted(attempts[-1].drift) and len(attempts) < _ATTEMPTS:
        with progress.task("waiting for the machine to come to rest", None):
            pause(_PAUSE_S)
        attempts.append(attempt())
    return min(attempts, key=lambda done: abs(done.drift or 0.0))


def drifted(drift: float | None) -> bool:
    """Return whether a machine has become another one since it was learned (percent)."""
    return drift is not None and abs(drift) > DRIFTED


def drift_note(drift: float | None) -> str | None:
    """Say that a machine has become another one; None where it hasn't, or nobody knows."""
    if drift is None or not drifted(drift):
        return None
    more = "more" if drift > 0 else "less"
    return (
        f"networks that this machine was learned on take {abs(drift):.0f} % {more} time now than "
        f"then, in {_ATTEMPTS} attempts: predictions are for the machine as it was. Is it busy, or "
        f"was it? Run the search again when it is at rest, and finalists are measured again"
    )


def touchstones(clock: Clock, nets: Sequence[Net], batch: int) -> list[NetTiming]:
    """Return networks of about the same work that were measured before, and how long they took.

    They are in the working directory's profile database, for the clock's device and setting.

    Raises:
        CorruptFile: the database is damaged.
    """
    path = LATENCY_MODELS.local / PROFILES
    if not nets or not path.is_file():
        return []
    asked = {net.key for net in nets}
    known = [
        NetTiming(Net.from_json(written), batch, measurement.latency_us / 1e3)
        for key, at, written, measurement in ProfileDatabase(path).nets(
            clock.device.slug, clock.setting
        )
        if at == batch and key not in asked
    ]
    left = [(_work(timing.net), timing) for timing in known]
    work = [_work(net) for net in nets]
    chosen: list[NetTiming] = []
    for goal in np.linspace(min(work), max(work), min(_TOUCHSTONES, len(left))):
        nearest = min(range(len(left)), key=lambda i: abs(left[i][0] - goal))
        chosen.append(left.pop(nearest)[1])
    return chosen


def _work(net: Net) -> float:
    return math.log(max(1, net.flops()))  # what no layer is understood of counts none


def _side_by_side(before: Sequence[NetTiming], times: Sequence[Measurement]) -> SideBySide:
    again, new = times[: len(before)], times[len(before) :]
    pairs = list(zip(new[::2], new[1::2], strict=True))
    differences = [100 * abs(b.latency_us / a.latency_us - 1) for a, b in pairs]
    pace = [now.latency_us / 1e3 / then.latency_ms for now, then in zip(again, before, strict=True)]
    return SideBySide(
        [_record(first) for first, _ in pairs],
        max(differences, default=None),
        100 * (median(pace) - 1) if pace else None,
    )


def _record(measurement: Measurement) -> dict[str, Any]:
    return {
        "latency_ms": measurement.latency_us / 1e3,
        "spread_ms": measurement.spread_us / 1e3,
        "repeats": measurement.repeats,
    }
