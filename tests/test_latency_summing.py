"""A smooth factor over kernels, learned from sums: slopes, recovery, error bars, keeping."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tadnn.hardware import find_device
from tadnn.kernels import Kernel
from tadnn.latency import (
    LatencyModel,
    NetTiming,
    calibrate,
    calibrating,
    evaluate_nets,
    load_latency_model,
    save_latency_model,
)
from tadnn.latency.batch import KernelBatch
from tadnn.latency.nets import NetCalibration
from tadnn.latency.sum_columns import COLUMNS, process_columns, process_kinds
from tadnn.latency.summed_process import GROUPS, Cosines, SummedProcess
from tadnn.latency.summing import Fit, Sizes, _slopes, best_fit, fit_sums
from tadnn.latency.sums import Sums, read_sums
from tadnn.nets import BatchNorm2d, Conv2d, Net, NetBuilder, ReLU, SiLU, block

T4 = find_device("t4")
HOSTED = np.array([30.0, 1.2, 2.0, 0.0, 6.0])


@functools.cache
def physics(runtime: str = "cuda-kernels") -> LatencyModel:
    return load_latency_model(f"physics-{runtime}-amp@t4")


@block
def unit(b, width, window, stride, act):
    x = b.add(Conv2d(width, window, stride=stride, padding=window // 2), b.input)
    b.add(ReLU() if act else SiLU(), b.add(BatchNorm2d(), x))


@functools.cache
def batches() -> tuple[tuple[Net, int], ...]:
    """Chains of convolutions of many sizes, at batches large enough to be more than launches."""
    rng = np.random.default_rng(5)
    made = []
    for i in range(120):
        edge = int(rng.choice([28, 56, 112]))
        builder = NetBuilder((int(rng.choice([3, 16, 64])), edge, edge))
        for at in range(int(rng.integers(3, 8))):
            width = int(2 ** rng.uniform(3, 9))
            window, stride = int(rng.choice([1, 3, 5])), int(rng.choice([1, 1, 2]))
            builder.add(f"unit{at}", unit(width, window, stride, bool(rng.integers(2))))
        made.append((builder.build(), 16 * (1 + i % 4)))
    return tuple(made)


def truth(seed: int = 1, size: float = 0.35) -> LatencyModel:
    """A GPU whose kernels differ smoothly from physics, each kind in its own way."""
    model = physics()
    kinds = sorted({kind for kernel in everything() for kind in kinds_of_one(kernel)})
    rng, cosines = np.random.default_rng(seed), Cosines.drawn(seed)
    width = len(cosines.phases)
    made = SummedProcess(
        "t4",
        tuple(kinds),
        -0.5,
        rng.normal(0, 0.3, len(kinds)),
        cosines,
        np.zeros((len(GROUPS), width)),
        size * rng.normal(size=(len(kinds), width)),
        np.full(len(kinds), 0.1),
        0.5,
        {},
    )
    return LatencyModel(model.card, {}, NetCalibration(), T4, adjustments=(made,))


@functools.cache
def everything() -> tuple[Kernel, ...]:
    return tuple({k for net, batch in batches() for k in physics().launched(net, batch)})


def kinds_of_one(kernel: Kernel) -> list[str]:
    return process_kinds(KernelBatch.of([kernel], T4, 1))


def timed(model: LatencyModel, noise: float = 0.02) -> list[NetTiming]:
    rng = np.random.default_rng(0)
    return [
        NetTiming(net, batch, model.predict_net(net, batch).latency_ms * np.exp(noise * z))
        for (net, batch), z in zip(batches(), rng.normal(size=len(batches())), strict=True)
    ]


def sums_of(timings: list[NetTiming], seed: int = 0, runtime: str = "cuda-kernels") -> Sums:
    model = physics(runtime)
    launched = [model.launched(t.net, t.batch) for t in timings]
    terms = np.array(
        [
            [sum(counts.values()), timing.net.parameters * 4e-6, 0.0]
            for counts, timing in zip(launched, timings, strict=True)
        ]
    )
    measured = np.array([t.latency_ms * 1e3 for t in timings])
    return read_sums(model, launched, terms, measured, Cosines.drawn(seed))


def test_slopes_are_those_of_differences() -> None:
    sums = sums_of(timed(physics())[:6], runtime="torch-eager")
    rng = np.random.default_rng(0)
    count = 1 + len(sums.kinds) + (2 + len(sums.kinds)) * sums.waves.shape[1] + 4
    fit = Fit(Sizes(0.2, 0.4, 0.05), HOSTED, 0.3 * rng.normal(size=count), 0.0, np.empty(0))
    total, slopes = _slopes(sums, fit)
    np.testing.assert_allclose(total, fit.latency_us(sums))
    assert slopes.shape == (6, count)
    for at in [0, 1, 5, 40, 150, 400, *range(count - 4, count)]:
        there, back = fit.weights.copy(), fit.weights.copy()
        there[at] += 1e-5
        back[at] -= 1e-5
        difference = np.log(replace(fit, weights=there).latency_us(sums)) - np.log(
            replace(fit, weights=back).latency_us(sums)
        )
        np.testing.assert_allclose(slopes[:, at], difference / 2e-5, rtol=1e-4, atol=1e-8)


def test_relations_within_kinds_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = timed(truth())
    train, test = timings[:80], timings[80:]
    made = calibrate("c", physics(), train)
    judged = evaluate_nets(made, test)["overall"]
    monkeypatch.setattr(calibrating, "FEWEST_OF_PROCESS", 1000)
    by_kinds = evaluate_nets(calibrate("c", physics(), train), test)["overall"]
    assert judged["mape"] < 7
    assert judged["mape"] < 0.7 * by_kinds["mape"]
    # Error bars: left out of the fit, and of networks that calibrated nothing.
    assert made.nets.held_out["n"] == 80
    assert 50 <= judged["one_sigma"] <= 90
    assert judged["two_sigma"] >= 85


def test_evidence_prefers_what_was_made_up() -> None:
    smooth = best_fit(sums_of(timed(truth())), np.zeros(5))
    plain = best_fit(sums_of(timed(truth(size=0.0))), np.zeros(5))
    assert smooth.sizes.own > plain.sizes.own
    assert plain.sizes.noise < smooth.sizes.noise
    scaled = fit_sums(sums_of(timed(truth(size=0.0))), np.zeros(5), plain.sizes, plain)
    assert scaled.evidence == pytest.approx(plain.evidence, rel=1e-3)


def test_one_odd_timing_moves_little() -> None:
    timings = timed(truth())
    odd = [replace(timings[0], latency_ms=5 * timings[0].latency_ms), *timings[1:80]]
    plain, moved = (
        evaluate_nets(calibrate("c", physics(), part), timings[80:])["overall"]["mape"]
        for part in (timings[:80], odd)
    )
    assert moved < plain + 1.5


def test_it_is_kept_and_applied_alike(in_tmp_path: Path) -> None:
    timings = timed(truth())[:50]
    made = calibrate("c", physics(), timings, source="t.csv")
    save_latency_model(made, in_tmp_path / "latency_models" / "c")
    loaded = load_latency_model("c")
    for timing in timings[:5]:
        assert loaded.predict_net(timing.net, timing.batch) == made.predict_net(
            timing.net, timing.batch
        )
    (process,) = loaded.adjustments
    assert isinstance(process, SummedProcess)
    # Networks of the fit and the model agree on what a kernel takes.
    sums = sums_of(timings)
    counts = Counter(made.launched(timings[0].net, timings[0].batch))
    us = made.predict_us(list(counts))
    total = float(us @ np.array(list(counts.values()), dtype=float)) + made.nets.base_us
    weights = made.nets.weights_us * sums.terms[0, 1]
    assert (total + weights) / 1e3 == pytest.approx(
        made.predict_net(timings[0].net, timings[0].batch).latency_ms, rel=1e-4
    )
    # A kind that no network had: the device's constant and its group's function.
    strange = KernelBatch.of([Kernel("tanh", (64, 64), "fp16")], T4, 1)
    cosines = process.cosines.of(process_columns(strange))
    expected = process.constant + cosines @ process.shared[GROUPS.index("memory")]
    factor = process.log_factor(made.op("tanh"), strange, np.ones(1))
    np.testing.assert_allclose(factor, expected)
    assert (
        process.adjust(made.op("tanh"), strange, np.ones(1), np.ones(1), np.ones(1, bool))[1] >= 0.5
    )


def test_damaged_numbers_are_refused() -> None:
    process = truth().adjustments[0]
    data, arrays = process.to_dict(), process.to_arrays()
    again = SummedProcess.from_dict(data, arrays)
    np.testing.assert_array_equal(again.own, process.own)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="own is of shape"):
        SummedProcess.from_dict(data, arrays | {"own": arrays["own"][:-1]})
    with pytest.raises(KeyError):
        SummedProcess.from_dict({}, arrays)


def test_cosines_are_a_gaussian_kernel() -> None:
    """The mean over draws of the products of two kernels' cosines: exp(-distance^2 / 2 / 1.5^2)."""
    near, far = np.zeros((1, COLUMNS)), np.zeros((1, COLUMNS))
    far[0, 0] = 2.0
    products = [
        (c.of(near) @ c.of(far).T).item() for c in (Cosines.drawn(seed) for seed in range(300))
    ]
    assert np.mean(products) == pytest.approx(np.exp(-4 / 2 / 1.5**2), abs=0.02)
