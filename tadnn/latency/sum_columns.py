"""What kernels are compared by where only sums of them were measured.

A few columns, the same for every op, each scaled so that one is about as far as a kernel's
efficiency carries: how long it is, arithmetic against memory, sizes of its product, alignment.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tadnn.kernels import OPS
from tadnn.latency.batch import KernelBatch
from tadnn.latency.kind_factors import kind_indices, kinds_of
from tadnn.latency.quantization import ceil_div

COLUMNS: Final = 11
_ALIGNED: Final = 8
"""Values of 16 bits that a vector load and a tensor core's step take."""


def process_kinds(batch: KernelBatch) -> list[str]:
    """Return what kind each kernel is of, dtype included, [n]."""
    names = [f"{kind} {batch.dtype}" for kind in kinds_of(batch.op)]
    return [names[i] for i in kind_indices(batch).tolist()]


def process_columns(batch: KernelBatch) -> np.ndarray:
    """Return the columns of kernels of one op, [n, COLUMNS]."""
    compute, memory = batch.roofline
    columns = np.zeros((len(batch), COLUMNS))
    columns[:, 0] = np.log(compute + memory) / 2
    matrix = OPS[batch.op].matrix(batch.dims)
    if matrix is None:
        _of_memory(batch, columns)
        return columns
    groups, m, n, k = (np.asarray(size, dtype=float) for size in matrix)
    # Channels are read in runs; a window's values don't lie together.
    run = batch.dims["c"] / groups if "c" in batch.dims else k
    columns[:, 1] = np.log(compute / memory)
    columns[:, 2] = np.log2(n) / 2
    columns[:, 3] = np.log2(k) / 2
    columns[:, 4] = np.log2(m) / 3
    columns[:, 5] = np.log2(groups) / 2
    columns[:, 6] = 3 * np.log2(ceil_div(n, _ALIGNED) * _ALIGNED / n)
    columns[:, 7] = 3 * np.log2(ceil_div(run, _ALIGNED) * _ALIGNED / run)
    if "r" in batch.dims:
        columns[:, 8] = np.log2(batch.dims["r"] * batch.dims["s"]) / 2
        columns[:, 9] = np.log2(batch.dims["stride"])
        columns[:, 10] = batch.dims.get("dilation", 1) * 1.0 > 1
    elif "d" in batch.dims:
        columns[:, 8] = np.log2(batch.dims["d"]) / 2
    return columns


def _of_memory(batch: KernelBatch, columns: np.ndarray) -> None:
    """Fill in the columns of kernels that only move memory: their innermost sizes, windows."""
    windows = ("r", "s", "stride", "pad", "scale", "groups")
    sizes = [batch.dims[name] for name in OPS[batch.op].sizes if name not in windows]
    for column, size in zip((1, 2, 3), reversed(sizes), strict=False):
        columns[:, column] = np.log2(np.maximum(size, 1)) / 2
    columns[:, 7] = sizes[-1] % _ALIGNED != 0
    if "r" in batch.dims:
        columns[:, 8] = np.log2(batch.dims["r"] * batch.dims["s"]) / 2
        columns[:, 9] = np.log2(batch.dims["stride"])
