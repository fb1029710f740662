from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tadnn.errors import RequestError, WorkFailed
from tadnn.kernels import Kernel
from tadnn.profiling import Clock, FakeClock, Measurement, Subject, Timed, measure
from tadnn.profiling.fake_clock import FAKE_DEVICE
from tadnn.progress import Progress
from tadnn.runtimes import Setting

WARM_UPS = 2


def kernel(n: int) -> Kernel:
    return Kernel.of("linear", m=1, n=n, k=1)


class ScriptedClock(Clock):
    """Gives each subject the samples written for it, warm-up included; logs every call."""

    def __init__(self, script: dict[Kernel, list[float]], min_sample_us: float = 0.0) -> None:
        super().__init__(FAKE_DEVICE, Setting())
        self.script = script
        self.min_sample_us = min_sample_us
        self.log: list[tuple[int, int]] = []
        self.sessions = 0

    def prepare(self, subject: Subject) -> Timed:
        assert isinstance(subject, Kernel)
        samples = iter(self.script[subject])

        def timed(inner: int) -> float:
            assert self.sessions == 1
            self.log.append((subject.dim("n"), inner))
            sample = next(samples)
            if math.isinf(sample) and sample < 0:
                raise KeyboardInterrupt
            return sample

        return timed

    @contextmanager
    def session(self) -> Iterator[None]:
        self.sessions += 1
        try:
            yield
        finally:
            self.sessions -= 1

    def environment(self) -> dict[str, str]:
        return {}


def scripted(*samples: float) -> ScriptedClock:
    return ScriptedClock({kernel(1): [1e6] * WARM_UPS + list(samples)})


def test_median_and_spread_by_hand() -> None:
    # Sorted 1 2 4 7 100: median 4; deviations 3 2 0 3 96, sorted 0 2 3 3 96: MAD 3.
    measured = Measurement.of([7, 1, 100, 2, 4])
    assert measured == Measurement(4, 1.4826 * 3, 5)
    assert measured.error_us == pytest.approx(math.sqrt(math.pi / 2) * 1.4826 * 3 / math.sqrt(5))
    assert Measurement.of([1, 2, 3, 10]) == Measurement(2.5, 1.4826 * 1.0, 4)
    assert Measurement.of([5.0]) == Measurement(5.0, 0.0, 1)


def test_what_is_slow_is_measured_by_few_samples() -> None:
    # 1.5 seconds a sample, and never twice the same.
    clock = scripted(1.4e6, 1.5e6, 1.7e6, 1.3e6, 1.6e6, 1.5e6, 1.4e6, 1.7e6)
    (found,) = measure(clock, [kernel(1)], longest_s=4.0)
    assert found == Measurement.of([1.4e6, 1.5e6, 1.7e6])
    clock = scripted(3e6, 4e6, 5e6, 6e6)
    (found,) = measure(clock, [kernel(1)], longest_s=4.0)
    assert found.repeats == 3, "never fewer than three"


def test_error_of_the_median_agrees_with_normal_samples() -> None:
    import random

    rng = random.Random(0)
    medians, errors = [], []
    for _ in range(400):
        measured = Measurement.of([rng.gauss(100, 5) for _ in range(41)])
        medians.append(measured.latency_us)
        errors.append(measured.error_us)
    true_error = math.sqrt(sum((m - 100) ** 2 for m in medians) / len(medians))
    assert sum(errors) / len(errors) == pytest.approx(true_error, rel=0.1)


def test_a_quiet_candidate_stops_at_min_repeats() -> None:
    clock = scripted(*[100.0] * 7)
    assert measure(clock, [kernel(1)]) == [Measurement(100.0, 0.0, 7)]
    assert len(clock.log) == WARM_UPS + 7


def test_a_noisy_candidate_stops_as_soon_as_its_median_is_known() -> None:
    # Median 100, median absolute deviation 2, from the seventh sample on;
    # 1.2533 * 1.4826 * 2 / sqrt(n) <= 1 needs n >= 13.81.
    samples = [98.0, 100.0, 102.0] * 20
    (measured,) = measure(scripted(*samples), [kernel(1)], precision=0.01)
    assert measured == Measurement(100.0, pytest.approx(2.9652), 14)


def test_outliers_do_not_keep_a_candidate_running() -> None:
    # A standard error of the mean would be 1e5 here; the median doesn't care.
    (measured,) = measure(scripted(*[100.0] * 5, 1e6, 1e6), [kernel(1)])
    assert measured == Measurement(100.0, 0.0, 7)


def test_a_hopeless_candidate_stops_at_max_repeats() -> None:
    (measured,) = measure(scripted(*[50.0, 100.0, 150.0] * 4), [kernel(1)], max_repeats=12)
    assert measured.repeats == 12
    assert measured.spread_us == pytest.approx(1.4826 * 50)


def test_candidates_take_turns_and_leave_when_done() -> None:
    clock = ScriptedClock(
        {
            kernel(1): [5.0] * 9,
            kernel(2): [5.0] * WARM_UPS + [1.0, 2.0, 3.0, 4.0],
            kernel(3): [5.0] * 9,
        }
    )
    heard: list[tuple[Subject, int]] = []
    measured = measure(
        clock,
        [kernel(1), kernel(2), kernel(3)],
        min_repeats=2,
        max_repeats=4,
        on_result=lambda subject, m: heard.append((subject, m.repeats)),
    )
    warm_up = [1, 1, 2, 2, 3, 3]
    assert [n for n, _ in clock.log] == [*warm_up, 1, 2, 3, 1, 2, 3, 2, 2]
    assert [m.repeats for m in measured] == [2, 4, 2]
    assert heard == [(kernel(1), 2), (kernel(3), 2), (kernel(2), 4)]


def test_chunks_follow_each_other() -> None:
    subjects = [kernel(n) for n in range(1, 36)]
    clock = ScriptedClock({subject: [float(subject.dim("n"))] * 4 for subject in subjects})
    measured = measure(clock, subjects, min_repeats=2, max_repeats=2)
    assert [m.latency_us for m in measured] == list(range(1, 36))
    first, second, third = range(1, 17), range(17, 33), range(33, 36)
    expected = [n for chunk in (first, second, third) for n in chunk for _ in range(WARM_UPS)]
    warm_ups = [expected[:32], expected[32:64], expected[64:]]
    order = [
        n
        for warm, chunk in zip(warm_ups, (first, second, third), strict=True)
        for n in [*warm, *chunk, *chunk]
    ]
    assert [n for n, _ in clock.log] == order


def test_short_subjects_run_often_enough_to_fill_a_sample() -> None:
    # Cold 90 us, then 30: ceil(100 / 30) = 4 runs a sample, where a run takes 20: 5; then steady.
    clock = ScriptedClock({kernel(1): [90.0, 30.0, 20.0, 20.0, 20.0]}, min_sample_us=100.0)
    measure(clock, [kernel(1)], min_repeats=2, max_repeats=2)
    assert [inner for _, inner in clock.log] == [1, 1, 4, 5, 5]


def test_long_subjects_run_once_a_sample() -> None:
    clock = ScriptedClock({kernel(1): [900.0] * 4}, min_sample_us=100.0)
    measure(clock, [kernel(1)], min_repeats=2, max_repeats=2)
    assert [inner for _, inner in clock.log] == [1] * 4


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_duration_never_gets_through(wrong: float) -> None:
    heard: list[Subject] = []
    with pytest.raises(WorkFailed, match=r"positive and finite; got .* us for linear\(m=1,n=1"):
        measure(scripted(1.0, wrong), [kernel(1)], on_result=lambda s, m: heard.append(s))
    assert heard == []


def test_an_interruption_keeps_what_was_finished() -> None:
    clock = ScriptedClock(
        {
            kernel(1): [5.0] * 4,
            kernel(2): [5.0] * WARM_UPS + [5.0, 9.0, -math.inf],
        }
    )
    heard: list[Subject] = []
    with pytest.raises(KeyboardInterrupt):
        measure(
            clock,
            [kernel(1), kernel(2)],
            min_repeats=2,
            on_result=lambda subject, _: heard.append(subject),
        )
    assert heard == [kernel(1)]
    assert clock.sessions == 0, "the session was closed"


def test_progress_counts_what_is_finished() -> None:
    steps: list[int] = []

    class Recording(Progress):
        @contextmanager
        def task(self, label, total):  # type: ignore[no-untyped-def]
            steps.append(-total)
            yield steps.append

    measure(FakeClock(Setting()), [kernel(1), kernel(2)], progress=Recording(), precision=0.1)
    assert steps == [-2, 1, 1]


def test_nothing_to_measure() -> None:
    assert measure(FakeClock(Setting()), []) == []


@pytest.mark.parametrize(
    "wrong", [{"min_repeats": 0}, {"min_repeats": 9, "max_repeats": 8}, {"precision": 0.0}]
)
def test_senseless_requests_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestError, match="min_repeats <= max_repeats and precision > 0; got"):
        measure(FakeClock(Setting()), [], **wrong)  # type: ignore[arg-type]


def test_medians_are_as_precise_as_asked() -> None:
    clock = FakeClock(Setting(), noise=0.05)
    subjects = [kernel(n) for n in range(1, 129)]
    measured = measure(clock, subjects, precision=0.01, max_repeats=200)
    offs = [m.latency_us / clock.true_us(s) - 1 for m, s in zip(measured, subjects, strict=True)]
    rms = math.sqrt(sum(off * off for off in offs) / len(offs))
    # Stopping as soon as it looks good is a bit optimistic; not stopping early would give 0.0044.
    assert 0.006 < rms < 0.017
    assert sum(m.repeats for m in measured) < 128 * 60
