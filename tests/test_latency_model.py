from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from latency_fakes import SETTING, conv, convs, linear, pool, rows, small_nets, space_model

from tadnn.errors import RequestError, SettingMismatch, ShapeError, TableError
from tadnn.hardware import find_device
from tadnn.kernels import Kernel, KernelRow
from tadnn.latency import (
    LatencyModel,
    NetTiming,
    calibrate_nets,
    evaluate_kernels,
    evaluate_nets,
    fit_kernels,
    to_json,
    width_of,
)
from tadnn.latency.nets import NetCalibration, NetCost, fit_nets
from tadnn.nets import BlockBuilder, Conv2d, Net, ReLU, block
from tadnn.profiling import FAKE_DEVICE, FakeClock, NetRun
from tadnn.profiling.fake_clock import BASE_US, GAP_US
from tadnn.runtimes import Setting, find_runtime, lower_net

SUMMARY = {
    *("n", "mape", "median_ape", "within_5", "within_10", "within_20", "bias", "spearman"),
    "near_pairs",
}


@pytest.fixture(scope="module")
def model() -> LatencyModel:
    return space_model()


@pytest.fixture(scope="module")
def timings() -> list[NetTiming]:
    clock = FakeClock(SETTING)
    return [NetTiming(net, 1, clock.true_us(NetRun(net)) / 1e3) for net in small_nets(20, 4)]


def test_the_card_counts_rows_and_names_device_and_setting(model: LatencyModel) -> None:
    kernels = pool(small_nets(12))
    assert model.card.data["rows"] == len(kernels)
    by_op = Counter(kernel.op for kernel in kernels)
    assert {op: fitted.rows for op, fitted in model.ops.items()} == dict(by_op)
    assert (model.name, model.setting, model.device) == ("small", SETTING, FAKE_DEVICE)


def test_a_net_is_the_sum_of_its_kernels(model: LatencyModel) -> None:
    net = small_nets(1, 7)[0]
    prediction = model.predict_net(net)
    kernels = lower_net(net, 1, "fp32", find_runtime("torch-eager"))
    counts = Counter(kernels)
    assert {share.kernel: share.count for share in prediction.kernels} == dict(counts)
    alone = model.predict(list(counts))
    expected = sum(n * us for n, us in zip(counts.values(), alone.latency_us, strict=True))
    assert prediction.latency_ms == pytest.approx(expected / 1e3)
    assert sum(s.latency_us * s.count for s in prediction.kernels) == pytest.approx(expected)
    shares = [share.latency_us * share.count for share in prediction.kernels]
    assert shares == sorted(shares, reverse=True)
    assert prediction.in_range == alone.in_range.all()
    # A launch repeated errs the same way twice.
    errors = [n * std for n, std in zip(counts.values(), alone.std_us, strict=True)]
    uncalibrated = math.hypot(math.hypot(*errors), model.nets.sigma * expected)
    assert prediction.std_ms == pytest.approx(uncalibrated / 1e3)


def test_a_larger_batch_takes_longer_and_is_out_of_range(model: LatencyModel) -> None:
    net = small_nets(1, 7)[0]
    one, eight = model.predict_net(net), model.predict_net(net, 8)
    assert eight.latency_ms > 2 * one.latency_ms
    assert (one.in_range, eight.in_range, eight.batch) == (True, False, 8)


def test_shares_know_their_waves(model: LatencyModel) -> None:
    prediction = model.predict_net(small_nets(1, 7)[0])
    convolutions = [s for s in prediction.kernels if s.kernel.op == "conv2d"]
    assert convolutions
    for share in convolutions:
        _, m, n, _ = share.kernel.matrix or (0, 0, 0, 0)
        assert share.waves == -(-(-(-m // 28) * -(-n // 16)) // 2)
        assert 0 < share.utilisation <= 1


def test_json_is_what_the_command_prints(model: LatencyModel) -> None:
    prediction = model.predict_net(small_nets(1, 7)[0])
    record = to_json(prediction, model)
    names = {"latency_ms", "std_ms", "in_range", "batch", "latency_model", "kernels", "opaque"}
    assert set(record) == names | {"unprofiled_share"}
    assert record["latency_model"] == "small"
    first = record["kernels"][0]
    assert set(first) == {
        "kernel", "count", "latency_us", "std_us", "in_range", "waves", "utilisation", "profiled",
    }  # fmt: skip
    assert Kernel.parse(first["kernel"]) == prediction.kernels[0].kernel
    types = [type(value) for value in first.values()]
    assert types == [str, int, float, float, bool, int, float, bool]


def test_an_op_without_rows_is_guessed_and_out_of_range(model: LatencyModel) -> None:
    kernels = [conv(16, 16, 16), Kernel.of("softmax", rows=10, cols=10)]
    predicted = model.predict(kernels)
    assert predicted.in_range.tolist() == [True, False]
    assert predicted.std_us[1] / predicted.latency_us[1] == pytest.approx(0.7, rel=1e-4)


def test_the_mean_alone_is_that_of_the_prediction(model: LatencyModel) -> None:
    kernels = [*pool(small_nets(3, 9)), Kernel.of("softmax", rows=10, cols=10)]
    np.testing.assert_allclose(
        model.predict_us(kernels), model.predict(kernels).latency_us, rtol=1e-12
    )
    assert model.remember_costs(kernels)[kernels[0]][0] == model.predict_us(kernels)[0]
    assert len(model.predict([]).latency_us) == len(model.predict_us([])) == 0


def test_a_prediction_does_not_depend_on_its_company(model: LatencyModel) -> None:
    kernels = pool(small_nets(6, 9))
    together = model.predict(kernels)
    alone = [model.predict([kernel]) for kernel in kernels]
    assert [p.latency_us[0] for p in alone] == together.latency_us.tolist()
    assert [p.std_us[0] for p in alone] == together.std_us.tolist()
    assert model.predict_us(kernels[::-1]).tolist() == together.latency_us.tolist()[::-1]
    few = [f"{us:.6g}" for us in together.latency_us]
    assert [float(text) for text in few] == together.latency_us.tolist()


def test_a_kernel_of_another_dtype_is_refused(model: LatencyModel) -> None:
    half = conv(16, dtype="fp16")
    for ask in (model.predict, model.predict_us):
        with pytest.raises(SettingMismatch, match=r"small predicts fp32 kernels.*dtype=fp16"):
            ask([half])


def test_a_network_that_does_not_fit_names_block_and_layer(model: LatencyModel) -> None:
    @block
    def window(b: BlockBuilder) -> None:
        b.add(ReLU(), b.input, name="relu")
        b.add(Conv2d(4, 9, padding=0), name="wide")

    net = Net((1, 4, 4), (("only", window()),))
    with pytest.raises(ShapeError, match=r"block only, layer wide \(Conv2d\)"):
        model.predict_net(net)


def test_which_size_is_a_width() -> None:
    assert width_of(conv(16, 16, 16)) == "k"
    assert width_of(linear(10, 32)) == "n"
    assert width_of(Kernel.of("relu", rows=2, cols=3)) is None
    assert width_of(conv(16, 16, 16).replace(groups=16)) is None, "its inputs change along"


# Fitting


def test_duplicate_rows_are_averaged_on_the_logarithm() -> None:
    clock = FakeClock(SETTING, noise=0.0)
    kernels = convs(20)
    table = rows(clock, kernels)
    doubled = [replace(r, latency_us=r.latency_us * f) for r in table for f in (0.85, 1 / 0.85)]
    plain, twice = (fit_kernels("m", [(FAKE_DEVICE, t)], SETTING) for t in (table, doubled))
    assert twice.card.data["rows"] == 20
    got, wanted = twice.predict(kernels), plain.predict(kernels)
    np.testing.assert_allclose(got.latency_us, wanted.latency_us, rtol=1e-4)


def test_one_dtype_a_model() -> None:
    table = [KernelRow(kernel, 10.0) for kernel in [*convs(15), conv(8, dtype="fp16")]]
    with pytest.raises(TableError, match=r"cpu-fake holds fp32 kernels.*dtype=fp16"):
        fit_kernels("m", [(FAKE_DEVICE, table)], SETTING)


def test_too_few_rows_are_refused() -> None:
    table = [KernelRow(kernel, 900.0) for kernel in convs(9)]
    with pytest.raises(TableError, match=r"at least 10 distinct kernels.*got 9 for cpu-fake"):
        fit_kernels("m", [(FAKE_DEVICE, table * 3)], SETTING)


def test_devices_must_differ_and_be_of_one_kind() -> None:
    table = [KernelRow(kernel, 10.0) for kernel in convs(12)]
    with pytest.raises(RequestError, match="one table; got cpu-fake, cpu-fake"):
        fit_kernels("m", [(FAKE_DEVICE, table), (FAKE_DEVICE, table)], SETTING)
    with pytest.raises(RequestError, match="one table; got none"):
        fit_kernels("m", [], SETTING)
    with pytest.raises(RequestError, match="all GPUs or all CPUs; got cpu-fake, v100"):
        fit_kernels("m", [(FAKE_DEVICE, table), (find_device("v100"), table)], SETTING)


def test_a_model_of_gpus_predicts_no_cpu() -> None:
    v100 = find_device("v100")
    table = rows(FakeClock(Setting(), v100), [linear(n) for n in range(16, 216, 10)])
    model = fit_kernels("m", [(v100, table)], Setting())
    assert model.on(find_device("t4")).name == "m@t4"
    with pytest.raises(SettingMismatch, match="predicts a gpu; got cpu-fake, a cpu"):
        model.on(FAKE_DEVICE)


def test_a_fit_of_flat_latencies() -> None:
    table = [KernelRow(kernel, 900.0) for kernel in convs(30)]
    model = fit_kernels("m", [(FAKE_DEVICE, table)], SETTING)
    np.testing.assert_allclose(model.predict(convs(30)).latency_us, 900.0, rtol=0.05)


# Whole networks


def cost(clock: FakeClock, net: Net) -> NetCost:
    kernels = lower_net(net, 1, "fp32", find_runtime("torch-eager"))
    return NetCost(sum(map(clock.kernel_us, kernels)), len(kernels), net.parameters * 4e-6)


@block
def small(b: BlockBuilder, width: int, relus: int) -> None:
    b.add(Conv2d(width, 1), b.input)
    for _ in range(relus):
        b.add(ReLU())


def various(count: int) -> list[Net]:
    """Return networks of 2 to 30 launches, tiny to small: their costs tell all terms apart."""
    rng = np.random.default_rng(0)
    return [
        Net((4, int(hw), int(hw)), (("only", small(int(width), int(relus))),))
        for hw, width, relus in zip(
            rng.integers(2, 40, count), rng.integers(4, 200, count), rng.integers(1, 30, count),
            strict=True,
        )
    ]  # fmt: skip


def test_gaps_and_base_are_recovered() -> None:
    clock = FakeClock(SETTING, noise=0.0)
    nets = various(40)
    us = np.array([clock.true_us(NetRun(net)) for net in nets])
    fitted = fit_nets([cost(clock, net) for net in nets], us)
    assert fitted.base_us == pytest.approx(BASE_US, rel=0.3)
    assert fitted.gap_us == pytest.approx(GAP_US, rel=0.3)
    assert fitted.scale == pytest.approx(1, rel=0.05)
    assert fitted.held_out["n"] == 40
    assert fitted.held_out["mape"] < 2
    assert fitted.sigma >= 0.01


@pytest.mark.parametrize("seed", range(8))
def test_forms_of_one_network_do_not_hide_what_kernels_take(seed: int) -> None:
    # Narrower and wider as a whole: everything grows together, and timings are noisy.
    rng = np.random.default_rng(seed)
    costs = []
    for scale in np.linspace(0.4, 1.6, 8):
        near = rng.uniform(0.95, 1.05, 3)
        costs.append(
            NetCost(8e3 * scale**2 * near[0], 150, 5 * scale**2 * near[1], 40 * scale * near[2])
        )
    us = np.array([100 + 1.1 * c.kernels_us + 2 * c.launches + 80 * c.large_mb for c in costs])
    fitted = fit_nets(costs, us * rng.normal(1, 0.05, len(us)))
    assert 0.9 < fitted.scale < 1.3
    assert fitted.weights_us < 200
    assert 0 < fitted.large_us < 200


@pytest.mark.parametrize("seed", range(5))
def test_no_term_is_ever_negative(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = [NetCost(*values) for values in rng.uniform(1, 100, (8, 3))]
    # Faster the more there is to do.
    fitted = fit_nets(costs, np.array([1e4 / (1 + c.kernels_us + c.launches) for c in costs]))
    terms = (fitted.base_us, fitted.scale, fitted.gap_us, fitted.weights_us)
    assert min(terms) >= 0
    assert fitted.latency_us(NetCost(1.0, 1, 1.0)) > 0


@pytest.mark.parametrize("seed", range(4))
def test_what_a_profiler_adds_to_every_kernel_is_taken_off(seed: int) -> None:
    rng = np.random.default_rng(seed)
    added = 5.5
    launches = rng.integers(18, 95, 24)
    true = launches * rng.uniform(1, 12, 24)
    costs = [
        NetCost(float(t + added * n), int(n), float(rng.uniform(0.05, 0.5)))
        for t, n in zip(true, launches, strict=True)
    ]
    us = (20 + true) * rng.normal(1, 0.03, 24)
    fitted = fit_nets(costs, us, observed=True)
    assert fitted.gap_us == pytest.approx(-added, rel=0.15)
    assert fitted.scale == pytest.approx(1, abs=0.15)
    assert fitted.held_out["mape"] < 8
    assert fitted.held_out["mape"] < 0.6 * fit_nets(costs, us).held_out["mape"]
    assert fit_nets(costs, us).gap_us >= 0, "kernels that were timed alone have nothing added"
    # A network of kernels that hardly differ from what the profiler adds.
    assert fitted.latency_us(NetCost(100 * added, 100, 0.0)) > 0


def test_each_networks_error_is_from_a_fit_without_it() -> None:
    clock = FakeClock(SETTING, noise=0.0)
    nets = various(7)
    us = np.array([clock.true_us(NetRun(net)) for net in nets])
    us[3] *= 2
    costs = [cost(clock, net) for net in nets]
    without = np.array(
        [
            fit_nets(costs[:i] + costs[i + 1 :], np.delete(us, i)).latency_us(costs[i]) / us[i] - 1
            for i in range(7)
        ]
    )
    assert without[3] == pytest.approx(-0.5, abs=0.1)
    fitted = fit_nets(costs, us)
    assert fitted.held_out["mape"] == pytest.approx(100 * np.abs(without).mean(), abs=1e-3)
    assert fitted.sigma == pytest.approx(np.sqrt(np.mean(without**2)))


def test_calibration_brings_networks_closer_and_keeps_their_keys(
    model: LatencyModel, timings: list[NetTiming]
) -> None:
    calibrated = calibrate_nets(model, timings[:12])
    assert calibrated.card.data["calibration_nets"] == sorted(t.net.key for t in timings[:12])
    assert calibrated.card.data["rows"] == model.card.data["rows"]
    before = evaluate_nets(model, timings[12:])["overall"]
    after = evaluate_nets(calibrated, timings[12:])["overall"]
    assert before["bias"] < -5, "a network is more than its kernels"
    assert after["mape"] < 3
    assert model.nets == NetCalibration(), "the model it was made from is as it was"


def test_few_networks_do_not_calibrate(model: LatencyModel, timings: list[NetTiming]) -> None:
    with pytest.raises(TableError, match=r"at least 4 networks.*got 3"):
        calibrate_nets(model, timings[:3])
    assert calibrate_nets(model, timings[:4]).nets.held_out["n"] == 4


def test_the_calibrations_deviation_is_part_of_every_networks(
    model: LatencyModel, timings: list[NetTiming]
) -> None:
    calibrated = calibrate_nets(model, timings)
    predicted = calibrated.predict_net(timings[0].net)
    assert predicted.std_ms / predicted.latency_ms > calibrated.nets.sigma


# Judging


def test_evaluating_kernels(model: LatencyModel) -> None:
    kernels = [conv(16, 16, 16), conv(24, 16, 16), conv(500), linear(10, 32)]
    predicted = model.predict(kernels)
    table = [
        KernelRow(kernel, us / factor)
        for kernel, us, factor in zip(
            kernels, predicted.latency_us, (1.0, 1.1, 1.0, 0.8), strict=True
        )
    ]
    result = evaluate_kernels(model, table)
    assert set(result) == {"overall", "by_op", "out_of_range", "contradictions"}
    assert set(result["by_op"]) == {"conv2d", "linear"}
    assert all(set(s) >= SUMMARY for s in (result["overall"], *result["by_op"].values()))
    assert result["overall"]["mape"] == pytest.approx((10 + 20) / 4, abs=1e-2)
    assert result["by_op"]["linear"]["bias"] == pytest.approx(-20, abs=1e-2)
    assert result["by_op"]["conv2d"]["n"] == 3
    assert result["out_of_range"] == int(np.sum(~predicted.in_range)) >= 1


def test_evaluating_networks(model: LatencyModel, timings: list[NetTiming]) -> None:
    exact = [replace(t, latency_ms=model.predict_net(t.net).latency_ms) for t in timings]
    big = small_nets(1, 7)[0]
    exact.append(NetTiming(big, 64, model.predict_net(big, 64).latency_ms))
    result = evaluate_nets(model, exact)
    assert set(result) == {"overall", "by_op", "out_of_range", "contradictions"}
    assert result["overall"]["mape"] == 0
    assert result["out_of_range"] >= 1


# Settings


def test_a_model_of_the_right_setting_is_accepted(model: LatencyModel) -> None:
    model.require(SETTING, FAKE_DEVICE, [])
    model.require(SETTING, None, [])
    assert model.mismatches(SETTING, FAKE_DEVICE) == []


def test_another_setting_or_device_is_refused_with_what_would_do(model: LatencyModel) -> None:
    with pytest.raises(SettingMismatch, match=r"threads 2, not 4.*would do: a, b\."):
        model.require(replace(SETTING, threads=4), FAKE_DEVICE, ["b", "a"])
    with pytest.raises(SettingMismatch, match=r"device cpu-fake, not t4.*would do: none"):
        model.require(SETTING, find_device("t4"), [])
    with pytest.raises(SettingMismatch, match=r"dtype fp32, not fp16; threads 2, not 1"):
        model.require(Setting(dtype="fp16"), None, [])


def test_threads_do_not_matter_to_a_gpu() -> None:
    v100 = find_device("v100")
    table = rows(FakeClock(Setting(), v100), [linear(n) for n in range(16, 216, 10)])
    model = fit_kernels("m", [(v100, table)], Setting())
    assert model.mismatches(Setting(threads=8), v100) == []
    assert model.mismatches(Setting(threads=8, dtype="bf16")) == ["dtype fp32, not bf16"]
