"""Clocks for runtimes that run in this process: CPU timers and CUDA events."""

from __future__ import annotations

import gc
import itertools
import shutil
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tadnn import files
from tadnn.errors import UnknownName
from tadnn.hardware import DeviceSpec, detect_cpu, detect_devices
from tadnn.kernels import Kernel
from tadnn.profiling.clock import Clock, Timed
from tadnn.profiling.measurement import Measurement
from tadnn.profiling.subject import NetRun, Subject
from tadnn.runtimes import Run, Setting, find_runtime

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_LONG_US = 1e6
_FLUSH_BYTES = 512 << 20  # several times the largest second-level cache of today's GPUs


class TorchClock(Clock):
    """What both clocks share: a runtime of ours makes the subject runnable."""

    def __init__(self, device: DeviceSpec, setting: Setting, torch_device: str) -> None:
        super().__init__(device, setting)
        self.torch_device = torch_device
        self._runtime = find_runtime(setting.runtime)

    @abstractmethod
    def _timed(self, run: Run) -> Timed:
        """Return a callable that times a loop of runs."""

    def prepare(self, subject: Subject) -> Timed:
        """Make a kernel or network ready to run."""
        if isinstance(subject, Kernel):
            return self._timed(
                self._runtime.prepare_kernel(subject, self.setting, self.torch_device)
            )
        gc.collect()  # the session keeps it off, and modules may hold cycles
        run = self._runtime.prepare_net(subject.net, subject.batch, self.setting, self.torch_device)
        timed = self._timed(run)

        took_us = 0.0

        # A network is used many times in a row: one unmeasured run brings its weights back
        # after those of the other candidates. One that takes long spends no time on that.
        def after_itself(inner: int) -> float:
            nonlocal took_us
            if took_us < _LONG_US:
                run()
            took_us = timed(inner)
            return took_us

        return after_itself

    def observe(self, subject: NetRun) -> dict[Kernel, Measurement]:
        """Run a network under its runtime's profiler."""
        times = self._runtime.observe_net(
            subject.net, subject.batch, self.setting, self.torch_device
        )
        return {kernel: Measurement.of_observed(samples) for kernel, samples in times.items()}

    @contextmanager
    def session(self) -> Iterator[None]:
        """Fix threads and math mode, and keep the garbage collector out of the samples."""
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            with self._runtime.session(self.setting, self.torch_device):
                yield
        finally:
            if collecting:
                gc.enable()

    def environment(self) -> dict[str, str]:
        """Return versions, the device, and how its clock is governed."""
        return machine_environment(self.device, self.setting)


def machine_environment(device: DeviceSpec, setting: Setting) -> dict[str, str]:
    """Return versions, the device, how this machine's CPU clock is governed, and the setting."""
    return {
        **files.environment(),
        "device": device.name,
        "units": str(device.units),
        "vector_bytes": str(device.vector_bytes),
        "governor": _GOVERNOR.read_text().strip() if _GOVERNOR.is_file() else "unknown",
        "setting": setting.label,
        **find_runtime(setting.runtime).environment(setting),
    }


class CpuClock(TorchClock):
    """Wall-clock time on this machine's CPU, in this process; see ``IsolatedCpuClock``."""

    min_sample_us = 100.0

    def __init__(self, setting: Setting) -> None:
        super().__init__(detect_cpu(), setting, "cpu")

    def _timed(self, run: Run) -> Timed:
        def timed(inner: int) -> float:
            loop = itertools.repeat(None, inner)
            start = time.perf_counter_ns()
            for _ in loop:
                run()
            return (time.perf_counter_ns() - start) / (1000 * inner)

        return timed


class CudaClock(TorchClock):
    """CUDA events around a loop of launches on the current stream.

    Where the device is quicker than Python launches, it waits, and so do these
    figures: that is what eager execution costs.

    Args:
        setting: how to run.
        index: which of torch's CUDA devices.
        flush: whether to evict the second-level cache before every run.

    Raises:
        UnknownName: this machine has no such device.
    """

    min_sample_us = 500.0  # events resolve about half a microsecond

    def __init__(self, setting: Setting, index: int = 0, *, flush: bool = False) -> None:
        name = f"cuda:{index}"
        found = detect_devices()
        if name not in found:
            raise UnknownName("device", name, found)
        super().__init__(found[name], setting, name)
        self._index, self._flush = index, flush

    def _timed(self, run: Run) -> Timed:
        import torch

        stream = torch.cuda.current_stream(self._index)
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        scratch = (
            torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=self.torch_device)
            if self._flush
            else None
        )

        def loop(inner: int) -> float:
            start.record(stream)
            for _ in itertools.repeat(None, inner):
                run()
            end.record(stream)
            end.synchronize()
            return float(start.elapsed_time(end)) * 1000  # milliseconds

        def timed(inner: int) -> float:
            with torch.cuda.device(self._index):
                stream.synchronize()
                if scratch is None:
                    return loop(inner) / inner
                total = 0.0
                for _ in range(inner):
                    scratch.zero_()
                    total += loop(1)
                return total / inner

        return timed

    def environment(self) -> dict[str, str]:
        """Return versions, the device, its driver and clocks where nvidia-smi tells them."""
        import torch

        return {
            **super().environment(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "l2_flush": str(self._flush),
            **_nvidia_smi(self._index),
        }


def _nvidia_smi(index: int) -> dict[str, str]:
    names = ("driver_version", "clocks.sm", "clocks.mem", "power.limit")
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(names)}", "--format=csv,noheader", "-i", str(index)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    values = [value.strip() for value in told.stdout.strip().split(",")]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}
