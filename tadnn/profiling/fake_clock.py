"""A clock for a device that doesn't exist: same call, same time, stairs included."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tadnn.hardware import DeviceSpec, block_count, wave_count
from tadnn.kernels import DTYPE_BYTES, Kernel
from tadnn.profiling.clock import Clock, Timed
from tadnn.profiling.subject import Subject
from tadnn.runtimes import Setting, find_runtime, lower_net

FAKE_DEVICE: Final = DeviceSpec(
    slug="cpu-fake",
    name="A CPU that doesn't exist",
    kind="cpu",
    vendor="tadnn",
    units=4,
    clock_mhz=1000.0,
    peak_tflops={"fp32": 0.128, "fp16": 0.256, "bf16": 0.256},
    bandwidth_gbps=20.0,
    l2_mb=4.0,
    memory_gb=8.0,
    vector_bytes=64,
    aliases=("fake",),
)
LAUNCH_US: Final = 2.0
GAP_US: Final = 1.0
BASE_US: Final = 10.0
_TILE_M: Final = 16
_GPU_TILE_N: Final = 64


class FakeClock(Clock):
    """Computes time from wave arithmetic and multiplies reproducible noise.

    A kernel takes a launch, its waves of tiles (vector blocks on a CPU) and its
    memory traffic; a network its kernels, a gap for each and a base, where its runtime
    has gaps. The noise
    of a sample depends on the seed, the subject and how many samples it gave
    since it was prepared.

    Args:
        setting: its runtime decides what a network launches.
        device: whose units, peak, bandwidth and vector width count.
        seed: of the noise.
        noise: standard deviation of the logarithm of time.
        sleep: seconds that every sample really takes, to be interrupted in.
    """

    def __init__(
        self,
        setting: Setting,
        device: DeviceSpec = FAKE_DEVICE,
        *,
        seed: int = 0,
        noise: float = 0.01,
        sleep: float = 0.0,
    ) -> None:
        super().__init__(device, setting)
        self.seed, self.noise, self.sleep = seed, noise, sleep

    def kernel_us(self, kernel: Kernel) -> float:
        """Return a kernel's time without noise."""
        memory = kernel.bytes_moved / (self.device.bandwidth_gbps * 1e3)
        return LAUNCH_US + memory + self._waves_us(kernel)

    def true_us(self, subject: Subject) -> float:
        """Return a subject's time without noise."""
        if isinstance(subject, Kernel):
            return self.kernel_us(subject)
        runtime = find_runtime(self.setting.runtime)
        kernels = lower_net(subject.net, subject.batch, self.setting.dtype, runtime)
        base, gap = (BASE_US, GAP_US) if runtime.launch_gaps else (0.0, 0.0)
        return base + sum(self.kernel_us(kernel) + gap for kernel in kernels)

    def prepare(self, subject: Subject) -> Timed:
        """Return the subject's samples."""
        true_us, key, count = self.true_us(subject), subject.key, 0

        def timed(inner: int) -> float:
            nonlocal count
            if self.sleep:
                time.sleep(self.sleep)
            draw = random.Random(f"{self.seed}|{key}|{count}").gauss()
            count += 1
            return true_us * math.exp(self.noise * draw)

        return timed

    @contextmanager
    def session(self) -> Iterator[None]:
        """Fix nothing."""
        yield

    def environment(self) -> dict[str, str]:
        """Say that this was no machine."""
        return {"clock": "fake", "device": self.device.name, "seed": str(self.seed)}

    def _waves_us(self, kernel: Kernel) -> float:
        if kernel.matrix is None:
            return 0.0
        batch, m, n, k = kernel.matrix
        device = self.device
        lanes = device.vector_bytes // DTYPE_BYTES[kernel.dtype] or _GPU_TILE_N
        slots = device.units
        if device.kind == "cpu":
            slots = min(slots, self.setting.threads)
        waves = wave_count(batch * block_count(m, n, _TILE_M, lanes), slots)
        tf32 = self.setting.math == "tf32" and kernel.dtype == "fp32"
        peaks, dtype = device.peak_tflops, "tf32" if tf32 else kernel.dtype
        peak = peaks.get(dtype, peaks["fp32"])
        flops_per_us = peak * 1e6 / device.units  # of one slot
        return waves * 2 * _TILE_M * lanes * k / flops_per_us
