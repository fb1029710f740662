"""What an op of the kernel vocabulary states.

The formulas are plain arithmetic on the op's dimensions, so they work on Python
integers and, for batches of kernels, on integer arrays alike.

FLOPs count two per multiply-add of a matrix product or convolution. Elementwise
arithmetic, normalisation, pooling and bias are priced by the memory they move
and count no FLOPs, the convention of torch's own counter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

Dims = Mapping[str, Any]  # int, or an integer array with one entry per kernel


class Op(ABC):
    """An op of the kernel vocabulary.

    ``sizes`` are its dimensions in the order of the key; ``may_be_zero`` names
    those that need not be positive. ``optional`` are dimensions that a key has only
    where they differ from what stands beside their name here: another dimension,
    or a number.
    """

    sizes: ClassVar[tuple[str, ...]]
    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    optional: ClassVar[Mapping[str, str | int]] = {}

    @abstractmethod
    def output(self, d: Dims) -> Any:
        """Return the number of output elements."""

    @abstractmethod
    def read(self, d: Dims) -> Any:
        """Return the number of input and weight elements read once."""

    def flops(self, d: Dims) -> Any:
        """Return the FLOPs (two per multiply-add)."""
        return 0 * self.output(d)

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any] | None:
        """Return the (batch, m, n, k) of the equivalent matrix product, or None.

        A convolution is the implicit GEMM: m output pixels, n output channels,
        k = channels per group x kernel area, batch = groups.
        """
        return None

    def fault(self, d: Mapping[str, int]) -> str:
        """Return which rule these sizes break, and the sizes; nothing where they are fine."""
        return ""


class MatrixOp(Op):
    """An op whose FLOPs are those of its matrix product."""

    @abstractmethod
    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        """Return the (batch, m, n, k) of the equivalent matrix product."""

    def flops(self, d: Dims) -> Any:
        """Return two per multiply-add."""
        batch, m, n, k = self.matrix(d)
        return 2 * batch * m * n * k


def conv_out(size: Any, kernel: Any, stride: Any, pad: Any, dilation: Any = 1) -> Any:
    """Return the output length of a convolution or pooling along one axis."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def pool_out(size: Any, kernel: Any, stride: Any, pad: Any, ceil: Any = 0) -> Any:
    """Return the output length of a pooling along one axis.

    With ``ceil`` = 1 a last window that leaves the padded image counts too, unless it
    starts beyond the image and its left padding.
    """
    out = (size + 2 * pad - kernel + ceil * (stride - 1)) // stride + 1
    return out - ceil * ((out - 1) * stride >= size + pad)


def transposed_out(
    size: Any, kernel: Any, stride: Any, pad: Any, out_pad: Any, dilation: Any = 1
) -> Any:
    """Return the output length of a transposed convolution along one axis."""
    return (size - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1 + out_pad


def across(d: Dims, name: str) -> Any:
    """Return the horizontal value of a size that may differ from the vertical one."""
    return d.get(f"{name}_w", d[name])


def got(d: Mapping[str, int], *names: str) -> str:
    """Return the end of a message: the values received."""
    shown = [*names, *(f"{name}_w" for name in names if f"{name}_w" in d)]
    return f"got {', '.join(f'{name}={d[name]}' for name in shown)}"
