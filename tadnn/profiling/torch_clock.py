"""Clocks for runtimes that run in this process: what they share, and the CPU's timer."""

from __future__ import annotations

import gc
import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tadnn import files
from tadnn.hardware import DeviceSpec, detect_cpu
from tadnn.kernels import Kernel
from tadnn.profiling.clock import Clock, Timed
from tadnn.profiling.measurement import Measurement
from tadnn.profiling.subject import NetRun, Subject
from tadnn.runtimes import Run, Setting, find_runtime

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_LONG_US = 1e6
# A network is used many times in a row, and has settled then. In the first runs after those of
# other candidates its weights are brought back, its threads wake, and idle threads of the others
# still spin: those of torch (libgomp) took a core for 13 ms, so networks of 2.7 ms took 6.5 ms
# twice. ONNX Runtime's don't, but a network of 44 us took 62 in the runs 2 to 5, 53 in those to 20.
_WARM_UP_US = 20_000.0


def _warm_up(run: Run) -> None:
    """Run a network unmeasured, at least once."""
    until = time.perf_counter_ns() + 1000 * _WARM_UP_US
    while True:
        run()
        if time.perf_counter_ns() >= until:
            return


class TorchClock(Clock):
    """What the CPU's and the GPUs' clocks share: a runtime of ours makes the subject runnable."""

    min_net_sample_us = 5000.0

    def __init__(self, device: DeviceSpec, setting: Setting, torch_device: str) -> None:
        super().__init__(device, setting)
        self.torch_device = torch_device
        self._runtime = find_runtime(setting.runtime)

    @abstractmethod
    def _timed(self, run: Run, runs: int) -> Timed:
        """Return a callable that times a loop; one call of ``run`` makes ``runs`` runs."""

    def prepare(self, subject: Subject) -> Timed:
        """Make a kernel or network ready to run."""
        if isinstance(subject, Kernel):
            run = self._runtime.prepare_kernel(subject, self.setting, self.torch_device)
            return self._timed(run, self._runtime.kernel_runs(self.setting))
        gc.collect()  # the session keeps it off, and modules may hold cycles
        run = self._runtime.prepare_net(subject.net, subject.batch, self.setting, self.torch_device)
        timed = self._timed(run, 1)

        took_us = 0.0

        def after_itself(inner: int) -> float:
            nonlocal took_us
            # One that takes long spends no time on that.
            if took_us < _LONG_US:
                _warm_up(run)
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

    def _timed(self, run: Run, runs: int) -> Timed:
        def timed(inner: int) -> float:
            calls = -(-inner // runs)
            loop = itertools.repeat(None, calls)
            start = time.perf_counter_ns()
            for _ in loop:
                run()
            return (time.perf_counter_ns() - start) / (1000 * calls * runs)

        return timed
