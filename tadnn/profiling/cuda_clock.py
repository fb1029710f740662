"""The clock of a CUDA device: events on its stream."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tadnn.errors import UnknownName
from tadnn.hardware import detect_devices
from tadnn.profiling.clock import Timed
from tadnn.profiling.torch_clock import TorchClock
from tadnn.runtimes import Run, Setting

if TYPE_CHECKING:
    import torch

_FLUSH_BYTES: Final = 512 << 20  # several times the largest second-level cache of today's GPUs
# A GPU that idled runs at a fraction of its clock; a third of a second of work brings it up.
_WARM_UP_S: Final = 0.3
_WARM_UP_SIZE: Final = 2048
_SMI_FIELDS: Final = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")


class CudaClock(TorchClock):
    """CUDA events around a loop of launches on the current stream.

    Where the device is quicker than Python launches, it waits, and so do these
    figures: that is what eager execution costs. Every sample starts on an idle
    stream and ends when the last launch is done. Where the setting says so, the
    second-level cache is emptied before every run, outside of the time measured.

    Args:
        setting: how to run.
        index: which of torch's CUDA devices.

    Raises:
        UnknownName: this machine has no such device.
        RequestError: the runtime doesn't run on CUDA devices.
    """

    min_sample_us = 500.0  # events resolve about half a microsecond

    def __init__(self, setting: Setting, index: int = 0) -> None:
        name = f"cuda:{index}"
        found = detect_devices()
        if name not in found:
            raise UnknownName("device", name, found)
        super().__init__(found[name], setting, name)
        self._runtime.require_kind("cuda")
        self._index = index

    @contextmanager
    def session(self) -> Iterator[None]:
        """Fix what the setting fixes, on this device, its clock brought up by some work."""
        import torch

        with super().session(), torch.cuda.device(self._index):
            self._warm_up()
            yield

    def environment(self) -> dict[str, str]:
        """Return versions, the device, its driver and clocks where nvidia-smi tells them."""
        import torch

        return {
            **super().environment(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "l2_flush": str(self.setting.flush_l2),
            **_nvidia_smi(self._index),
        }

    def _timed(self, run: Run, runs: int) -> Timed:
        import torch

        stream = torch.cuda.current_stream(self._index)
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

        def loop(calls: int) -> float:
            start.record(stream)
            for _ in itertools.repeat(None, calls):
                run()
            end.record(stream)
            end.synchronize()
            return float(start.elapsed_time(end)) * 1000  # milliseconds

        def timed(inner: int) -> float:
            calls = -(-inner // runs)
            stream.synchronize()
            if not self.setting.flush_l2:
                return loop(calls) / (calls * runs)
            total = 0.0
            for _ in range(calls):
                _scratch(self._index).zero_()
                total += loop(1)
            return total / (calls * runs)

        return timed

    def _warm_up(self) -> None:
        import torch

        x = torch.ones(_WARM_UP_SIZE, _WARM_UP_SIZE, device=self.torch_device)
        ends = time.monotonic() + _WARM_UP_S
        while time.monotonic() < ends:
            torch.mm(x, x)
            torch.cuda.synchronize(self._index)


@functools.lru_cache(maxsize=1)
def _scratch(index: int) -> torch.Tensor:
    """Return what is overwritten to empty the cache; one for all subjects."""
    import torch

    return torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=f"cuda:{index}")


# Asked once: it takes half a second, and a record for every reading would tell nothing.
@functools.lru_cache(maxsize=8)
def _nvidia_smi(index: int) -> dict[str, str]:
    """Return driver, clocks (after the work so far) and power limit; nothing where none tells."""
    import torch

    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    # CUDA_VISIBLE_DEVICES renumbers torch's devices, but not nvidia-smi's.
    identity = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{identity}" if identity is not None else str(index)
    command = [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(
            [*command, "-i", which], capture_output=True, text=True, check=False, timeout=30
        )
    except subprocess.TimeoutExpired:
        return {}
    values = [value.strip() for value in told.stdout.strip().split(",")]
    if told.returncode or len(values) != len(_SMI_FIELDS):
        return {}
    return dict(zip(_SMI_FIELDS, values, strict=True))
