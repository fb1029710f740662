"""What a latency model says about itself: ``card.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tadnn.errors import CorruptFile, RequestError
from tadnn.hardware import DeviceSpec
from tadnn.runtimes import Setting

FORMAT = "tadnn-latency-model-1"


@dataclass(frozen=True)
class Card:
    """The facts of a latency model.

    Attributes:
        name: the model's name.
        devices: those it was fitted on.
        setting: the one setting it is fitted for.
        environment: machine and versions of the measurements.
        data: ``rows``, ``source``, and ``sha256`` of ``kernels.csv.gz`` where that is kept.
        notes: what it covers and what it doesn't, licences.
    """

    name: str
    devices: tuple[DeviceSpec, ...]
    setting: Setting
    environment: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for YAML."""
        return {
            "format": FORMAT,
            "name": self.name,
            "notes": self.notes,
            "setting": self.setting.to_dict(),
            "devices": [device.to_dict() for device in self.devices],
            "environment": dict(self.environment),
            "data": dict(self.data),
        }

    @classmethod
    def from_dict(cls, data: Any, where: str) -> Card:
        """Return the card of :meth:`to_dict`'s data.

        Raises:
            CorruptFile: something is missing or of another type.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise CorruptFile(f"{where} is not the card of a latency model ({FORMAT})")
        try:
            devices = tuple(DeviceSpec.from_dict(device) for device in data["devices"])
            if not devices:
                raise CorruptFile("it names no device")
            return cls(
                str(data["name"]),
                devices,
                Setting.from_dict(data["setting"]),
                {str(k): str(v) for k, v in data["environment"].items()},
                dict(data["data"]),
                str(data["notes"]),
            )
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise CorruptFile(f"{where} is damaged: {type(error).__name__}: {error}") from error
        except RequestError as error:
            raise CorruptFile(f"{where} is damaged: {error}") from error
