"""Opening the clock of a device by name."""

from __future__ import annotations

from tadnn.profiling.clock import Clock
from tadnn.profiling.fake_clock import FakeClock
from tadnn.profiling.isolated_clock import IsolatedCpuClock
from tadnn.profiling.torch_clock import CudaClock
from tadnn.runtimes import Setting

FAKE = "fake"


def open_clock(device: str, setting: Setting) -> Clock:
    """Return the clock of a device.

    Args:
        device: ``auto`` (the first GPU, else the CPU), ``cpu``, ``cuda:N``, a slug of this
            machine's, or ``fake``: a device that doesn't exist, whose times are computed.
        setting: what is measured in.

    Raises:
        UnknownName, RequestError: there is no such device here.
    """
    from tadnn.hardware import resolve_device

    if device == FAKE:
        return FakeClock(setting)
    torch_name, _ = resolve_device(device)
    if torch_name == "cpu":
        return IsolatedCpuClock(setting)
    return CudaClock(setting, int(torch_name.partition(":")[2]))
