"""What this machine has: its CPU, and the CUDA devices that torch sees."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil

from tadnn.errors import RequestError, UnknownName
from tadnn.hardware.spec import DeviceSpec, devices, find_device

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu")

# Per streaming multiprocessor and clock, by compute capability: fp32 FLOPs, then dense tensor
# FLOPs for tf32, fp16 and bf16 (0: none). Makers' architecture papers.
_PER_SM_CLOCK: dict[tuple[int, int], tuple[int, int, int, int]] = {
    (3, 0): (384, 0, 0, 0),
    (5, 0): (256, 0, 0, 0),
    (6, 0): (128, 0, 256, 0),
    (6, 1): (256, 0, 0, 0),
    (7, 0): (128, 0, 1024, 0),
    (8, 0): (128, 1024, 2048, 2048),
    (8, 6): (256, 512, 1024, 1024),
    (9, 0): (256, 2048, 4096, 4096),
    (10, 0): (256, 4096, 8192, 8192),
    (12, 0): (256, 512, 1024, 1024),
}
_SIMD_BYTES = (("avx512f", 64), ("avx2", 32), ("avx", 32))
# Both x86-64 and 64-bit ARM guarantee vectors this wide.
_PORTABLE_SIMD_BYTES = 16
_FALLBACK_CLOCK_MHZ = 2000.0
_CPU_GBPS_PER_CORE = 12.0
_MIB = {"": 2.0**-20, "K": 2.0**-10, "M": 1.0, "G": 2.0**10}


def detect_devices() -> dict[str, DeviceSpec]:
    """Return this machine's devices by torch's names: ``cpu``, ``cuda:0``, ..."""
    import torch

    found = {"cpu": detect_cpu()}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found[f"cuda:{index}"] = gpu_spec(torch.cuda.get_device_properties(index))
    return found


def resolve_device(name: str) -> tuple[str, DeviceSpec]:
    """Return torch's name and the facts of a device of this machine.

    Args:
        name: ``auto`` (the first GPU, else the CPU), ``cpu``, ``cuda:N`` (``cuda`` is the first),
            or the slug or an alias of a device that this machine has.

    Raises:
        RequestError: the device is known, but this machine has none.
        UnknownName: nothing is called that; near matches are shown.
    """
    wanted = name.strip().casefold()
    if wanted == "cpu":
        return "cpu", detect_cpu()
    present = detect_devices()
    if wanted == "auto":
        wanted = "cuda:0" if "cuda:0" in present else "cpu"
    if wanted == "cuda":
        wanted = "cuda:0"
    if wanted in present:
        return wanted, present[wanted]
    for key, spec in present.items():
        if wanted in {spec.slug.casefold(), *(alias.casefold() for alias in spec.aliases)}:
            return key, spec
    here = ", ".join(f"{key} ({spec.slug})" for key, spec in present.items())
    if re.fullmatch(r"cuda:\d+", wanted):
        raise RequestError(f"this machine has no device {name!r}; it has {here}")
    try:
        known = find_device(wanted)
    except UnknownName:
        choices = {"auto", *present, *(spec.slug for spec in present.values()), *devices()}
        raise UnknownName("device", name, choices) from None
    raise RequestError(f"this machine has no device {known.slug!r}; it has {here}")


def detect_cpu() -> DeviceSpec:
    """Describe this machine's CPU; what the system does not tell is estimated and noted."""
    info = _read_cpuinfo(_CPUINFO)
    model = info.get("model name") or platform.processor() or platform.machine() or "unknown"
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    vector_bytes = _simd_bytes(info.get("flags") or info.get("features") or "")
    clock, clock_note = _cpu_clock(model, info)
    # Two fused multiply-adds a cycle, as most server and desktop cores do.
    peak = cores * clock * 1e6 * 2 * (vector_bytes / 4) * 2 / 1e12
    l2, l3 = (_cache_mb(_CACHES, level) for level in (2, 3))
    notes = [
        f"peak and bandwidth are estimates (two FMA units, {_CPU_GBPS_PER_CORE:g} GB/s per core)",
        *([clock_note] if clock_note else []),
        *([f"L3 {l3:g} MB"] if l3 else []),
    ]
    return DeviceSpec(
        slug=f"cpu-{_slugify(model)}",
        name=model,
        kind="cpu",
        vendor=_cpu_vendor(info.get("vendor_id", ""), model),
        units=cores,
        clock_mhz=clock,
        peak_tflops={"fp32": round(peak, 4)},
        bandwidth_gbps=cores * _CPU_GBPS_PER_CORE,
        l2_mb=l2,
        memory_gb=round(psutil.virtual_memory().total / 2**30, 1),
        vector_bytes=vector_bytes,
        aliases=(),
        note="; ".join(notes),
    )


def gpu_spec(properties: Any) -> DeviceSpec:
    """Describe a GPU from torch's device properties.

    A GPU of the device table is taken from it. Another one, or a slice of a known one, is built
    from what the driver tells; what it does not tell is estimated and noted.
    """
    name, sms = str(properties.name), int(properties.multi_processor_count)
    try:
        known = find_device(name)
    except UnknownName:
        known = None
    if known is not None and known.units == sms:
        return known
    slug = _slugify(name) if known is None else f"{known.slug}-{sms}sm"
    notes = ["from the driver's properties"]
    clock = _positive(properties, "clock_rate") / 1e3
    if not clock:
        clock = known.clock_mhz if known is not None else 1500.0
        notes.append(f"clock assumed: {clock:g} MHz")
    # Two transfers a clock; kHz and bits to 1e9 bytes a second.
    transfers_khz = 2 * _positive(properties, "memory_clock_rate")
    bandwidth = transfers_khz * _positive(properties, "memory_bus_width") / 8e6
    if not bandwidth:
        bandwidth = 10.0 * sms
        notes.append("bandwidth assumed: 10 GB/s per multiprocessor")
    amd = name.casefold().startswith("amd")
    return DeviceSpec(
        slug=slug,
        name=name,
        kind="gpu",
        vendor="AMD" if amd else "NVIDIA",
        units=sms,
        clock_mhz=clock,
        peak_tflops=_gpu_peaks(properties, sms, clock, amd),
        bandwidth_gbps=round(bandwidth, 1),
        l2_mb=round(_positive(properties, "L2_cache_size") / 2**20, 2),
        memory_gb=round(properties.total_memory / 2**30, 1),
        vector_bytes=0,
        # A slice must not answer to the whole device's name.
        aliases=(name,) if known is None else (),
        note="; ".join(notes),
        capability=0.0 if amd else float(f"{int(properties.major)}.{int(properties.minor)}"),
    )


def _gpu_peaks(properties: Any, sms: int, clock_mhz: float, amd: bool) -> dict[str, float]:
    if amd:
        per_clock: tuple[int, int, int, int] = (128, 0, 0, 0)
    else:
        capability = (int(properties.major), int(properties.minor))
        older = [key for key in _PER_SM_CLOCK if key <= capability]
        per_clock = _PER_SM_CLOCK[max(older, default=(3, 0))]
    peaks = zip(("fp32", "tf32", "fp16", "bf16"), per_clock, strict=True)
    return {dtype: round(sms * clock_mhz * flops / 1e6, 2) for dtype, flops in peaks if flops}


def _positive(properties: Any, name: str) -> float:
    """Read a property that older versions of torch lack, and newer drivers report as 0."""
    return max(0.0, float(getattr(properties, name, 0) or 0))


def _read_cpuinfo(path: Path) -> dict[str, str]:
    """Return the first processor's fields, keys in lower case; empty where no such file is."""
    if not path.is_file():
        return {}
    fields: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().casefold(), value.strip())
    return fields


def _simd_bytes(flags: str) -> int:
    present = set(flags.split())
    return next((width for flag, width in _SIMD_BYTES if flag in present), _PORTABLE_SIMD_BYTES)


def _cpu_clock(model: str, info: dict[str, str]) -> tuple[float, str]:
    """Return the clock in MHz, and what to note about it."""
    # None on some systems, whatever the stubs say.
    frequency: Any = psutil.cpu_freq()
    if frequency is not None and frequency.max > 0:
        return round(float(frequency.max), 0), ""
    if stated := re.search(r"@\s*([\d.]+)\s*GHz", model):
        return round(float(stated[1]) * 1000, 0), "nominal clock"
    for text in (info.get("cpu mhz", ""), str(frequency.current) if frequency is not None else ""):
        if re.fullmatch(r"[\d.]+", text) and float(text) > 0:
            return round(float(text), 0), "clock as it was at detection"
    return _FALLBACK_CLOCK_MHZ, f"clock assumed: {_FALLBACK_CLOCK_MHZ:g} MHz"


def _cache_mb(root: Path, level: int) -> float:
    """Return the sum of a cache level over all cores in MiB; 0 where the system does not tell."""
    sizes: dict[tuple[str, str], float] = {}
    for index in root.glob("cpu[0-9]*/cache/index*"):
        # Virtual machines leave some of these out.
        level_file, size_file, sharers = (index / n for n in ("level", "size", "shared_cpu_list"))
        if not (level_file.is_file() and size_file.is_file() and sharers.is_file()):
            continue
        size = re.fullmatch(r"(\d+)([KMG]?)", size_file.read_text().strip())
        if size is not None and level_file.read_text().strip() == str(level):
            sizes[sharers.read_text().strip(), index.name] = int(size[1]) * _MIB[size[2]]
    return round(sum(sizes.values()), 3)


def _cpu_vendor(identifier: str, model: str) -> str:
    names = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
    return names.get(identifier, identifier or model.split()[0])


def _slugify(text: str) -> str:
    text = re.sub(r"\((?:r|tm|c)\)|\bcpu\b|@.*$", " ", text.casefold())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "unknown"
