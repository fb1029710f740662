"""Latency against one size of a kernel: the staircase."""

from __future__ import annotations

from collections.abc import Sequence

from tadnn.kernels import Kernel
from tadnn.latency.model import KernelPredictions, LatencyModel

# The size that a layer's width is, by op.
WIDTH = {"conv2d": "k", "linear": "n"}


def sweep(
    model: LatencyModel, kernel: Kernel, size: str, values: Sequence[int]
) -> KernelPredictions:
    """Predict a kernel at each value of one of its sizes, [n].

    Raises:
        KernelError: no such size, or a value that no such kernel has.
    """
    return model.predict([kernel.replace(**{size: value}) for value in values])
