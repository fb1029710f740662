"""Opening the clock of a device by name."""

from __future__ import annotations

from dataclasses import replace

from tadnn.errors import RequestError
from tadnn.hardware import DeviceSpec
from tadnn.profiling.clock import Clock
from tadnn.profiling.cuda_clock import CudaClock
from tadnn.profiling.fake_clock import FAKE_DEVICE, FakeClock
from tadnn.profiling.isolated_clock import IsolatedCpuClock
from tadnn.runtimes import Setting, find_runtime

FAKE = "fake"


def open_clock(device: str, setting: Setting) -> Clock:
    """Return the clock of a device.

    Args:
        device: ``auto`` (the first GPU, else the CPU), ``cpu``, ``cuda:N``, a slug of this
            machine's, or ``fake``: a device that doesn't exist, whose times are computed;
            ``fake:SLUG`` has the facts of a known device.
        setting: what is measured in.

    Raises:
        UnknownName, RequestError: there is no such device here, or it can't do what the
            setting says.
    """
    from tadnn.hardware import resolve_device

    runtime = find_runtime(setting.runtime)
    pretended = fake_device(device)
    if pretended is not None:
        return FakeClock(setting, pretended)
    torch_name, _ = resolve_device(device)
    kind, _, index = torch_name.partition(":")
    runtime.require_kind(kind)
    if kind != "cpu":
        return CudaClock(setting, int(index))
    if setting.flush_l2:
        raise RequestError("the second-level cache is emptied on CUDA devices only; got 'cpu'")
    return IsolatedCpuClock(setting)


def fake_device(name: str) -> DeviceSpec | None:
    """Return the device that ``fake`` or ``fake:SLUG`` pretends to be; None for other names.

    Its slug is its own, so that nothing computed is taken for something measured.

    Raises:
        UnknownName: no device is called SLUG.
    """
    from tadnn.hardware import find_device

    prefix, colon, slug = name.partition(":")
    if prefix != FAKE:
        return None
    if not colon:
        return FAKE_DEVICE
    real = find_device(slug)
    name = f"{real.name} that doesn't exist"
    return replace(real, slug=f"{real.slug}-fake", name=name, aliases=())
