"""How a kernel fills a device: waves of thread blocks, vector blocks spread over cores.

A GPU runs an m x n output in tiles, one thread block each, a wave of them at a
time (one block per SM: the best quantum on NeuSight's rows). A CPU runs output
channels in vector registers and shares rows of blocks among its cores. In both,
the last wave costs as much as a full one.

The arithmetic is that of :mod:`tadnn.hardware.waves`, on arrays of whole numbers
as float64: products of sizes overflow integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tadnn.hardware import DeviceSpec
from tadnn.kernels import DTYPE_BYTES, OPS

GPU_TILES: Final = (
    *((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128)),
    *((128, 32), (32, 128), (64, 64), (64, 32), (32, 32)),
)
"""Tiles (m, n) that vendor libraries use for matrix products, large to small."""
# A row of output pixels of this length is what one core takes at a time in a CPU's convolution.
_CPU_PIXELS: Final = 28
# Values that one block of an elementwise GPU kernel handles.
_GPU_BLOCK_VALUES: Final = 1024
# 16 bytes: what one access of a GPU's thread moves, and the least that a CPU's registers hold.
_ACCESS_BYTES: Final = 16
# Multiply-adds per clock of a streaming multiprocessor, where no peak is known.
_GPU_LANES: Final = 64
# A V100 is rated to run 14.13 TFLOPS with 250 W at 12 nm, memory and all.
_PJ_PER_FLOP_AND_NM: Final = 250 / 14.13 / 12
# Vendor libraries reach some 86 % with 128 lanes to a multiprocessor of what they reach with 64.
_CROWDING: Final = 0.22


def ceil_div(a: Any, b: Any) -> Any:
    """Return a / b rounded up, for positive whole numbers and arrays of them."""
    return -(-a // b)


def lanes_of(device: DeviceSpec, dtype: str) -> int:
    """Return how many values a vector register (CPU) or a 16-byte access (GPU) holds."""
    return max(1, (device.vector_bytes or _ACCESS_BYTES) // DTYPE_BYTES[dtype])


def slots_of(device: DeviceSpec, threads: int) -> int:
    """Return how many blocks run at once: one per SM, or one per thread used."""
    return device.units if device.kind == "gpu" else max(1, min(threads, device.units))


def peak_of(device: DeviceSpec, dtype: str, math: str = "ieee") -> float:
    """Return the peak in 1e12 FLOPs a second; that of fp32, or a guess, where none is known.

    Where ``math`` is ``"tf32"`` that is what fp32 runs at, on devices that have it.
    """
    name = "tf32" if (dtype, math) == ("fp32", "tf32") else dtype
    known = device.peak_tflops.get(name) or device.peak_tflops.get("fp32")
    if known:
        return known
    lanes = _GPU_LANES if device.kind == "gpu" else lanes_of(device, dtype)
    return 2e-6 * device.units * lanes * max(device.clock_mhz, 1.0)


def lanes_per_unit(device: DeviceSpec) -> float:
    """Return the multiply-adds per clock of one streaming multiprocessor, in fp32."""
    known = device.peak_tflops.get("fp32")
    if not known or device.clock_mhz <= 0:
        return float(_GPU_LANES)
    return known * 1e6 / (2 * device.units * device.clock_mhz)


def sustained_share(device: DeviceSpec, dtype: str, math: str = "ieee") -> float:
    """Return the share of a GPU's nominal peak that matrix products without tensor cores keep up.

    A board whose power doesn't feed its lanes lowers its clock: to what the power feeds, but not
    below the maker's base clock. Multiprocessors with twice the lanes share a path to shared
    memory as wide as that of the others. One where the facts aren't known, and on tensor cores,
    which take a fraction of the energy.
    """
    if device.kind != "gpu" or dtype != "fp32" or math != "ieee":
        return 1.0
    share = 1.0
    if device.power_w and device.process_nm:
        peak = peak_of(device, dtype)
        fed = device.power_w / (peak * _PJ_PER_FLOP_AND_NM * device.process_nm)
        share = min(1.0, max(fed, device.base_clock_mhz / max(device.clock_mhz, 1.0)))
    crowding = max(lanes_per_unit(device), _GPU_LANES) / _GPU_LANES
    return float(min(share, crowding**-_CROWDING))


def occupancy(
    op: str, dims: Mapping[str, Any], device: DeviceSpec, dtype: str, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return waves and utilisation (above 0, at most 1) of kernels of one op, arrays [n].

    Utilisation is useful work over the work that the last wave rounds up to.
    """
    matrix = OPS[op].matrix(dims)
    slots = slots_of(device, threads)
    if matrix is None:
        values = np.asarray(OPS[op].output(dims))
        size = _GPU_BLOCK_VALUES if device.kind == "gpu" else lanes_of(device, dtype)
        waves = ceil_div(ceil_div(values, size), slots)
        return waves, values / (waves * slots * size)
    if device.kind == "gpu":
        batch, m, n, _ = (np.asarray(x) for x in matrix)
        return best_tile(batch, m, n, slots)
    batch, m, n, _ = vector_matrix(op, dims, matrix)
    lanes = lanes_of(device, dtype)
    blocks = batch * ceil_div(m, _CPU_PIXELS) * ceil_div(n, lanes)
    waves = ceil_div(blocks, slots)
    # Rows are split evenly, so only the channels' last vector is padded.
    return waves, n / (ceil_div(n, lanes) * lanes) * (blocks / (waves * slots))


def vector_matrix(
    op: str, dims: Mapping[str, Any], matrix: tuple[Any, ...]
) -> tuple[np.ndarray, ...]:
    """Return batch, m, n and k as a CPU's vectors see them, arrays [n].

    Vectors run over output channels. A depthwise convolution has one in every group, so they run
    over the groups: it isn't as many products as it has channels, but one of all of them.
    """
    batch, m, n, k = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in matrix))
    if op != "conv2d":
        return batch, m, n, k
    depthwise = is_depthwise(dims)
    return np.where(depthwise, 1.0, batch), m, np.where(depthwise, batch, n), k


def is_depthwise(dims: Mapping[str, Any]) -> Any:
    """Tell which convolutions have one output channel in every group, [n]."""
    return (dims["groups"] > 1) & (dims["groups"] == dims["k"])


def best_tile(batch: Any, m: Any, n: Any, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return waves and utilisation of the tile that finishes first, arrays [n]."""
    waves = tile_waves(batch, m, n, slots)
    tiles = np.array(GPU_TILES, dtype=float)
    area = tiles.prod(axis=1)[:, None]
    # Small tiles reuse less of what they load; libraries pick them only to fill the device.
    slowdown = (1 + 32 / tiles).sum(axis=1)[:, None] - 1
    pick = np.argmin(waves * area * slowdown, axis=0)
    taken = np.take_along_axis(waves, pick[None], axis=0)[0]
    return taken, batch * m * n / (taken * slots * area[pick, 0])


def tile_waves(batch: Any, m: Any, n: Any, slots: int) -> np.ndarray:
    """Return the waves that each of ``GPU_TILES`` takes, [tiles, n]."""
    return np.stack(
        [ceil_div(batch * ceil_div(m, a) * ceil_div(n, b), slots) for a, b in GPU_TILES]
    )
