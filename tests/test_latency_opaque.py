"""Operators that nobody understands: priced by physics, doubted, named, never measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from latency_fakes import SETTING, conv, rows, small_nets

from tadnn.hardware import find_device
from tadnn.kernels import OPAQUE, Kernel, KernelRow
from tadnn.latency import fit_kernels, to_json
from tadnn.latency.scoring import BlockScorer
from tadnn.nets import Conv2d, Net, NetBuilder, Opaque, ReLU, block
from tadnn.profiling import FakeClock, kernel_pool
from tadnn.report import BreakdownView, kernel_text
from tadnn.runtimes import find_runtime

CLOCK = FakeClock(SETTING)
CONVS = [conv(k, c, hw) for k in (8, 16, 24) for c in (8, 16) for hw in (7, 14)]


def opaque(flops: int, read: int, written: int, n: int = 1) -> Kernel:
    return Kernel.of(OPAQUE, n=n, flops=flops, read=read, written=written)


def cumulative(rows: int = 8) -> Opaque:
    sizes = json.dumps([-1, 4, rows, rows])
    return Opaque("aten.cumsum.default", '{"self": {"input": 0}, "dim": 2}', f"[{sizes}]", sizes)


@block
def body(b, twice):
    b.add(Conv2d(4, 3), b.input, name="conv")
    b.add(cumulative(), name="sum")
    if twice:
        b.add(ReLU(), name="relu")
        b.add(cumulative(), name="sum2")


def net(twice: bool = True) -> Net:
    builder = NetBuilder((3, 8, 8))
    builder.add("body", body(twice))
    return builder.build()


@pytest.fixture(scope="module")
def model():
    return fit_kernels("model", [(CLOCK.device, rows(CLOCK, CONVS))], SETTING)


def test_the_price_is_a_launch_and_three_times_the_roofline(model):
    device = CLOCK.device  # 0.128e12 FLOPs a second on 4 units, of which 2 are used; 20e9 bytes
    kernels = [opaque(0, 2500, 2500), opaque(6_400_000, 1, 1), opaque(640, 10, 10, n=10_000)]
    predicted = model.predict(kernels)
    assert (device.peak_tflops["fp32"], device.bandwidth_gbps, device.units) == (0.128, 20.0, 4)
    memory = np.array([20_000, 8, 800_000]) / 20e3
    compute = np.array([0, 6_400_000, 6_400_000]) / 0.064e6
    np.testing.assert_allclose(predicted.latency_us, 5 + 3 * (compute + memory), rtol=1e-5)


def test_nobody_is_sure_of_it(model):
    predicted = model.predict([opaque(10, 100, 100)])
    assert not predicted.in_range[0]
    assert predicted.std_us[0] > 0.5 * predicted.latency_us[0]


def test_measurements_of_one_say_nothing_about_another():
    fast = [KernelRow(opaque(0, n, n), 0.01, 0.0, 5) for n in range(100, 2000, 100)]
    table = [*rows(CLOCK, CONVS), *fast]
    model = fit_kernels("model", [(CLOCK.device, table)], SETTING)
    assert OPAQUE not in model.ops
    predicted = model.predict([fast[0].kernel])
    assert predicted.latency_us[0] > 5
    assert not predicted.in_range[0]


def test_a_networks_prediction_names_them(model):
    prediction = model.predict_net(net())
    assert prediction.opaque == (("aten.cumsum.default", 2),)
    assert not prediction.in_range
    shares = {s.kernel.op: s for s in prediction.kernels}
    assert shares[OPAQUE].count == 2
    record = to_json(prediction, model)
    assert record["opaque"] == [{"op": "aten.cumsum.default", "count": 2}]
    assert prediction.latency_ms == pytest.approx(
        sum(s.count * s.latency_us for s in prediction.kernels) / 1e3
    )
    view = BreakdownView.from_prediction("title", "setting", record)
    assert view.subtitle == "setting; not understood: 2 × aten.cumsum.default"
    assert BreakdownView.from_prediction("t", "", record).subtitle.startswith("not understood: 2")
    assert model.predict_net(small_nets(1)[0]).opaque == ()


def test_bulk_scoring_agrees(model):
    scored = BlockScorer(model).latency_ms([net(), net(False)])
    exact = [model.predict_net(n).latency_ms for n in (net(), net(False))]
    np.testing.assert_allclose(scored, exact, rtol=1e-6)


def test_an_unseen_gpu_prices_them_too():
    device = find_device("a100")
    clock = FakeClock(SETTING, device)
    model = fit_kernels("gpu", [(device, rows(clock, CONVS))], SETTING)
    # Few results don't mean few blocks: how the work is cut up isn't known.
    compute = 1e9 / (device.peak_tflops["fp32"] * 1e6)
    predicted = model.predict([opaque(1_000_000_000, 10, 10)])
    assert predicted.latency_us[0] == pytest.approx(5 + 3 * compute, rel=1e-3)


def test_profiling_leaves_them_out():
    pool = kernel_pool([net()], 1, "fp32", find_runtime("torch-eager"))
    assert {kernel.op for kernel in pool} == {"conv2d", "relu"}


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (opaque(0, 1000, 500), "not understood, 6 kB moved"),
        (opaque(2_000_000, 1000, 500), "not understood, 6 kB moved, 2 MFLOPs"),
    ],
)
def test_a_kernel_in_short(kernel, text):
    assert kernel_text(kernel.key) == text
