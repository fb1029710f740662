from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from latency_fakes import conv, convs, linear

from tadnn.hardware import (
    DeviceSpec,
    block_count,
    devices,
    find_device,
    lane_efficiency,
    tile_efficiency,
    utilisation,
    wave_count,
)
from tadnn.hardware import ceil_div as exact_ceil_div
from tadnn.kernels import MAX_SIZE, OPS, Kernel
from tadnn.latency.batch import KernelBatch
from tadnn.latency.core import DEFAULT_LAUNCH_US, Core, fit_core, held_out_core
from tadnn.latency.features import feature_matrix
from tadnn.latency.quantization import (
    GPU_TILES,
    best_tile,
    ceil_div,
    lanes_of,
    occupancy,
    peak_of,
    slots_of,
    sustained_share,
)
from tadnn.profiling import FAKE_DEVICE

A100 = find_device("a100-40gb")


def batch(*kernels: Kernel, device: DeviceSpec = FAKE_DEVICE, threads: int = 2) -> KernelBatch:
    return KernelBatch.of(kernels, device, threads)


def named(kernels: KernelBatch, with_device: bool = False) -> dict[str, np.ndarray]:
    names, x = feature_matrix(kernels, with_device)
    return dict(zip(names, x.T, strict=True))


def test_rounding_up_is_that_of_the_exact_arithmetic() -> None:
    pairs = [*product(range(1, 40), range(1, 12)), (2**40 + 1, 2**20), (2**53 - 1, 3)]
    a, b = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    exact = [exact_ceil_div(*pair) for pair in pairs]
    assert ceil_div(a, b).tolist() == exact
    assert [ceil_div(*pair) for pair in pairs] == exact


def test_cpu_occupancy_is_that_of_the_exact_arithmetic() -> None:
    kernels = [*convs(60), conv(1, c=3, hw=1, r=1)]
    for threads in (1, 2, 3, 9):
        waves, used = batch(*kernels, threads=threads).occupancy
        slots = min(threads, 4)
        for kernel, wave, share in zip(kernels, waves, used, strict=True):
            assert kernel.matrix is not None
            groups, m, n, _ = kernel.matrix
            blocks = groups * block_count(m, n, 28, 16)
            assert wave == wave_count(blocks, slots)
            exact = lane_efficiency(n, 16) * utilisation(blocks, slots)
            assert share == pytest.approx(float(exact), rel=1e-12)


def test_gpu_occupancy_is_that_of_the_exact_arithmetic() -> None:
    # One candidate tile per shape decides: the others are dearer by the rule that is spelt out.
    def exact(groups: int, m: int, n: int) -> tuple[int, float]:
        def cost(tile: tuple[int, int]) -> float:
            a, b = tile
            blocks = groups * block_count(m, n, a, b)
            return wave_count(blocks, 108) * a * b * (1 + 32 / a + 32 / b)

        a, b = min(GPU_TILES, key=cost)
        blocks = groups * block_count(m, n, a, b)
        used = utilisation(blocks, 108) * tile_efficiency(m, n, a, b)
        return wave_count(blocks, 108), float(used)

    shapes = [(g, m, n) for g in (1, 3) for m in (1, 100, 3000) for n in (7, 128, 1000)]
    waves, used = best_tile(*np.array(shapes, dtype=float).T, 108)
    assert waves.tolist() == [exact(*shape)[0] for shape in shapes]
    np.testing.assert_allclose(used, [exact(*shape)[1] for shape in shapes], rtol=1e-12)


def test_gpu_waves_by_hand() -> None:
    # NVIDIA's guide: 108 SMs, 256x128 tiles; 108 tiles are one wave, 109 two, the second almost
    # empty.
    full = linear(128, k=4096, m=256 * 108)
    waves, used = batch(full, device=A100).occupancy
    assert (waves[0], used[0]) == (1, 1)
    over = named(batch(full.replace(m=256 * 108 + 1), device=A100))
    assert over["ln waste 256x128"] == pytest.approx(math.log(2 * 256 * 108 / (256 * 108 + 1)))
    assert named(batch(full, device=A100))["ln waste 256x128"] == 0


def test_cpu_stairs_by_hand() -> None:
    # 14x14 pixels are 7 rows of 28; 17 channels take two vectors of 16; two threads.
    waves, used = batch(conv(16), conv(17), conv(32)).occupancy
    assert waves.tolist() == [4, 7, 7]
    assert used.tolist() == pytest.approx([7 / 8, 17 / 32, 1])
    assert batch(conv(17), threads=64).occupancy[0].tolist() == [4], "the device has 4 units"


def test_vectors_of_a_depthwise_convolution_run_over_its_channels() -> None:
    def depthwise(width: int) -> Kernel:
        return conv(width, c=width, hw=14, r=3).replace(groups=width)

    two = batch(depthwise(130), depthwise(144), threads=1)
    waves, used = two.occupancy
    assert waves.tolist() == [7 * 9, 7 * 9], "14 x 14 pixels are 7 rows of 28"
    assert used == pytest.approx([130 / 144, 1])
    columns = named(two)
    assert columns["log n"] == pytest.approx(np.log2([130, 144]))
    for side in "nk":
        assert columns[f"padding {side} to 1 vectors"] == pytest.approx([math.log2(144 / 130), 0])
    grouped = batch(conv(64, c=64, hw=14, r=3).replace(groups=8), threads=1)
    assert named(grouped)["padding n to 1 vectors"] == pytest.approx([1]), "8 channels a group"
    assert named(grouped)["padding k to 1 vectors"] == pytest.approx([1])


def test_elementwise_kernels_fill_vectors_and_blocks() -> None:
    relu = Kernel.of("relu", rows=1, cols=33)
    waves, used = batch(relu).occupancy
    assert (waves[0], used[0]) == (2, 33 / 64)  # three vectors of 16 on two threads
    waves, used = batch(relu, device=A100).occupancy
    assert (waves[0], used[0]) == (1, pytest.approx(33 / (108 * 1024)))


def test_lanes_slots_and_peaks() -> None:
    assert [lanes_of(FAKE_DEVICE, d) for d in ("fp64", "fp32", "fp16", "int8")] == [8, 16, 32, 64]
    assert [lanes_of(A100, d) for d in ("fp32", "bf16")] == [4, 8]
    assert [slots_of(FAKE_DEVICE, t) for t in (1, 3, 4, 99)] == [1, 3, 4, 4]
    assert slots_of(A100, 1) == 108
    assert peak_of(A100, "fp16") == 312.0
    assert (peak_of(A100, "fp32"), peak_of(A100, "fp32", "tf32")) == (19.5, 156.0)
    assert peak_of(find_device("v100"), "fp32", "tf32") == peak_of(find_device("v100"), "fp32")
    assert peak_of(A100, "bf16", "tf32") == 312.0
    assert peak_of(find_device("v100"), "bf16") == find_device("v100").peak_tflops["fp32"]
    bare = replace(FAKE_DEVICE, peak_tflops={})
    assert peak_of(bare, "fp32") == pytest.approx(2e-6 * 4 * 16 * 1000)
    assert peak_of(replace(A100, peak_tflops={}), "fp32") > 1


def test_batches_agree_with_kernels() -> None:
    kernels = [
        Kernel("conv2d", (2, 64, 9, 7, 32, 3, 5, 2, 1, 1, 4), "fp16", epilogue)
        for epilogue in ((), ("bias", "relu"), ("add",), ("bias", "add", "relu"))
    ]
    b = batch(*kernels)
    assert b.flops.tolist() == [k.flops for k in kernels]
    assert b.bytes_moved.tolist() == [k.bytes_moved for k in kernels]
    assert b.bytes_moved[2] > b.bytes_moved[1], "a fused add reads its other operand"
    assert [named(b)[f"epilogue {part}"].tolist() for part in ("bias", "relu", "add")] == [
        [0, 1, 0, 1],
        [0, 1, 0, 1],
        [0, 0, 1, 1],
    ]


def test_roofline_by_hand() -> None:
    # Half of the device's units: 0.064e12 FLOPs a second; 20e9 bytes a second.
    kernel = linear(16, k=1000, m=28)
    b = batch(kernel)
    (waves,), (used,) = b.occupancy
    assert (waves, used) == (1, 0.5)  # one block on two threads
    compute, memory = b.roofline
    assert compute == pytest.approx(2 * 28 * 16 * 1000 / 0.064e6 / 0.5)
    assert memory == pytest.approx(4 * (28 * 1000 + 1000 * 16 + 28 * 16) / 20e3)


def test_padding_features_by_hand() -> None:
    f = named(batch(conv(24, c=20)))
    padding = [2.0 ** f[f"padding n to {v} vectors"][0] for v in (0.5, 1, 2, 4)]
    assert padding == pytest.approx([1, 32 / 24, 32 / 24, 64 / 24])
    # What a convolution contracts vector by vector are channels, not channels x window.
    assert 2.0 ** f["padding k to 1 vectors"][0] == pytest.approx(32 / 20)
    assert 2.0 ** f["log k"][0] == pytest.approx(180)
    assert 2.0 ** f["imbalance"][0] == pytest.approx(1)  # two vectors on two threads
    assert 2.0 ** named(batch(conv(33)))["imbalance"][0] == pytest.approx(4 / 3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("device", [FAKE_DEVICE, A100], ids=["cpu", "gpu"])
@pytest.mark.parametrize("dtype", ["fp32", "fp64", "fp16"])
def test_features_are_finite_for_any_size(op: str, device: DeviceSpec, dtype: str) -> None:
    names = OPS[op].sizes
    sizes = [{name: int(name not in OPS[op].may_be_zero) for name in names}]
    large = {"n", "c", "h", "w", "k", "m", "b", "rows", "cols"} & set(names)
    sizes += [sizes[0] | dict.fromkeys(large, size) for size in (1000, MAX_SIZE)]
    b = batch(*(Kernel.of(op, dtype=dtype, **s) for s in sizes), device=device, threads=1)
    assert np.isfinite(feature_matrix(b, True)[1]).all()
    assert (Core().latency_us(b) > 0).all()
    assert (b.flops >= 0).all()


def test_features_of_all_devices_of_a_kind_have_the_same_names() -> None:
    gpus = [spec for spec in devices().values() if spec.kind == "gpu"]
    assert len({tuple(named(batch(conv(8), device=gpu), True)) for gpu in gpus}) == 1
    cpus = [replace(FAKE_DEVICE, units=u, vector_bytes=v) for u in (1, 64) for v in (0, 16, 64)]
    assert len({tuple(named(batch(conv(8), device=cpu), True)) for cpu in cpus}) == 1


def test_the_core_recovers_known_coefficients() -> None:
    true = Core(7.0, 1.5, 2.5)
    batches = [(b, true.latency_us(b)) for b in (batch(*convs(30)), batch(*convs(30, 1)))]
    fitted = fit_core(batches)
    np.testing.assert_allclose(fitted.coefficients, true.coefficients, rtol=1e-3)
    np.testing.assert_allclose(
        held_out_core(batches), np.concatenate([us for _, us in batches]), rtol=1e-3
    )
    assert Core.from_dict(fitted.to_dict()) == fitted


def test_the_core_has_no_negative_coefficients() -> None:
    b = batch(*convs(20))
    falling = 1000 - 0.1 * b.roofline[1]  # slower with less memory traffic
    fitted = fit_core([(b, falling)])
    assert min(fitted.coefficients) >= 0
    assert (fitted.latency_us(b) > 0).all()


def test_where_the_data_does_not_decide_the_core_falls_back_on_its_defaults() -> None:
    relu = batch(Kernel.of("relu", rows=1, cols=16))
    fitted = fit_core([(relu, Core().latency_us(relu))])
    assert fitted.launch_us == pytest.approx(DEFAULT_LAUNCH_US, rel=1e-3)
    assert fitted.latency_us(relu) == pytest.approx(Core().latency_us(relu), rel=1e-3)


def test_occupancy_takes_plain_numbers_too() -> None:
    kernel = conv(17)
    waves, used = occupancy("conv2d", kernel.dims, FAKE_DEVICE, "fp32", 2)
    assert (int(waves), float(used)) == (7, 17 / 32)


def test_the_share_of_the_peak_that_is_kept_up() -> None:
    # By hand: 70 W feed a T4 of 8.14 TFLOPS, 12 nm, as far as 250 W feed a V100 of 14.13.
    def share(name: str) -> float:
        return sustained_share(find_device(name), "fp32")

    assert share("v100") == pytest.approx(1)
    assert share("t4") == pytest.approx((70 / 8.14) / (250 / 14.13))
    assert share("l4") == pytest.approx(795 / 2040), "not below the base clock"
    # Four times an A100's 64 lanes would be 256; an H100 has 128.
    assert share("h100") == pytest.approx(0.5**0.22, rel=1e-3)
    assert share("mi100") > 0
    assert sustained_share(find_device("l4"), "bf16") == 1
    assert sustained_share(find_device("a100-40gb"), "fp32", "tf32") == 1
