"""Kernels, networks and models that the tests of the latency room share."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Sequence

from tadnn.kernels import Kernel, KernelRow
from tadnn.latency import LatencyModel, fit_kernels
from tadnn.nets import Net
from tadnn.profiling import FakeClock, kernel_pool, measure
from tadnn.runtimes import Setting, find_runtime
from tadnn.spaces import Space, load_space

SETTING = Setting(threads=2)
INPUT = (1, 16, 16)


def conv(k: int, c: int = 32, hw: int = 14, r: int = 3, dtype: str = "fp32") -> Kernel:
    sizes = {"n": 1, "c": c, "h": hw, "w": hw, "k": k, "r": r, "s": r, "stride": 1}
    return Kernel.of("conv2d", **sizes, pad=r // 2, dilation=1, groups=1, dtype=dtype)


def linear(n: int, k: int = 512, m: int = 1) -> Kernel:
    return Kernel.of("linear", m=m, n=n, k=k)


def convs(count: int, seed: int = 0) -> list[Kernel]:
    """Return distinct 3x3 and 1x1 convolutions: widths 8 to 160, edges 7 to 28."""
    points = list(itertools.product(range(8, 161, 2), (8, 16, 24, 32, 48, 64), (7, 14, 28), (1, 3)))
    picked = random.Random(seed).sample(points, count)
    return [conv(*point) for point in picked]


def rows(clock: FakeClock, kernels: Sequence[Kernel]) -> list[KernelRow]:
    measured = measure(clock, kernels)
    return [
        KernelRow(kernel, m.latency_us, m.spread_us, m.repeats)
        for kernel, m in zip(kernels, measured, strict=True)
    ]


@functools.cache
def small_space() -> Space:
    return load_space("resnet").narrow(
        {"width": {"low": 8, "high": 32}, "depth": {"low": 1, "high": 2}, "block": "basic"}
    )


def small_nets(count: int, seed: int = 0) -> list[Net]:
    space = small_space()
    return [space.build(arch, INPUT, 10) for arch in space.sample(count, seed)]


def pool(nets: Iterable[Net]) -> list[Kernel]:
    return list(kernel_pool(nets, 1, "fp32", find_runtime("torch-eager")))


@functools.cache
def space_model() -> LatencyModel:
    """Return a model of the small space's kernels; shared, so leave it as it is."""
    clock = FakeClock(SETTING)
    return fit_kernels("small", [(clock.device, rows(clock, pool(small_nets(12))))], SETTING)
