"""What a predictor is told about a kernel.

Beside sizes, FLOPs and bytes (logarithms), it gets the quantities in which
hardware rounds up: padded vector lanes, tiles and waves. They make staircases
and saw-teeth smooth functions of the features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tadnn.hardware import DeviceSpec
from tadnn.kernels import DTYPE_BYTES, EPILOGUES, OPS, Kernel, Op
from tadnn.latency.quantization import (
    GPU_TILES,
    ceil_div,
    lanes_of,
    occupancy,
    peak_of,
    slots_of,
)


@dataclass(frozen=True)
class KernelBatch:
    """Kernels of one op on one device in one setting, as arrays.

    Attributes:
        op: the op they share.
        dims: arrays [n] by size name: whole numbers, float64 so that products don't overflow.
        dtype: the dtype they share.
        device: where they run.
        threads: CPU threads of one operator.
        flops: [n].
        bytes_moved: [n].
        epilogues: 0 or 1 per part that ``EPILOGUES`` knows, in its order, [n, parts].
    """

    op: str
    dims: Mapping[str, np.ndarray]
    dtype: str
    device: DeviceSpec
    threads: int
    flops: np.ndarray
    bytes_moved: np.ndarray
    epilogues: np.ndarray

    @classmethod
    def of(cls, kernels: Sequence[Kernel], device: DeviceSpec, threads: int) -> KernelBatch:
        """Collect kernels that share op and dtype (at least one)."""
        op, dtype = kernels[0].op, kernels[0].dtype
        table = np.array([k.sizes for k in kernels], dtype=float)
        dims = {name: table[:, i] for i, name in enumerate(OPS[op].sizes)}
        if any(k.extra for k in kernels):
            names = OPS[op].optional
            dims |= {name: np.array([k.dim(name) for k in kernels], dtype=float) for name in names}
        parts = np.array([[part in k.epilogue for part in EPILOGUES] for k in kernels], dtype=float)
        extra = parts @ np.array(list(EPILOGUES.values()), dtype=float)
        moved = OPS[op].read(dims) + (1 + extra) * OPS[op].output(dims)
        flops = np.asarray(OPS[op].flops(dims), dtype=float)
        return cls(op, dims, dtype, device, threads, flops, moved * DTYPE_BYTES[dtype], parts)

    def __len__(self) -> int:
        return len(self.flops)

    @cached_property
    def occupancy(self) -> tuple[np.ndarray, np.ndarray]:
        """Waves and utilisation, [n] each."""
        return occupancy(self.op, self.dims, self.device, self.dtype, self.threads)

    @cached_property
    def roofline(self) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds of arithmetic, rounded up to whole waves and vectors, and of memory; [n].

        Where no matrix product says how the arithmetic is cut up, nothing is rounded.
        """
        device = self.device
        share = slots_of(device, self.threads) / device.units
        compute = self.flops / (peak_of(device, self.dtype) * share * 1e6)
        if OPS[self.op].matrix(self.dims) is not None:
            compute = compute / self.occupancy[1]
        return compute, self.bytes_moved / (device.bandwidth_gbps * 1e3)


def feature_matrix(batch: KernelBatch, with_device: bool) -> tuple[list[str], np.ndarray]:
    """Return the features' names and values, [n, d].

    Names and order depend on the op, the kind of device and ``with_device`` alone,
    so that one fit serves several devices.

    Args:
        batch: the kernels.
        with_device: whether facts of the device are features too (models of several).
    """
    columns: dict[str, np.ndarray] = {}
    # Optional sizes show in FLOPs and bytes only, so that a fit's features stay the same.
    for name in OPS[batch.op].sizes:
        columns[f"log {name}"] = np.log2(np.maximum(batch.dims[name], 0.5))
    columns["log bytes"] = np.log2(batch.bytes_moved)
    if type(OPS[batch.op]).flops is not Op.flops:
        columns["log flops"] = np.log2(np.maximum(batch.flops, 1))
        columns["log intensity"] = columns["log flops"] - columns["log bytes"]
    for index, part in enumerate(EPILOGUES):
        columns[f"epilogue {part}"] = batch.epilogues[:, index]
    columns |= _quantized(batch)
    if with_device:
        columns |= _device_columns(batch)
    return list(columns), np.stack(list(columns.values()), axis=1)


def _quantized(batch: KernelBatch) -> dict[str, np.ndarray]:
    matrix = OPS[batch.op].matrix(batch.dims)
    lanes = lanes_of(batch.device, batch.dtype)
    slots = slots_of(batch.device, batch.threads)
    waves, utilisation = batch.occupancy
    columns = {"log waves": np.log2(waves), "log utilisation": np.log2(utilisation)}
    if matrix is None:
        return columns
    groups, m, n, k = (np.asarray(x) for x in matrix)
    columns |= {"log m": np.log2(m), "log n": np.log2(n), "log k": np.log2(k)}
    for name, values in (("m", m), ("n", n), ("k", _contracted(batch, k))):
        for vectors in (0.5, 1, 2, 4):
            width = max(1, int(lanes * vectors))
            columns[f"padding {name} to {vectors} vectors"] = _padding(values, width)
    if batch.device.kind == "gpu":
        for tile_m, tile_n in GPU_TILES:
            blocks = groups * ceil_div(m, tile_m) * ceil_div(n, tile_n)
            tile_waves = ceil_div(blocks, slots)
            columns[f"log tail {tile_m}x{tile_n}"] = np.log2(tile_waves * slots / blocks)
            columns[f"log waves {tile_m}x{tile_n}"] = np.log2(tile_waves)
    else:
        # Channel blocks that don't divide among the cores leave one waiting.
        columns["imbalance"] = _padding(ceil_div(n, lanes), slots)
    return columns


def _contracted(batch: KernelBatch, k: np.ndarray) -> np.ndarray:
    # Convolutions vectorise over channels, not over channels x window.
    return batch.dims["c"] // batch.dims["groups"] if batch.op == "conv2d" else k


def _padding(values: np.ndarray, width: int) -> np.ndarray:
    """Return log2 of how much rounding up to a multiple of ``width`` adds."""
    padding: np.ndarray = np.log2(ceil_div(values, width) * width / values)
    return padding


def _device_columns(batch: KernelBatch) -> dict[str, np.ndarray]:
    device = batch.device
    facts = {
        "log units": np.log2(device.units),
        "log clock": np.log2(max(device.clock_mhz, 1.0)),
        "log peak": np.log2(peak_of(device, batch.dtype)),
        "log bandwidth": np.log2(device.bandwidth_gbps),
        "log cache": np.log2(max(device.l2_mb, 0.1)),
    }
    return {name: np.full(len(batch), fact) for name, fact in facts.items()}
