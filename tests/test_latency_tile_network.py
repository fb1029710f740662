from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tadnn.hardware import DeviceSpec, find_device
from tadnn.kernels import Kernel, KernelRow
from tadnn.latency import (
    LatencyModel,
    adapt,
    error_summary,
    fit_kernels,
    load_latency_model,
    save_latency_model,
)
from tadnn.latency import tile_training as training
from tadnn.latency.batch import KernelBatch
from tadnn.latency.features import feature_matrix
from tadnn.latency.gpu_features import gpu_columns, network_places
from tadnn.latency.network_fitting import network_features
from tadnn.latency.op_fitting import _of_few
from tadnn.latency.quantization import GPU_TILES
from tadnn.latency.tile_network import TileNetwork
from tadnn.runtimes import Setting

SETTING = Setting(runtime="cuda-kernels")
A100, V100, H100 = (find_device(slug) for slug in ("a100-40gb", "v100", "h100"))


def products(count: int, seed: int) -> list[Kernel]:
    sizes = np.exp(np.random.default_rng(seed).uniform(np.log(16), np.log(4096), (count, 3)))
    return sorted(
        {Kernel.of("linear", m=int(m), n=int(n), k=int(k)) for m, n, k in sizes},
        key=lambda kernel: kernel.key,
    )


def stairs_us(kernels: list[Kernel], device: DeviceSpec) -> np.ndarray:
    """Return what a library takes that has two tiles, picks the better, and launches in 6 us."""
    us = []
    for kernel in kernels:
        _, m, n, k = kernel.matrix or (1, 1, 1, 1)
        rounds = [
            -(-(-(-m // a) * -(-n // b)) // device.units) * device.units * a * b * slow
            for a, b, slow in ((128, 64, 1.0), (32, 32, 1.5))
        ]
        peak = device.peak_tflops["fp32"] * 1e6
        us.append(6 + kernel.bytes_moved / device.bandwidth_gbps / 1e3 + 2 * k * min(rounds) / peak)
    return np.array(us)


def table(device: DeviceSpec, count: int, seed: int) -> tuple[DeviceSpec, list[KernelRow]]:
    kernels = products(count, seed)
    latency = stairs_us(kernels, device)
    return device, [KernelRow(k, float(us)) for k, us in zip(kernels, latency, strict=True)]


@pytest.fixture(scope="module")
def fitted() -> Iterator[LatencyModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_STEPS", (700, 700))
        yield fit_kernels("two", [table(A100, 500, 0), table(V100, 500, 0)], SETTING)


def test_waste_by_hand() -> None:
    # 256 x 128 on 108 SMs in tiles of 128 x 128: two blocks, one wave, 106 SMs idle.
    columns = gpu_columns(KernelBatch.of([Kernel.of("linear", m=256, n=128, k=64)], A100, 1))
    assert columns["ln waste 128x128"][0] == pytest.approx(np.log(108 / 2))
    assert columns["ln waste 256x128"][0] == pytest.approx(np.log(108))
    # Two FLOPs a multiply-add at 19.5e12 a second; 4 bytes a value at 1555e9.
    assert columns["ln compute us"][0] == pytest.approx(np.log(2 * 256 * 128 * 64 / 19.5e6))
    moved = 4 * (256 * 64 + 64 * 128 + 256 * 128)
    assert columns["ln memory us"][0] == pytest.approx(np.log(moved / 1.555e6))


def test_a_network_of_several_devices_is_not_told_what_tells_them_apart() -> None:
    kernels = products(5, 0)
    (names, one), (_, other) = (
        feature_matrix(KernelBatch.of(kernels, device, 1), False) for device in (A100, V100)
    )
    places = network_places(names, several=True)
    assert np.array_equal(one[:, places.body], other[:, places.body])
    assert len(places.tiles) == len(GPU_TILES)
    alone = network_places(names, several=False)
    assert set(places.body) | set(places.tiles) <= set(alone.body)


def test_stairs_are_learned_from_latencies_alone(fitted: LatencyModel) -> None:
    kernels = products(300, 1)
    for device in (A100, V100):
        predicted = fitted.on(device).predict(kernels)
        errors = error_summary(predicted.latency_us, stairs_us(kernels, device))
        assert errors["mape"] < 6
        assert errors["near_pairs"] > 85
    op = fitted.ops["linear"]
    assert op.learner is not None
    assert op.learner.kind == "tiles"
    core = error_summary(
        op.core.latency_us(KernelBatch.of(kernels, V100, 1)), stairs_us(kernels, V100)
    )
    assert core["mape"] > 10


def test_its_errors_are_those_of_shapes_it_did_not_see(fitted: LatencyModel) -> None:
    held_out = fitted.ops["linear"].held_out
    rows = fitted.ops["linear"].rows
    assert held_out["n"] == pytest.approx(rows / 2, abs=4), "five of ten parts, on both devices"
    assert 60 <= held_out["one_sigma"] <= 76
    assert held_out["two_sigma"] > 85


def test_a_device_never_seen_has_a_wide_error_bar(fitted: LatencyModel) -> None:
    kernels = products(100, 2)
    near, far = (fitted.on(device).predict(kernels) for device in (A100, H100))
    assert not far.in_range.any()
    relative = far.std_us / far.latency_us
    assert relative.min() >= 0.999 * fitted.ops["linear"].abroad
    assert fitted.ops["linear"].abroad >= 0.25
    assert relative.min() > np.median(near.std_us / near.latency_us)
    # It is priced by its own waves and peak all the same.
    assert error_summary(far.latency_us, stairs_us(kernels, H100))["mape"] < 30


def test_a_cards_twin_is_taken_for_it(fitted: LatencyModel) -> None:
    kernels = products(60, 6)
    twin, own = (fitted.on(find_device(f"a100-{gb}")).predict(kernels) for gb in ("80gb", "40gb"))
    # The same but for a quarter more bandwidth.
    ratio = twin.latency_us / own.latency_us
    assert ratio.max() < 1.04
    assert ratio.min() > 0.75


def test_numpy_predicts_what_torch_trained(fitted: LatencyModel) -> None:
    import torch

    op = fitted.ops["linear"]
    assert isinstance(op.learner, TileNetwork)
    batch = KernelBatch.of(products(40, 3), V100, 1)
    places, x = network_features(batch, op.core, op.devices)
    arrays = op.learner.to_arrays()
    weights = {n: torch.tensor(a) for n, a in arrays.items() if n not in training._SHARED}
    members = len(arrays["w0"])

    def every(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.tile(values, (members, *[1] * values.ndim)), dtype=torch.float32)

    z = np.clip((x[:, places.body] - arrays["shift"]) / arrays["scale"], -6, 6)
    rounds = x[:, places.tiles] + x[:, [places.compute]] - x[:, [places.sustained]]
    traits = weights["devices"][:, 1:2].expand(-1, len(x), -1)
    total, spread = training.forward(
        torch, weights, every(z), every(rounds), every(x[:, places.memory]), traits
    )
    ratio, expected = op.learner._each(x)
    np.testing.assert_allclose(ratio, total.numpy() - x[:, places.core], atol=1e-4)
    np.testing.assert_allclose(expected, spread.numpy(), atol=1e-4)


def test_it_is_stored_and_repeatable(fitted: LatencyModel, tmp_path: Path) -> None:
    save_latency_model(fitted, tmp_path / "latency_models" / "two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        loaded = load_latency_model("two@v100")
    kernels = products(50, 4)
    want, got = fitted.on(V100).predict(kernels), loaded.predict(kernels)
    np.testing.assert_array_equal(got.latency_us, want.latency_us)
    np.testing.assert_array_equal(got.std_us, want.std_us)


def test_the_same_seed_trains_the_same_network() -> None:
    batch = KernelBatch.of(products(80, 5), A100, 1)
    names, x = feature_matrix(batch, False)
    x = np.column_stack([x, np.zeros((len(x), 9))])
    y = np.log(stairs_us(products(80, 5), A100))
    out = np.arange(len(x))[None] % 4 == 0
    runs = [
        training.train(x, y, network_places(names, False), out, np.zeros(1, bool), 7, 0.01)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])
    assert np.isnan(runs[0][1][0, ~out[0]]).all()
    assert np.isfinite(runs[0][1][0, out[0]]).all()


def test_no_prediction_beats_the_roofline(fitted: LatencyModel) -> None:
    huge = [Kernel.of("linear", m=2**x, n=2**y, k=2**z) for x, y, z in ((20, 18, 14), (8, 24, 6))]
    for device in (A100, V100, H100):
        us = fitted.on(device).predict(huge).latency_us
        flops = np.array([kernel.flops for kernel in huge])
        assert (us * 1.00001 >= flops / device.peak_tflops["fp32"] / 1e6).all()


def test_the_least_latency_by_hand() -> None:
    shape = {"n": 64, "c": 256, "h": 56, "w": 56, "k": 256, "pad": 1, "dilation": 1, "groups": 1}

    def least(r: int, stride: int) -> float:
        kernel = Kernel.of("conv2d", **shape, r=r, s=r, stride=stride)
        return float(KernelBatch.of([kernel], V100, 1).least_us[0])

    # 2 x 64 x 56^2 x 256 x 256 x 9 FLOPs at 14.13e12 a second; a 3x3 window spares 2 x 2 of them.
    assert least(3, 1) == pytest.approx(2 * 64 * 56**2 * 256**2 * 9 / 14.13e6 / 4)
    assert least(3, 2) == pytest.approx(2 * 64 * 28**2 * 256**2 * 9 / 14.13e6)
    # What moves memory alone: 4 bytes a value, all of them but the 6 MB that L2 holds.
    add = KernelBatch.of([Kernel.of("add", rows=4096, cols=4096)], V100, 1)
    assert add.least_us[0] == pytest.approx((3 * 4 * 4096**2 - 6e6) / 900e3)


def test_one_more_device_is_known_by_a_few_kernels(fitted: LatencyModel) -> None:
    # A library that takes 128x128 whatever it costs, on an H100 at two thirds of its clock.
    def stuck_us(kernels: list[Kernel]) -> np.ndarray:
        us = []
        for kernel in kernels:
            _, m, n, k = kernel.matrix or (1, 1, 1, 1)
            waves = -(-(-(-m // 128) * -(-n // 128)) // H100.units)
            work = 2 * k * waves * H100.units * 128 * 128 / H100.peak_tflops["fp32"] / 1e6
            us.append(6 + kernel.bytes_moved / H100.bandwidth_gbps / 1e3 + 1.5 * work)
        return np.array(us)

    few, rest = products(40, 11), products(200, 12)
    rows = [KernelRow(k, float(us)) for k, us in zip(few, stuck_us(few), strict=True)]
    adapted = adapt("h100", fitted.on(H100), rows)
    before = error_summary(fitted.on(H100).predict_us(rest), stuck_us(rest))["mape"]
    predicted = adapted.predict(rest)
    after = error_summary(predicted.latency_us, stuck_us(rest))["mape"]
    assert after < 0.5 * before
    assert after < 12
    z = np.abs(predicted.latency_us - stuck_us(rest)) / predicted.std_us
    assert np.mean(z < 2) > 0.8
    # What is said of the devices of the fit stays.
    own = fitted.on(V100).predict_us(rest)
    np.testing.assert_array_equal(adapted.on(V100).predict_us(rest), own)


def test_traits_come_from_likes(fitted: LatencyModel) -> None:
    learner = fitted.ops["linear"].learner
    assert isinstance(learner, TileNetwork)
    batch = KernelBatch.of(products(3, 0), find_device("a100-80gb"), 1)
    op = fitted.ops["linear"]
    _, x = network_features(batch, op.core, op.devices)
    own = learner.to_arrays()["devices"][:, op.devices.index("a100-40gb")]
    np.testing.assert_allclose(learner.traits(x)[:, 0], own, atol=0.02)
    # A quarter more bandwidth, log2, is all that is strange.
    assert learner.strangeness(x) == pytest.approx(np.log2(1935 / 1555))
    _, x = network_features(KernelBatch.of(products(3, 0), H100, 1), op.core, op.devices)
    assert (learner.strangeness(x) == 1).all()


def test_few_devices_tell_little_of_one_more() -> None:
    # Student's t of one degree of freedom is Cauchy's: its quantile is tan(pi (p - 1/2)).
    assert _of_few(2) == pytest.approx(np.tan(np.pi * 0.34) / 0.99446 * np.sqrt(1.5), rel=1e-3)
    assert _of_few(2) > _of_few(3) > _of_few(5) > 1


def test_a_twin_needs_no_tuning(fitted: LatencyModel) -> None:
    # The same card by another name, measured: what the network says of it already is kept.
    twin = find_device("a100-40gb-sxm")
    few, rest = products(40, 21), products(100, 22)
    rows = [KernelRow(k, float(us)) for k, us in zip(few, stairs_us(few, A100), strict=True)]
    adapted = adapt("twin", fitted.on(twin), rows)
    own, now = fitted.on(A100).predict_us(rest), adapted.predict_us(rest)
    measured = stairs_us(rest, A100)
    np.testing.assert_allclose(fitted.on(twin).predict_us(rest), own, rtol=0.02)
    before, after = (error_summary(us, measured)["mape"] for us in (own, now))
    assert after < before + 1.5
