"""Latency against one size of a kernel: the staircase."""

from __future__ import annotations

from collections.abc import Sequence

from tadnn.kernels import Kernel
from tadnn.latency.model import LatencyModel
from tadnn.latency.prediction import KernelPredictions

_WIDTHS = {"conv2d": "k", "linear": "n"}


def width_of(kernel: Kernel) -> str | None:
    """Return the size that is a kernel's width and may change alone; None where none may.

    In a grouped or depthwise convolution input and output channels change together.
    """
    alone = kernel.dims.get("groups", 1) == 1
    return _WIDTHS.get(kernel.op) if alone else None


def sweep(
    model: LatencyModel, kernel: Kernel, size: str, values: Sequence[int]
) -> KernelPredictions:
    """Predict a kernel at each value of one of its sizes, [n].

    Raises:
        KernelError: no such size, or a value that no such kernel has.
    """
    return model.predict([kernel.replace(**{size: value}) for value in values])
