"""What is known about a device, and the devices known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from tadnn.errors import CorruptFile, UnknownName

_TABLE: Final = Path(__file__).with_name("devices.yaml")
_FACTS_OF_LIKES: Final = ("base_clock_mhz", "capability", "power_w", "process_nm")
_OPTIONAL: Final = {"note", *_FACTS_OF_LIKES}


@dataclass(frozen=True)
class DeviceSpec:
    """Nominal facts of one device: a card, one die of a card that shows as several, or a CPU.

    Attributes:
        slug: tadnn's name for it.
        name: the vendor's name.
        kind: ``"gpu"`` or ``"cpu"``.
        vendor: who makes it.
        units: streaming multiprocessors, compute units or physical cores.
        clock_mhz: boost clock.
        peak_tflops: dense peak per dtype (``fp32``, ``tf32``, ``fp16``, ``bf16``) in 1e12 FLOPs a
            second; absent where not supported or unknown.
        bandwidth_gbps: main memory, 1e9 bytes a second.
        l2_mb: second-level cache, summed over the device; in binary units where detected, as the
            maker writes it otherwise. The same holds for ``memory_gb``.
        memory_gb: main memory.
        vector_bytes: SIMD register of a CPU; 0 for GPUs.
        aliases: other names that vendors and tables use.
        note: what is uncertain or estimated.
        base_clock_mhz: what the maker promises under load; 0 where unknown, as with those below.
        capability: CUDA's compute capability.
        power_w: the board's limit.
        process_nm: the class of the process that the chip is made in.
    """

    slug: str
    name: str
    kind: str
    vendor: str
    units: int
    clock_mhz: float
    peak_tflops: Mapping[str, float] = field(hash=False)
    bandwidth_gbps: float
    l2_mb: float
    memory_gb: float
    vector_bytes: int
    aliases: tuple[str, ...]
    note: str = ""
    base_clock_mhz: float = 0.0
    capability: float = 0.0
    power_w: float = 0.0
    process_nm: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON and YAML can hold."""
        return asdict(self) | {"peak_tflops": dict(self.peak_tflops), "aliases": list(self.aliases)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceSpec:
        """Read what ``to_dict`` returned.

        Raises:
            CorruptFile: a field is missing, unknown or of the wrong type.
        """
        known = {item.name for item in fields(cls)}
        wrong = sorted(known - _OPTIONAL - set(data)) + sorted(set(data) - known)
        if wrong:
            raise CorruptFile(
                f"a device has the fields {', '.join(sorted(known))}; missing or unknown: "
                f"{', '.join(wrong)}"
            )
        try:
            return cls(
                slug=str(data["slug"]),
                name=str(data["name"]),
                kind=str(data["kind"]),
                vendor=str(data["vendor"]),
                units=int(data["units"]),
                clock_mhz=float(data["clock_mhz"]),
                peak_tflops={str(k): float(v) for k, v in data["peak_tflops"].items()},
                bandwidth_gbps=float(data["bandwidth_gbps"]),
                l2_mb=float(data["l2_mb"]),
                memory_gb=float(data["memory_gb"]),
                vector_bytes=int(data["vector_bytes"]),
                aliases=tuple(str(alias) for alias in data["aliases"]),
                note=str(data.get("note", "")),
                **{name: float(data.get(name, 0.0)) for name in _FACTS_OF_LIKES},
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(
                f"device {data['slug']!r} has a value of the wrong type: {error}"
            ) from error


@lru_cache(maxsize=1)
def _table() -> tuple[DeviceSpec, ...]:
    rows = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    defaults = {"kind": "gpu", "vendor": "NVIDIA", "vector_bytes": 0}
    return tuple(
        DeviceSpec.from_dict(defaults | {"slug": slug} | row) for slug, row in rows.items()
    )


def devices() -> dict[str, DeviceSpec]:
    """Return every device known by name, by slug."""
    return {spec.slug: spec for spec in _table()}


@lru_cache(maxsize=1)
def _by_any_name() -> dict[str, DeviceSpec]:
    return {name.casefold(): spec for spec in _table() for name in (spec.slug, *spec.aliases)}


def find_device(name: str) -> DeviceSpec:
    """Return the device whose slug or alias is ``name``; case does not matter.

    Raises:
        UnknownName: there is none; near matches are shown.
    """
    spec = _by_any_name().get(name.strip().casefold())
    if spec is None:
        aliases = [alias for spec in _table() for alias in spec.aliases]
        raise UnknownName("device", name, devices(), aliases)
    return spec
