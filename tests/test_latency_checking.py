"""Measurements that can't be are refused, with a guess at what went wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latency_fakes import SETTING, convs, linear, rows, small_nets

from tadnn.errors import TableError
from tadnn.kernels import KernelRow
from tadnn.latency import LatencyModel, evaluate_kernels, fit_kernels
from tadnn.latency.checking import check_rows, check_timings, contradictions, floor_us
from tadnn.profiling import FAKE_DEVICE, FakeClock, NetRun
from tadnn.runtimes import find_runtime, lower_net

CLOCK = FakeClock(SETTING, noise=0.0)


def table(factor: float = 1.0) -> list[KernelRow]:
    return [replace(row, latency_us=row.latency_us * factor) for row in rows(CLOCK, convs(20))]


def test_floor_is_a_tenth_of_the_roofline() -> None:
    kernel = linear(1024, 1024, 1024)
    # Two of four cores: 2 * 1024^3 FLOPs at 0.064 TFLOPS, a tenth of it.
    assert floor_us([kernel], FAKE_DEVICE, 2)[0] == pytest.approx(2 * 1024**3 / 0.064e6 / 10)


def test_real_measurements_pass() -> None:
    check_rows(FAKE_DEVICE, table(), SETTING)
    check_rows(FAKE_DEVICE, table(20.0), SETTING)


@pytest.mark.parametrize(
    ("factor", "guess"), [(1e-3, "milliseconds"), (1e-6, "(?<!milli)seconds"), (1e4, "nanoseconds")]
)
def test_another_unit_is_guessed(factor: float, guess: str) -> None:
    with pytest.raises(TableError, match=rf"latency_us in {guess}"):
        check_rows(FAKE_DEVICE, table(factor), SETTING)


def test_contradictions_are_refused_with_their_spread() -> None:
    twice = [*table(), *table(3.0)]
    with pytest.raises(TableError, match=r"20 kernels don't.*2 rows from .* to .* us.*mixed"):
        fit_kernels("m", [(FAKE_DEVICE, twice)], SETTING)
    found = contradictions(twice)
    assert len(found) == 20
    assert all(c["most_us"] == pytest.approx(3 * c["least_us"]) for c in found)
    assert all(c["rows"] == 2 for c in found)
    assert not contradictions([*table(), *table(1.4)])


def test_evaluating_reports_contradictions() -> None:
    model: LatencyModel = fit_kernels("m", [(FAKE_DEVICE, table())], SETTING)
    twice = [*table(), *table(3.0)[:1]]
    judged = evaluate_kernels(model, twice)
    assert judged["overall"]["n"] == 21
    assert [c["kernel"] for c in judged["contradictions"]] == [twice[0].kernel.key]


def test_timings_of_another_unit() -> None:
    nets = small_nets(4)
    runtime = find_runtime("torch-eager")
    launched = [dict.fromkeys(lower_net(net, 1, "fp32", runtime), 1) for net in nets]
    ms = np.array([CLOCK.true_us(NetRun(net)) / 1e3 for net in nets])
    names = ["a", "b", "c", "d"]
    check_timings(FAKE_DEVICE, launched, names, ms, 2)
    with pytest.raises(TableError, match="latency_ms in seconds"):
        check_timings(FAKE_DEVICE, launched, names, ms / 1e3, 2)
    with pytest.raises(TableError, match="latency_ms in microseconds"):
        check_timings(FAKE_DEVICE, launched, names, ms * 1e5, 2)
