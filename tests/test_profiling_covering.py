from __future__ import annotations

import itertools
import random

import pytest

from tadnn.kernels import Kernel
from tadnn.nets import Conv2d, NetBuilder, ReLU, block
from tadnn.profiling import Measurement, covering_nets, reduced, relative_cost
from tadnn.runtimes import find_runtime, lower_net

RUNTIME = find_runtime("onnxruntime")
KERNELS = [Kernel.of("relu", rows=1, cols=n) for n in range(1, 9)]


@block
def conv(b, width, kernel):  # type: ignore[no-untyped-def]
    b.add(Conv2d(width, kernel), b.input, name="conv")
    b.add(ReLU(), name="relu")


def net(*windows: int, width: int = 16):  # type: ignore[no-untyped-def]
    builder = NetBuilder((3, 8, 8))
    for i, window in enumerate(windows):
        builder.add(f"conv{i}", conv(width, window))
    return builder.build()


def test_the_most_new_kernels_for_their_cost_come_first() -> None:
    a, b, c, d = KERNELS[:4]
    shown = {"all": {a, b, c, d}, "two": {a, b}, "one": {c}}
    cheap = {"all": 8.0, "two": 1.0, "one": 1.0}
    assert covering_nets([a, b, c, d], shown, cheap, 9) == ["two", "one", "all"]
    assert covering_nets([a, b, c, d], shown, dict.fromkeys(shown, 1.0), 9) == ["all"]
    assert covering_nets([a, b, c], shown, cheap, 1) == ["two"]
    assert covering_nets([KERNELS[5]], shown, cheap, 9) == []
    assert covering_nets([], shown, cheap, 9) == []


@pytest.mark.parametrize("seed", range(20))
def test_everything_that_can_be_seen_is(seed: int) -> None:
    rng = random.Random(seed)
    shown = {i: set(rng.sample(KERNELS, rng.randint(1, 4))) for i in range(7)}
    cost = {i: 1.0 for i in shown}
    chosen = covering_nets(KERNELS, shown, cost, 99)
    union = set().union(*shown.values())
    assert set().union(*(shown[i] for i in chosen)) == union
    fewest = next(
        count
        for count in itertools.count(1)
        if any(
            set().union(*(shown[i] for i in some)) == union
            for some in itertools.combinations(shown, count)
        )
    )
    harmonic = sum(1 / k for k in range(1, 5))  # of the largest set: Chvatal's bound
    assert fewest <= len(chosen) <= harmonic * fewest


def test_blocks_that_show_nothing_new_are_left_out() -> None:
    full = net(3, 3, 3, 5, 3, 5)
    few = reduced(full, 1, "fp32", RUNTIME, set())
    assert [name for name, _ in few.blocks] == ["conv0", "conv1", "conv3"]
    assert set(lower_net(few, 1, "fp32", RUNTIME)) == set(lower_net(full, 1, "fp32", RUNTIME))
    known = set(lower_net(net(3, 3), 1, "fp32", RUNTIME))
    few = reduced(full, 1, "fp32", RUNTIME, known)
    assert [name for name, _ in few.blocks] == ["conv0", "conv3"]
    assert reduced(few, 1, "fp32", RUNTIME, set()) is few


def test_larger_networks_cost_more() -> None:
    assert 1 < relative_cost(net(3), 1) < relative_cost(net(3, 3), 1)
    assert relative_cost(net(3), 2) - 1 == pytest.approx(2 * (relative_cost(net(3), 1) - 1))


def test_times_in_whole_microseconds_are_averaged() -> None:
    measured = Measurement.of_observed([3.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 90.0])
    assert measured.latency_us == pytest.approx((3 + 3 + 4 + 4) / 4)
    assert measured.repeats == 8
    assert Measurement.of_observed([0.0, 0.0, 0.0]).latency_us == 0.25
    assert Measurement.of_observed([7.0]) == Measurement(7.0, 0.0, 1)


def test_observations_of_one_kernel_are_put_together() -> None:
    both = Measurement(10.0, 1.0, 30).combined(Measurement(14.0, 1.0, 10))
    assert both.latency_us == 11.0
    assert both.repeats == 40
    assert both.spread_us == pytest.approx((1 + 0.75 * 0.25 * 16) ** 0.5)
