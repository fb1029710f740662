"""What each kernel op computes and moves, as a plain table.

The formulas are plain arithmetic on the op's dimensions, so they work on Python
integers and, for batches of kernels, on integer arrays alike.

FLOPs count two per multiply-add of a matrix product or convolution. Elementwise
arithmetic, normalisation, pooling and bias are priced by the memory they move
and count no FLOPs, the convention of torch's own counter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

Dims = Mapping[str, Any]  # int, or an integer array with one entry per kernel

DTYPE_BYTES: Final = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}

MAX_SIZE: Final = 2**31 - 1
"""The greatest size of one dimension; products of two still fit integer arrays."""


def conv_out(size: Any, kernel: Any, stride: Any, pad: Any, dilation: Any = 1) -> Any:
    """Return the output length of a convolution or pooling along one axis."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


class Op(ABC):
    """An op of the kernel vocabulary.

    ``sizes`` are its dimensions in the order of the key; ``may_be_zero`` names
    those that need not be positive.
    """

    sizes: ClassVar[tuple[str, ...]]
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

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


class _Matrix(Op):
    def flops(self, d: Dims) -> Any:
        matrix = self.matrix(d)
        assert matrix is not None
        batch, m, n, k = matrix
        return 2 * batch * m * n * k


class _Conv2d(_Matrix):
    sizes = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation", "groups")
    may_be_zero = frozenset({"pad"})

    def pixels(self, d: Dims) -> Any:
        return conv_out(d["h"], d["r"], d["stride"], d["pad"], d["dilation"]) * conv_out(
            d["w"], d["s"], d["stride"], d["pad"], d["dilation"]
        )

    def output(self, d: Dims) -> Any:
        return d["n"] * d["k"] * self.pixels(d)

    def read(self, d: Dims) -> Any:
        weights = d["k"] * (d["c"] // d["groups"]) * d["r"] * d["s"]
        return d["n"] * d["c"] * d["h"] * d["w"] + weights

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        groups = d["groups"]
        return (
            groups,
            d["n"] * self.pixels(d),
            d["k"] // groups,
            d["c"] // groups * d["r"] * d["s"],
        )


class _Linear(_Matrix):
    sizes = ("m", "n", "k")

    def output(self, d: Dims) -> Any:
        return d["m"] * d["n"]

    def read(self, d: Dims) -> Any:
        return d["m"] * d["k"] + d["k"] * d["n"]

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        return (0 * d["m"] + 1, d["m"], d["n"], d["k"])


class _BatchedMatmul(_Matrix):
    sizes = ("b", "m", "n", "k")

    def output(self, d: Dims) -> Any:
        return d["b"] * d["m"] * d["n"]

    def read(self, d: Dims) -> Any:
        return d["b"] * (d["m"] * d["k"] + d["k"] * d["n"])

    def matrix(self, d: Dims) -> tuple[Any, Any, Any, Any]:
        return (d["b"], d["m"], d["n"], d["k"])


@dataclass(frozen=True)
class _Rowwise(Op):
    """Reads ``inputs`` tensors of rows x cols, writes one."""

    inputs: int = 1
    sizes: ClassVar[tuple[str, ...]] = ("rows", "cols")

    def output(self, d: Dims) -> Any:
        return d["rows"] * d["cols"]

    def read(self, d: Dims) -> Any:
        return self.inputs * d["rows"] * d["cols"]


class _BatchNorm(Op):
    sizes = ("n", "c", "h", "w")

    def output(self, d: Dims) -> Any:
        return d["n"] * d["c"] * d["h"] * d["w"]

    def read(self, d: Dims) -> Any:
        return d["n"] * d["c"] * d["h"] * d["w"] + 4 * d["c"]


class _MaxPool2d(Op):
    sizes = ("n", "c", "h", "w", "r", "s", "stride", "pad")
    may_be_zero = frozenset({"pad"})

    def output(self, d: Dims) -> Any:
        p = conv_out(d["h"], d["r"], d["stride"], d["pad"])
        q = conv_out(d["w"], d["s"], d["stride"], d["pad"])
        return d["n"] * d["c"] * p * q

    def read(self, d: Dims) -> Any:
        return d["n"] * d["c"] * d["h"] * d["w"]


class _GlobalAvgPool(Op):
    sizes = ("n", "c", "h", "w")

    def output(self, d: Dims) -> Any:
        return d["n"] * d["c"]

    def read(self, d: Dims) -> Any:
        return d["n"] * d["c"] * d["h"] * d["w"]


OPS: Final[dict[str, Op]] = {
    "conv2d": _Conv2d(),
    "linear": _Linear(),
    "bmm": _BatchedMatmul(),
    "relu": _Rowwise(),
    "add": _Rowwise(inputs=2),
    "batch_norm": _BatchNorm(),
    "max_pool2d": _MaxPool2d(),
    "global_avg_pool": _GlobalAvgPool(),
    "softmax": _Rowwise(),
    "layer_norm": _Rowwise(),
}

# What a fused epilogue reads beside the kernel's own output: elements per output element.
EPILOGUES: Final[dict[str, int]] = {"bias": 0, "relu": 0, "batch_norm": 0, "add": 1}
