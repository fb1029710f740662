"""Devices as facts, wave arithmetic, and what this machine has."""

from __future__ import annotations

from tadnn.hardware.detect import detect_cpu, detect_devices, resolve_device
from tadnn.hardware.spec import DeviceSpec, devices, find_device
from tadnn.hardware.waves import (
    block_count,
    ceil_div,
    lane_efficiency,
    tail_fraction,
    tile_efficiency,
    utilisation,
    vector_blocks,
    wave_count,
)

__all__ = [
    "DeviceSpec",
    "block_count",
    "ceil_div",
    "detect_cpu",
    "detect_devices",
    "devices",
    "find_device",
    "lane_efficiency",
    "resolve_device",
    "tail_fraction",
    "tile_efficiency",
    "utilisation",
    "vector_blocks",
    "wave_count",
]
