"""Which size of a kernel is a width."""

from __future__ import annotations

from tadnn.kernels import Kernel

_WIDTHS = {"conv2d": "k", "linear": "n"}


def width_of(kernel: Kernel) -> str | None:
    """Return the size that is a kernel's width and may change alone; None where none may.

    In a grouped or depthwise convolution input and output channels change together.
    """
    alone = kernel.dims.get("groups", 1) == 1
    return _WIDTHS.get(kernel.op) if alone else None
