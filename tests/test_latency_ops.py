from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from latency_fakes import conv, convs, linear

from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel
from tadnn.latency import op_fitting
from tadnn.latency.batch import KernelBatch
from tadnn.latency.core import Core
from tadnn.latency.op_fitting import fit_op
from tadnn.latency.op_model import OpModel
from tadnn.profiling import FAKE_DEVICE, FakeClock, measure
from tadnn.runtimes import Setting

THREADS = 2
OTHER = replace(FAKE_DEVICE, slug="cpu-other", units=8, peak_tflops={"fp32": 0.5})


def clock(device: DeviceSpec = FAKE_DEVICE, noise: float = 0.01) -> FakeClock:
    return FakeClock(Setting(threads=THREADS), device, noise=noise)


def measured(kernels: Sequence[Kernel], clock: FakeClock) -> np.ndarray:
    return np.array([m.latency_us for m in measure(clock, kernels)])


def true(kernels: Sequence[Kernel]) -> np.ndarray:
    return np.array([clock().kernel_us(kernel) for kernel in kernels])


def batch(kernels: Sequence[Kernel], device: DeviceSpec = FAKE_DEVICE) -> KernelBatch:
    return KernelBatch.of(kernels, device, THREADS)


def predicted_us(model: OpModel, *kernels: Kernel) -> np.ndarray:
    return model.predict(batch(kernels))[0]


@pytest.fixture(scope="module")
def model() -> OpModel:
    """Fitted to 110 convolutions."""
    kernels = convs(110)
    return fit_op([(FAKE_DEVICE, kernels, measured(kernels, clock()))], THREADS, 0)


@pytest.fixture(scope="module")
def two() -> OpModel:
    """Fitted to 40 linear layers on each of two devices, half of the shapes shared."""
    first = [linear(n, k) for n in range(16, 256, 24) for k in (64, 128, 256, 512)]
    second = first[20:] + [linear(n, 384) for n in range(20, 500, 24)]
    tables = [(FAKE_DEVICE, first), (OTHER, second)]
    return fit_op([(d, ks, measured(ks, clock(d))) for d, ks in tables], THREADS, 0)


def test_held_out_errors_are_small_where_the_device_is_regular(model: OpModel) -> None:
    assert model.rows == model.held_out["n"] == 110
    assert model.held_out["mape"] < 5
    assert model.held_out["spearman"] > 0.99
    assert model.devices == ("cpu-fake",)


def test_the_staircase_is_reproduced(model: OpModel) -> None:
    # 65 channels take a fifth vector of 16: 33 waves instead of 26.
    for c, r in ((24, 3), (48, 3)):
        edge, before, after = conv(50, c, r=r), conv(64, c, r=r), conv(65, c, r=r)
        at_edge = true([after])[0] / true([before])[0]
        within = true([before])[0] / true([edge])[0]
        assert at_edge > 1.2
        assert within < 1.05
        low, mid, high = predicted_us(model, edge, before, after)
        assert high / mid > 1 + 0.6 * (at_edge - 1)
        assert mid / low < 1 + 0.3 * (at_edge - 1)


def test_deviations_are_honest_on_fresh_kernels() -> None:
    noisy = clock(noise=0.05)
    kernels = convs(230, seed=5)
    us = measured(kernels, noisy)
    fitted = fit_op([(FAKE_DEVICE, kernels[:90], us[:90])], THREADS, 0)
    latency, std, _ = fitted.predict(batch(kernels[90:]))
    z = np.abs(latency - us[90:]) / std
    assert 0.55 < np.mean(z <= 1) < 0.80
    assert np.mean(z <= 2) > 0.87
    assert fitted.held_out["one_sigma"] == pytest.approx(68, abs=2)
    assert 87 < fitted.held_out["two_sigma"] <= 100


def test_the_latency_alone_is_that_of_the_prediction(model: OpModel, two: OpModel) -> None:
    for fitted, kernels in ((model, convs(20, 3)), (two, [linear(30, 100)])):
        b = batch(kernels)
        np.testing.assert_allclose(fitted.latency_us(b), fitted.predict(b)[0], rtol=1e-12)


def test_in_range_is_a_box_with_exact_window_sizes(model: OpModel) -> None:
    inside = [conv(64), conv(8 + 90, 40, 20)]
    outside = [
        conv(200),  # wider than any
        conv(64, c=4),
        conv(64, hw=56),
        conv(64, r=5),
        conv(64).replace(stride=2),
        conv(64).replace(dilation=2, pad=2),
        conv(64).replace(groups=4),
        conv(64).replace(n=2),
        conv(160, 64, 29, 3),
    ]
    assert model.covers(batch(inside)).all()
    assert not model.covers(batch(outside)).any()
    assert not model.covers(batch(inside, OTHER)).any(), "another device"
    _, std, flag = model.predict(batch([*inside, *outside]))
    assert flag.tolist() == [True] * 2 + [False] * 9
    latency = predicted_us(model, *outside)
    assert (std[2:] >= 0.25 * latency * (1 - 1e-9)).all()


def test_flops_and_bytes_are_part_of_the_range(model: OpModel) -> None:
    # Every size is within bounds, but never were all of them large together.
    kernels = [conv(k, c, hw) for k, c, hw in ((160, 8, 7), (8, 64, 7), (8, 8, 28), (100, 32, 14))]
    kernels += [conv(k, 16, 14) for k in range(20, 150, 10)]
    fitted = fit_op([(FAKE_DEVICE, kernels, true(kernels))], THREADS, 0)
    assert not fitted.covers(batch([conv(160, 64, 28)]))[0]
    assert fitted.covers(batch([conv(100, 16, 14)]))[0]


def test_an_unseen_device_is_out_of_range_and_at_least_as_unsure_as_abroad(
    model: OpModel, two: OpModel
) -> None:
    third = replace(OTHER, slug="cpu-third", units=16)
    assert two.devices == ("cpu-fake", "cpu-other")
    assert two.abroad >= 0.25
    assert model.abroad == pytest.approx(0.7), "one device says nothing about others"
    for fitted, kernels in ((two, [linear(64, 128)]), (model, [conv(64)])):
        latency, std, inside = fitted.predict(batch(kernels, third))
        assert not inside.any()
        assert (std / latency >= fitted.abroad * (1 - 1e-9)).all()
        seen, seen_std, _ = fitted.predict(batch(kernels))
        assert (seen_std / seen < 0.1).all()


def test_devices_are_told_apart(two: OpModel) -> None:
    kernels = [linear(100, 300), linear(200, 500)]
    for device in (FAKE_DEVICE, OTHER):
        exact = np.array([clock(device).kernel_us(kernel) for kernel in kernels])
        latency, _, inside = two.predict(batch(kernels, device))
        np.testing.assert_allclose(latency, exact, rtol=0.1)
        assert inside.all()


def test_a_shape_never_stands_on_both_sides_of_a_fold() -> None:
    # Latencies that no feature explains, the same on both devices: whoever has seen the shape on
    # one predicts the other's.
    kernels = convs(60)
    us = 100 * np.exp(0.3 * np.random.default_rng(0).standard_normal(60))
    twin = replace(FAKE_DEVICE, slug="cpu-twin")
    fitted = fit_op([(FAKE_DEVICE, kernels, us), (twin, kernels, us)], THREADS, 0)
    assert fitted.held_out["n"] == 120
    assert fitted.held_out["mape"] > 20


def test_folds_split_shapes_evenly() -> None:
    shapes = [f"shape{i % 23}" for i in range(60)]
    fold = op_fitting._folds(shapes, 0)
    assert all(len({f for s, f in zip(shapes, fold, strict=True) if s == x}) == 1 for x in shapes)
    sizes = [len({s for s, f in zip(shapes, fold, strict=True) if f == part}) for part in range(5)]
    assert sorted(sizes) == [4, 4, 5, 5, 5]
    assert (op_fitting._folds(shapes, 1) != fold).any()


def test_a_device_with_few_rows_beside_one_with_many() -> None:
    kernels = convs(110)
    few = kernels[:3]
    rows = [(FAKE_DEVICE, kernels, true(kernels)), (OTHER, few, measured(few, clock(OTHER)))]
    fitted = fit_op(rows, THREADS, 0)
    assert fitted.learner is not None
    assert fitted.rows == 113
    assert np.isfinite(fitted.predict(batch(few, OTHER))[1]).all()
    assert fitted.covers(batch(few, OTHER)).all()


def test_few_rows_have_a_core_that_is_judged_on_rows_left_out() -> None:
    kernels = convs(8)
    fitted = fit_op([(FAKE_DEVICE, kernels, true(kernels))], THREADS, 0)
    assert fitted.learner is None
    assert fitted.rows == fitted.held_out["n"] == 8
    errors = []
    for i in range(8):
        rest = kernels[:i] + kernels[i + 1 :]
        without = fit_op([(FAKE_DEVICE, rest, true(rest))], THREADS, 0)
        errors.append(predicted_us(without, kernels[i])[0] / true([kernels[i]])[0] - 1)
    assert fitted.held_out["mape"] == pytest.approx(100 * np.mean(np.abs(errors)), abs=1e-3)
    rms = np.sqrt(np.mean(np.log1p(errors) ** 2))
    assert fitted.sigma == pytest.approx(max(0.1, rms))
    latency, std, _ = fitted.predict(batch([kernels[0]]))
    assert std / latency == pytest.approx(fitted.sigma)
    assert fitted.to_dict()["rows"] == 8


def test_with_fewer_than_four_rows_nothing_is_claimed() -> None:
    kernels = convs(3)
    fitted = fit_op([(FAKE_DEVICE, kernels, true(kernels))], THREADS, 0)
    assert (fitted.rows, dict(fitted.held_out), fitted.sigma) == (3, {}, 0.25)
    assert fitted.covers(batch(kernels)).all()


def test_one_shape_on_many_devices_is_nothing_to_learn_from() -> None:
    devices = [replace(FAKE_DEVICE, slug=f"cpu-{i}", clock_mhz=1000.0 + i) for i in range(14)]
    fitted = fit_op([(d, [conv(64)], np.array([50.0 + i])) for i, d in enumerate(devices)], 2, 0)
    assert fitted.learner is None
    assert fitted.rows == 14


def test_a_quick_fit_predicts_and_says_nothing_of_errors() -> None:
    kernels = convs(40)
    fitted = fit_op([(FAKE_DEVICE, kernels, true(kernels))], THREADS, 0, quick=True)
    assert fitted.learner is not None
    assert fitted.learner.kind == "process"
    assert dict(fitted.held_out) == {}
    np.testing.assert_allclose(predicted_us(fitted, *kernels), true(kernels), rtol=0.1)


def test_an_op_that_nobody_measured() -> None:
    kernels = [linear(10), linear(1000)]
    latency, std, inside = OpModel.unprofiled().predict(batch(kernels))
    np.testing.assert_allclose(latency, Core().latency_us(batch(kernels)))
    np.testing.assert_allclose(std / latency, 0.7)
    assert not inside.any()


def test_a_fit_survives_plain_data(model: OpModel, two: OpModel) -> None:
    for fitted, kernels in ((model, convs(20, 3)), (two, [linear(30, 100)])):
        assert fitted.learner is not None
        again = OpModel.from_dict(fitted.to_dict(), fitted.learner.to_arrays())
        assert again.to_dict() == fitted.to_dict()
        for got, wanted in zip(
            again.predict(batch(kernels)), fitted.predict(batch(kernels)), strict=True
        ):
            assert (got == wanted).all()


def test_the_pad_of_a_convolution_is_not_a_range_but_follows_from_the_window(
    model: OpModel,
) -> None:
    assert "pad" not in model.box
    assert model.box["r"] == [1, 3]
    assert set(model.box) >= {"n", "c", "h", "w", "k", "flops", "bytes", "groups"}
