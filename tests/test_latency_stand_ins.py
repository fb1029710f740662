"""What nobody measured: priced by the physics of its likes, doubted, and counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latency_fakes import SETTING, conv

from tadnn.hardware import find_device
from tadnn.kernels import OPAQUE, OPS, Kernel
from tadnn.latency import LatencyModel, to_json
from tadnn.latency.batch import KernelBatch
from tadnn.latency.card import Card
from tadnn.latency.core import Core
from tadnn.latency.nets import NetCalibration
from tadnn.latency.op_model import UNPROFILED, OpModel
from tadnn.latency.stand_ins import with_stand_ins
from tadnn.nets import BatchNorm2d, Conv2d, NetBuilder, ReLU, block

V100 = find_device("v100")
KNOWN, GUESSED = pytest.approx(0.1, rel=1e-4), pytest.approx(UNPROFILED, rel=1e-4)
LINEAR = Core(5.0, 1.5, 2.0)
RELU, ADD = Core(2.0, 0.0, 1.0), Core(8.0, 0.0, 4.0)


def fitted(core: Core, *kernels: Kernel) -> OpModel:
    """A core alone, with the ranges of some kernels and a deviation of 10 %."""
    box: dict[str, list[int]] = {}
    for name in OPS[kernels[0].op].sizes:
        values = sorted({k.dim(name) for k in kernels})
        exact = name in ("r", "s", "stride", "dilation")
        box[name] = values if exact else [values[0], values[-1]]
    box |= {"flops": [0, 10**15], "bytes": [0, 10**12]}
    return OpModel(core, rows=50, sigma=0.1, box=box, devices=("v100",))


OPS_FITTED = {
    "linear": fitted(LINEAR, Kernel.of("linear", m=1, n=1, k=1)),
    "relu": fitted(
        RELU, Kernel.of("relu", rows=1, cols=1), Kernel.of("relu", rows=9999, cols=9999)
    ),
    "add": fitted(ADD, Kernel.of("add", rows=1, cols=1)),
    "conv2d": fitted(Core(3.0, 1.0, 1.0), conv(1, 1, 1), conv(999, 999, 99)),
}


@pytest.fixture
def model() -> LatencyModel:
    setting = replace(SETTING, runtime="cuda-kernels", threads=1)
    return LatencyModel(Card("made", (V100,), setting), OPS_FITTED, NetCalibration(sigma=0.0), V100)


def us(core: Core, kernel: Kernel) -> float:
    return float(core.latency_us(KernelBatch.of([kernel], V100, 1))[0])


def one(model: LatencyModel, kernel: Kernel) -> tuple[float, float, bool]:
    p = model.predict([kernel])
    # Bulk scoring says the same.
    assert model.predict_us([kernel]) == pytest.approx(p.latency_us)
    return float(p.latency_us[0]), float(p.std_us[0] / p.latency_us[0]), bool(p.in_range[0])


def test_an_op_that_moves_memory_is_as_quick_as_its_likes_are_on_average(
    model: LatencyModel,
) -> None:
    # sqrt(2 * 8) = 4 us to launch, sqrt(1 * 4) = 2 times the memory's time: 2 * 4 bytes * 2^24
    # at 900 GB/s are 149.1 us.
    latency, sigma, inside = one(model, Kernel.of("silu", rows=4096, cols=4096))
    assert latency == pytest.approx(4 + 2 * 149.131, rel=1e-4)
    assert (sigma, inside) == (GUESSED, False)


def test_a_profiled_op_is_left_as_it_is(model: LatencyModel) -> None:
    kernel = Kernel.of("relu", rows=64, cols=64)
    assert one(model, kernel) == (pytest.approx(us(RELU, kernel), 1e-5), KNOWN, True)


def test_another_window_is_the_linear_of_its_implicit_product(model: LatencyModel) -> None:
    known, other = conv(64, 32, 14), conv(64, 32, 14, r=1)
    assert one(model, known)[1] == KNOWN
    latency, sigma, inside = one(model, other)
    pixels = 14 * 14
    product = Kernel.of("linear", m=pixels, n=64, k=32)
    # Linear reads its operands as the convolution does, so that one is the other.
    assert latency == pytest.approx(us(LINEAR, product), rel=1e-4)
    assert (sigma, inside) == (GUESSED, False)


def test_groups_have_no_linear_to_stand_in(model: LatencyModel) -> None:
    grouped = Kernel.parse(conv(64, 64, 14).key.replace("groups=1", "groups=64"))
    assert one(model, grouped)[0] == pytest.approx(us(Core(3.0, 1.0, 1.0), grouped), rel=1e-4)
    assert one(model, grouped)[1] == GUESSED


def test_batched_products_stand_in_as_one_of_all_rows(model: LatencyModel) -> None:
    latency, sigma, _ = one(model, Kernel.of("bmm", b=8, m=128, n=64, k=32))
    batch = KernelBatch.of([Kernel.of("linear", m=1024, n=64, k=32)], V100, 1)
    moved = 4 * 8 * (128 * 32 + 32 * 64 + 128 * 64) / 900e3
    assert latency == pytest.approx(5 + 1.5 * batch.roofline[0][0] + 2 * moved, rel=1e-4)
    assert sigma == GUESSED


def test_uneven_strides_that_no_row_had_are_of_another_kind(model: LatencyModel) -> None:
    even = conv(64, 32, 14)
    uneven = Kernel.of("conv2d", **{**dict(zip(OPS["conv2d"].sizes, even.sizes, strict=True)),
                                    "stride_w": 2})  # fmt: skip
    assert one(model, uneven)[1:] == (GUESSED, False)
    # What has none of its own is in range beside it.
    assert model.predict([even, uneven]).in_range.tolist() == [True, False]


def test_without_any_likes_the_defaults_hold() -> None:
    alone = with_stand_ins({"relu": OPS_FITTED["relu"]})
    assert alone["linear"].core == Core()
    assert alone["silu"].core.coefficients == pytest.approx([2.0, 1.0, 1.0])
    assert with_stand_ins(OPS_FITTED)[OPAQUE].core == Core()


@block
def body(b):
    b.add(Conv2d(16, 3), b.input, name="conv")
    b.add(BatchNorm2d(), name="norm")
    b.add(ReLU(), name="relu")
    b.add(Conv2d(16, 3), name="conv2")
    b.add(BatchNorm2d(), name="norm2")


def test_a_network_names_the_share_that_nobody_measured(model: LatencyModel) -> None:
    builder = NetBuilder((8, 14, 14))
    builder.add("body", body())
    net = builder.build()
    p = model.predict_net(net, 4)
    norms = [s for s in p.kernels if s.kernel.op == "batch_norm"]
    assert [s.profiled for s in norms] == [False] * len(norms)
    guessed = sum(s.latency_us * s.count for s in norms)
    total = sum(s.latency_us * s.count for s in p.kernels)
    assert p.unprofiled_share == pytest.approx(guessed / total)
    assert 0 < p.unprofiled_share < 1
    # What physics alone prices errs alike, so its deviations add up; the others' don't.
    rest = [s.std_us * s.count for s in p.kernels if s.profiled]
    assert p.std_ms == pytest.approx(
        np.sqrt(np.sum(np.square(rest)) + (UNPROFILED * guessed) ** 2) / 1e3, rel=1e-4
    )
    shown = to_json(p, model)
    assert shown["unprofiled_share"] == p.unprofiled_share
    assert [k["profiled"] for k in shown["kernels"]] == [s.profiled for s in p.kernels]


def test_the_kernels_of_a_device_that_nobody_measured_err_together(model: LatencyModel) -> None:
    builder = NetBuilder((8, 14, 14))
    builder.add("body", body())
    p = model.on(find_device("a100-40gb")).predict_net(builder.build(), 4)
    assert p.std_ms == pytest.approx(sum(s.std_us * s.count for s in p.kernels) / 1e3, rel=1e-4)
