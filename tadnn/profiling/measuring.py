"""Measuring: repeats until the median is known well enough, candidates interleaved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tadnn.errors import RequestError, WorkFailed
from tadnn.profiling.clock import Clock, Timed
from tadnn.profiling.measurement import Measurement
from tadnn.profiling.subject import NetRun, Subject
from tadnn.progress import SILENT, Progress

CHUNK: Final = 16
_MOST_INNER: Final = 10_000
_FEWEST_REPEATS: Final = 3


def measure(
    clock: Clock,
    subjects: Sequence[Subject],
    *,
    precision: float = 0.01,
    min_repeats: int = 7,
    max_repeats: int = 60,
    longest_s: float = 4.0,
    progress: Progress = SILENT,
    on_result: Callable[[Subject, Measurement], None] | None = None,
) -> list[Measurement]:
    """Measure subjects and return their measurements in the same order.

    Sixteen candidates at a time take turns, one sample each, so that a machine
    that warms up or gets busy slows all of them alike. A candidate leaves when
    its median's standard error is within ``precision`` (relative), or after
    ``max_repeats`` samples, or when at least three samples have taken ``longest_s``
    seconds together: what is that slow is measured well by few. As it leaves when
    it looks good, the error reached is up to 1.5 times the precision asked for
    (simulated, normal noise of 1 to 5 %). ``on_result``
    hears of each one as it leaves: store it there, and an interruption costs at
    most the candidates still running.

    Raises:
        RequestError: repeats, precision or time make no sense.
        WorkFailed: the clock gave something that is no duration.
    """
    if not (1 <= min_repeats <= max_repeats and precision > 0):
        raise RequestError(
            f"1 <= min_repeats <= max_repeats and precision > 0; "
            f"got {min_repeats}, {max_repeats}, {precision}"
        )
    results: dict[int, Measurement] = {}
    with progress.task("measuring", len(subjects)) as advance, clock.session():
        for start in range(0, len(subjects), CHUNK):
            running = {
                index: _Candidate(clock, subjects[index])
                for index in range(start, min(start + CHUNK, len(subjects)))
            }
            while running:
                for index, candidate in list(running.items()):
                    candidate.sample()
                    repeats = len(candidate.samples)
                    long = candidate.measured_s >= longest_s and repeats >= _FEWEST_REPEATS
                    if repeats < min_repeats and not long:
                        continue
                    measured = Measurement.of(candidate.samples)
                    precise = measured.error_us <= precision * measured.latency_us
                    if precise or long or repeats >= max_repeats:
                        results[index] = measured
                        del running[index]
                        if on_result is not None:
                            on_result(candidate.subject, measured)
                        advance(1)
    return [results[index] for index in range(len(subjects))]


class _Candidate:
    """A subject that is being measured; warmed up when made."""

    def __init__(self, clock: Clock, subject: Subject) -> None:
        self.subject = subject
        self.samples: list[float] = []
        self._timed: Timed = clock.prepare(subject)
        # The first run compiles and allocates; the second still fills caches, so its time
        # bounds the number of runs per sample from below: another look when it's above one.
        self.inner = 1
        is_net = isinstance(subject, NetRun)
        least_us = clock.min_net_sample_us if is_net else clock.min_sample_us
        self._once()
        for _ in range(2):
            wanted = math.ceil(least_us / self._once())
            enough = max(1, min(wanted, _MOST_INNER))
            if enough <= self.inner:
                break
            self.inner = enough

    @property
    def measured_s(self) -> float:
        """How long the samples took together, in seconds."""
        return sum(self.samples) * self.inner / 1e6

    def sample(self) -> None:
        self.samples.append(self._once())

    def _once(self) -> float:
        time_us = self._timed(self.inner)
        if not (math.isfinite(time_us) and time_us > 0):
            raise WorkFailed(
                f"a duration is positive and finite; got {time_us} us for {self.subject.key}"
            )
        return time_us
