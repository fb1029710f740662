"""Normalisations, as they run at inference."""

from __future__ import annotations

from dataclasses import dataclass

from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank


@dataclass(frozen=True)
class BatchNorm2d(Layer):
    """Batch normalisation over (n, h, w) of each channel."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        (shape,) = shapes
        need_rank(shape, 4)
        return shape

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.BatchNorm2d``."""
        return TorchModule("BatchNorm2d", (shapes[0][1],))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one batch_norm."""
        return (Kernel("batch_norm", shapes[0], dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return scale and shift per channel."""
        return 2 * shapes[0][1]

    def buffers(self, *shapes: Shape) -> int:
        """Return running mean and variance per channel, and the batch counter."""
        return 2 * shapes[0][1] + 1
