"""Calibrating by whole networks alone: what was made up is found again."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from latency_fakes import small_nets, space_model

from tadnn.errors import TableError
from tadnn.hardware import find_device
from tadnn.kernels import Kernel
from tadnn.latency import (
    LatencyModel,
    NetTiming,
    calibrate,
    evaluate_nets,
    load_latency_model,
    save_latency_model,
    score,
)
from tadnn.latency.batch import KernelBatch
from tadnn.latency.card import Card
from tadnn.latency.kind_factors import KindFactors, group_of, kind_indices, kinds_of
from tadnn.latency.nets import NetCalibration, NetCost, overlapped
from tadnn.nets import Net
from tadnn.runtimes import Setting

V100 = find_device("v100")


@functools.cache
def nets() -> list[Net]:
    return small_nets(40, 3)


@functools.cache
def unprofiled() -> LatencyModel:
    """A model of a GPU that knows nothing but its facts."""
    card = Card("facts", (V100,), Setting(runtime="cuda-kernels"))
    return LatencyModel(card, {}, NetCalibration(), V100)


def timed(model: LatencyModel, count: int, factor: float, noise: float = 0.0) -> list[NetTiming]:
    rng = np.random.default_rng(0)
    return [
        NetTiming(net, 8, model.predict_net(net, 8).latency_ms * factor * float(np.exp(noise * z)))
        for net, z in zip(nets()[:count], rng.normal(size=count), strict=True)
    ]


def test_a_scale_is_found_by_three_timings() -> None:
    calibrated = calibrate("c", unprofiled(), timed(unprofiled(), 3, 2.5))
    later = [replace(t) for t in timed(unprofiled(), 20, 2.5)[3:]]
    assert evaluate_nets(unprofiled(), later)["overall"]["mape"] == pytest.approx(60, abs=1)
    assert evaluate_nets(calibrated, later)["overall"]["mape"] < 1
    # Kernels keep their relations, and are never in range: none was measured.
    kernels = list(unprofiled().launched(nets()[0], 8))
    ratio = calibrated.predict_us(kernels) / unprofiled().predict_us(kernels)
    np.testing.assert_allclose(ratio, 2.5, rtol=0.05)
    assert not calibrated.predict(kernels).in_range.any()


def test_a_kernel_may_cost_a_network_less_than_it_takes_alone() -> None:
    calibrated = calibrate("c", unprofiled(), timed(unprofiled(), 12, 0.05))
    launched = unprofiled().launched(nets()[0], 8)
    big = next(kernel for kernel in launched if kernel.op == "conv2d").replace(n=8192)
    (least,) = KernelBatch.of([big], V100, 0).least_us
    assert unprofiled().predict_us([big])[0] >= least
    assert calibrated.predict_us([big])[0] < 0.5 * least
    assert calibrated.predict([big]).latency_us[0] < 0.5 * least


def test_kinds_get_factors_of_their_own() -> None:
    truth = KindFactors("v100", {"conv2d": np.log(3.0), "batch_norm": np.log(0.5)}, {}, (0, 0), 1)
    model = unprofiled()
    there = LatencyModel(model.card, {}, model.nets, V100, adjustments=(truth,))
    timings = timed(there, 40, 1.0, noise=0.01)
    calibrated = calibrate("c", model, timings[:30])
    plain = np.median([t.latency_ms / model.predict_net(t.net, 8).latency_ms for t in timings])
    by_scale = [
        abs(plain * model.predict_net(t.net, 8).latency_ms / t.latency_ms - 1) for t in timings[30:]
    ]
    judged = evaluate_nets(calibrated, timings[30:])["overall"]
    assert judged["mape"] < 2.5
    assert judged["mape"] < 0.7 * 100 * np.mean(by_scale)
    found = calibrated.adjustments[0]
    assert isinstance(found, KindFactors)
    assert found.factors["conv2d"] > found.factors["batch_norm"]
    assert calibrated.nets.held_out["n"] == 30
    assert calibrated.nets.held_out["mape"] < 3


def test_one_odd_timing_moves_little() -> None:
    timings = timed(unprofiled(), 30, 2.0, noise=0.01)
    odd = [replace(timings[0], latency_ms=6 * timings[0].latency_ms), *timings[1:]]
    judged = evaluate_nets(calibrate("c", unprofiled(), odd), timings[1:])["overall"]
    assert judged["mape"] < 2


def test_gaps_are_found_where_the_runtime_has_them() -> None:
    card = Card("facts", (V100,), Setting(runtime="torch-eager"))
    plain = LatencyModel(card, {}, NetCalibration(), V100)
    gaps = LatencyModel(card, {}, NetCalibration(base_us=40, host_us=9.0), V100)
    timings = timed(gaps, 40, 1.0)
    judged = evaluate_nets(calibrate("c", plain, timings[:25]), timings[25:])["overall"]
    assert judged["mape"] < 3
    nothing = calibrate("c", unprofiled(), timed(unprofiled(), 10, 1.0)).nets
    assert (nothing.base_us, nothing.gap_us, nothing.host_us) == (0, 0, 0)


def test_measured_kernels_stay_and_the_sum_is_scaled() -> None:
    model = space_model()
    timings = [NetTiming(net, 1, 1.3 * model.predict_net(net).latency_ms) for net in nets()[:12]]
    calibrated = calibrate("c", model, timings)
    kernels = list(model.launched(nets()[0], 1))
    ratio = calibrated.predict_us(kernels) / model.predict_us(kernels)
    np.testing.assert_allclose(ratio, 1, atol=0.15)
    assert calibrated.predict(kernels).in_range.all()
    assert evaluate_nets(calibrated, timings)["overall"]["mape"] < 3


def test_it_is_kept_and_scores_the_same(in_tmp_path: Path) -> None:
    from latency_fakes import INPUT, small_space

    made = calibrate("c", unprofiled(), timed(unprofiled(), 5, 2.0), source="t.csv")
    save_latency_model(made, in_tmp_path / "latency_models" / "c")
    loaded = load_latency_model("c")
    net = nets()[0]
    assert loaded.predict_net(net, 8) == made.predict_net(net, 8)
    assert loaded.card.data["timings"] == 5
    assert loaded.card.data["base"]["latency_model"] == "facts"
    arch = small_space().sample(1, 3)[0]
    built = small_space().build(arch, INPUT, 10)
    scored = score(small_space(), [arch], loaded, 8, INPUT, classes=10)[0]
    assert scored == pytest.approx(loaded.predict_net(built, 8).latency_ms, rel=1e-6)


def test_too_few_and_impossible() -> None:
    with pytest.raises(TableError, match=r"at least 3 timings of networks calibrate.*got 2"):
        calibrate("c", unprofiled(), timed(unprofiled(), 2, 1.0))
    with pytest.raises(TableError, match="latency_ms in seconds"):
        calibrate("c", unprofiled(), timed(unprofiled(), 5, 1e-3))


def test_overlapped_is_the_longer_where_they_differ() -> None:
    assert overlapped(100.0, 10.0) == pytest.approx(100, rel=1e-6)
    assert overlapped(10.0, 100.0) == pytest.approx(100, rel=1e-6)
    assert overlapped(100.0, 100.0) == pytest.approx(100 * 2 ** (1 / 6))
    hosted = NetCalibration(base_us=5, host_us=10)
    assert hosted.latency_us(NetCost(1.0, 10, 0.0)) == pytest.approx(105, rel=1e-6)


def test_kinds() -> None:
    def conv(c: int, groups: int, r: int) -> Kernel:
        sizes = {"n": 1, "c": c, "h": 8, "w": 8, "k": c, "r": r, "s": r, "stride": 1, "pad": 0}
        return Kernel.of("conv2d", **sizes, dilation=1, groups=groups)

    batch = KernelBatch.of([conv(8, 1, 3), conv(8, 1, 1), conv(8, 2, 3), conv(8, 8, 3)], V100, 1)
    assert [kinds_of("conv2d")[i] for i in kind_indices(batch)] == [
        *("conv2d", "conv2d pointwise", "conv2d grouped", "conv2d depthwise"),
    ]
    assert kinds_of("add") == ("add",)
    assert [group_of(k) for k in ("conv2d", "conv2d depthwise", "add", "bmm")] == [
        *("matrix", "memory", "memory", "matrix"),
    ]
