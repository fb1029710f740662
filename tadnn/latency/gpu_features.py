"""What a predictor is told about a GPU's kernel.

Natural logarithms of microseconds (arithmetic at peak, memory at full bandwidth), and of what
each candidate tile wastes, in waves and at the edges; logarithms to base two of all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tadnn.kernels import OPS
from tadnn.latency.batch import KernelBatch
from tadnn.latency.quantization import GPU_TILES, ceil_div, tile_waves
from tadnn.latency.tile_network import Places

COMPUTE: Final = "ln compute us"
MEMORY: Final = "ln memory us"
_WASTE: Final = "ln waste "
# Multiples that tensor cores, vector loads and Winograd's tiles ask for.
_CHANNELS: Final = (4, 8, 16, 32)
_PIXELS: Final = (2, 4, 6, 8, 16, 32)
# These tell one device from another: a fit of several leaves them to the physical part.
_OF_DEVICE: Final = ("log ridge", "log bytes in L2", "log waves")


def gpu_columns(batch: KernelBatch) -> dict[str, np.ndarray]:
    """Return features by name, [n] each; names depend on the op alone."""
    device, dims = batch.device, batch.dims
    one = np.ones(len(batch))
    moved = np.log(batch.bytes_moved / (device.bandwidth_gbps * 1e3))
    columns = {"log bytes in L2": np.log2(batch.bytes_moved / (device.l2_mb * 1e6))}
    matrix = OPS[batch.op].matrix(dims)
    output = np.asarray(OPS[batch.op].output(dims), dtype=float)
    columns["log output"] = np.log2(output)
    if matrix is None:
        waves, used = batch.occupancy
        columns["log waves"] = np.log2(waves)
        return columns | {"ln waste blocks": -np.log(used), COMPUTE: moved, MEMORY: moved}
    groups, m, n, k = (np.asarray(size, dtype=float) * one for size in matrix)
    work = np.log(batch.flops / (batch.peak_tflops * 1e6))
    columns["log ridge"] = (work - moved) / np.log(2)
    columns |= {"log m": np.log2(m), "log n": np.log2(n), "log k": np.log2(k)}
    if batch.op in ("conv2d", "conv_transpose2d"):
        columns |= _convolution(batch)
    else:
        for name, values in (("n", n), ("k", k)):
            columns[f"padding {name} to 8"] = np.log2(ceil_div(values, 8) * 8 / values)
    waves = tile_waves(groups, m, n, device.units)
    for (tile_m, tile_n), taken in zip(GPU_TILES, waves, strict=True):
        area = taken * device.units * tile_m * tile_n
        columns[f"ln waste {tile_m}x{tile_n}"] = np.log(area / (groups * m * n))
    return columns | {COMPUTE: work, MEMORY: moved}


def _convolution(batch: KernelBatch) -> dict[str, np.ndarray]:
    dims = batch.dims
    pixels = np.asarray(OPS[batch.op].output(dims), dtype=float) / dims["n"] / dims["k"]
    columns = {
        "log input": np.log2(dims["n"] * dims["c"] * dims["h"] * dims["w"]),
        "log weights": np.log2(dims["k"] * dims["c"] / dims["groups"] * dims["r"] * dims["s"]),
        "log pixels": np.log2(pixels),
        "padded": (dims["pad"] > 0).astype(float),
    }
    edge = np.round(np.sqrt(pixels))
    for name, values, widths in (
        ("c", dims["c"], _CHANNELS),
        ("k", dims["k"], _CHANNELS),
        ("edge", edge, _PIXELS),
    ):
        for width in widths:
            columns[f"padding {name} to {width}"] = np.log2(
                ceil_div(values, width) * width / values
            )
    return columns


def network_places(names: Sequence[str], several: bool) -> Places:
    """Return where a network finds what in these features; ln core and device follow them.

    A network that is to serve a device it never saw is told nothing that merely tells the
    devices apart: with a handful of them it would learn their names.
    """
    waste = [i for i, name in enumerate(names) if name.startswith(_WASTE)]
    hidden = {COMPUTE, MEMORY}
    if several:
        hidden |= {*_OF_DEVICE, *(names[i] for i in waste)}
    body = [i for i, name in enumerate(names) if name not in hidden]
    end = len(names)
    return Places(body, waste, names.index(COMPUTE), names.index(MEMORY), end, end + 1, end + 6)
