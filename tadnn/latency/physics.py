"""Models of GPUs that nobody measured: the physical core alone."""

from __future__ import annotations

from typing import Final

from tadnn.errors import SettingMismatch, UnknownName
from tadnn.hardware import devices, find_device
from tadnn.latency.card import Card
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import NetCalibration
from tadnn.runtimes import MIXED, RUNTIMES, Setting

PHYSICS: Final = "physics-"
_DTYPES: Final = ("fp32", "fp16", "bf16", MIXED)


def physics_names() -> list[str]:
    """Return the names of all such models, without devices."""
    return [
        f"{PHYSICS}{runtime.name}-{dtype}"
        for runtime in RUNTIMES.values()
        if "cuda" in runtime.kinds
        for dtype in _DTYPES
    ]


def physics_model(name: str, device: str) -> LatencyModel:
    """Return a model that knows nothing but a GPU's facts, to calibrate or to guess with.

    Args:
        name: ``physics-RUNTIME-DTYPE``.
        device: a GPU's slug or alias.

    Raises:
        UnknownName: there is no such model or device.
        SettingMismatch: no device was named, or it is a CPU.
    """
    if name not in physics_names():
        raise UnknownName("latency model", name, physics_names())
    gpus = [slug for slug, spec in devices().items() if spec.kind == "gpu"]
    if not device:
        raise SettingMismatch(f"{name} serves every GPU; name one: {name}@{gpus[0]}, ...")
    spec = find_device(device)
    if spec.kind != "gpu":
        raise SettingMismatch(f"{name} predicts a gpu; got {spec.slug}, a {spec.kind}")
    runtime, _, dtype = name.removeprefix(PHYSICS).rpartition("-")
    notes = "Physics alone, nothing measured: a factor of two either way. Calibrate it."
    card = Card(name, (spec,), Setting(runtime, dtype), notes=notes)
    return LatencyModel(card, {}, NetCalibration(), spec)
