"""Pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel, conv_out
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank


@dataclass(frozen=True)
class MaxPool2d(Layer):
    """The maximum of every square window."""

    kernel: int
    stride: int
    padding: int = 0

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding"})

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, p, q)."""
        (shape,) = shapes
        need_rank(shape, 4)
        n, c, h, w = shape
        if 2 * self.padding > self.kernel:
            raise ShapeError(
                f"padding is at most half the window; got {self.padding} for {self.kernel}"
            )
        p = conv_out(h, self.kernel, self.stride, self.padding)
        q = conv_out(w, self.kernel, self.stride, self.padding)
        if p < 1 or q < 1:
            raise ShapeError(f"the window ({self.kernel}) must fit the image; got {h}x{w}")
        return n, c, p, q

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.MaxPool2d``."""
        return TorchModule(
            "MaxPool2d", (self.kernel,), {"stride": self.stride, "padding": self.padding}
        )

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one max_pool2d."""
        sizes = (*shapes[0], self.kernel, self.kernel, self.stride, self.padding)
        return (Kernel("max_pool2d", sizes, dtype),)


@dataclass(frozen=True)
class GlobalAvgPool(Layer):
    """The mean of every channel: (n, c, h, w) -> (n, c, 1, 1)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, 1, 1)."""
        (shape,) = shapes
        need_rank(shape, 4)
        return (*shape[:2], 1, 1)

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.AdaptiveAvgPool2d(1)``."""
        return TorchModule("AdaptiveAvgPool2d", (1,))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one global_avg_pool."""
        return (Kernel("global_avg_pool", shapes[0], dtype),)
