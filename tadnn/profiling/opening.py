"""Opening the clock of a device by name."""

from __future__ import annotations

from tadnn.profiling.clock import Clock
from tadnn.profiling.fake_clock import FakeClock
from tadnn.profiling.isolated_clock import IsolatedCpuClock
from tadnn.profiling.torch_clock import CudaClock
from tadnn.runtimes import Setting, find_runtime

FAKE = "fake"


def open_clock(device: str, setting: Setting) -> Clock:
    """Return the clock of a device.

    Args:
        device: ``auto`` (the first GPU where the runtime runs on any, else the CPU), ``cpu``,
            ``cuda:N``, a slug of this machine's, or ``fake``: a device that doesn't exist, whose
            times are computed.
        setting: what is measured in.

    Raises:
        UnknownName, RequestError: there is no such device here, or the runtime doesn't run so.
    """
    from tadnn.hardware import resolve_device

    runtime = find_runtime(setting.runtime)
    runtime.check(setting)
    if device == FAKE:
        return FakeClock(setting)
    if device == "auto" and "gpu" not in runtime.kinds:
        device = "cpu"
    torch_name, _ = resolve_device(device)
    if torch_name == "cpu":
        return IsolatedCpuClock(setting)
    return CudaClock(setting, int(torch_name.partition(":")[2]))
