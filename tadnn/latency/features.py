"""What a predictor is told about a kernel.

Beside sizes, FLOPs and bytes (logarithms), it gets the quantities in which
hardware rounds up: padded vector lanes, tiles and waves. They make staircases
and saw-teeth smooth functions of the features.
"""

from __future__ import annotations

import numpy as np

from tadnn.kernels import EPILOGUES, OPS, Op
from tadnn.latency.batch import KernelBatch
from tadnn.latency.gpu_features import gpu_columns
from tadnn.latency.quantization import (
    ceil_div,
    is_depthwise,
    lanes_of,
    lanes_per_unit,
    slots_of,
    sustained_share,
    vector_matrix,
)


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
    columns |= _quantized(batch) if batch.device.kind == "cpu" else gpu_columns(batch)
    if with_device:
        columns |= device_columns(batch)
    return list(columns), np.stack(list(columns.values()), axis=1)


def _quantized(batch: KernelBatch) -> dict[str, np.ndarray]:
    matrix = OPS[batch.op].matrix(batch.dims)
    lanes = lanes_of(batch.device, batch.dtype)
    slots = slots_of(batch.device, batch.threads)
    waves, utilisation = batch.occupancy
    columns = {"log waves": np.log2(waves), "log utilisation": np.log2(utilisation)}
    if matrix is None:
        return columns
    _, m, n, k = vector_matrix(batch.op, batch.dims, matrix)
    columns |= {"log m": np.log2(m), "log n": np.log2(n), "log k": np.log2(k)}
    for name, values in (("m", m), ("n", n), ("k", _contracted(batch, n, k))):
        for vectors in (0.5, 1, 2, 4):
            width = max(1, int(lanes * vectors))
            columns[f"padding {name} to {vectors} vectors"] = _padding(values, width)
    # Channel blocks that don't divide among the cores leave one waiting.
    columns["imbalance"] = _padding(ceil_div(n, lanes), slots)
    return columns


def _contracted(batch: KernelBatch, n: np.ndarray, k: np.ndarray) -> np.ndarray:
    # Convolutions vectorise over channels, not over channels x window; depthwise ones read those
    # that they write.
    if batch.op != "conv2d":
        return k
    return np.where(is_depthwise(batch.dims), n, batch.dims["c"] // batch.dims["groups"])


def _padding(values: np.ndarray, width: int) -> np.ndarray:
    """Return log2 of how much rounding up to a multiple of ``width`` adds."""
    padding: np.ndarray = np.log2(ceil_div(values, width) * width / values)
    return padding


def device_columns(batch: KernelBatch) -> dict[str, np.ndarray]:
    """Return the device's facts, each a column of one value, [n]."""
    device = batch.device
    facts = {
        "log units": np.log2(device.units),
        "log clock": np.log2(max(device.clock_mhz, 1.0)),
        "log peak": np.log2(batch.peak_tflops),
        "log bandwidth": np.log2(device.bandwidth_gbps),
        "log cache": np.log2(max(device.l2_mb, 0.1)),
    }
    return _filled(facts, batch)


def likeness_columns(batch: KernelBatch) -> dict[str, np.ndarray]:
    """Return what tells which GPUs are alike, each a column of one value, [n].

    The order is part of what a fitted network stores. The first four were all there once was.
    """
    device = batch.device
    nominal = device_columns(batch)
    # L2 grew seven times from the V100 to the A100, and how much of its peak a product reaches
    # didn't change: it says nothing about which devices are alike.
    del nominal["log cache"]
    facts = {
        "ln sustained": np.log(sustained_share(device, batch.dtype, batch.math)),
        "capability": device.capability,
        "log lanes": np.log2(lanes_per_unit(device)),
    }
    return nominal | _filled(facts, batch)


def _filled(facts: dict[str, float], batch: KernelBatch) -> dict[str, np.ndarray]:
    return {name: np.full(len(batch), fact) for name, fact in facts.items()}
