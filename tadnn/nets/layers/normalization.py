"""Normalisations, as they run at inference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank, rows_cols_last


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


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Normalisation over the last dimension (channels of an image: Permute around it)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return _at_least_2(shapes[0])

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.LayerNorm``."""
        return TorchModule("LayerNorm", (shapes[0][-1],))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one layer_norm."""
        return (Kernel("layer_norm", rows_cols_last(shapes[0]), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return scale and shift per feature."""
        return 2 * shapes[0][-1]


@dataclass(frozen=True)
class RMSNorm(Layer):
    """Division by the root mean square over the last dimension."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return _at_least_2(shapes[0])

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.RMSNorm``."""
        return TorchModule("RMSNorm", (shapes[0][-1],))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one rms_norm."""
        return (Kernel("rms_norm", rows_cols_last(shapes[0]), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return the scale per feature."""
        return shapes[0][-1]


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Normalisation over each group of channels of each image or sequence (n, c, ...)."""

    groups: int

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        shape = _at_least_2(shapes[0])
        if shape[1] % self.groups:
            raise ShapeError(
                f"groups divide the channels; got {shape[1]} channels in {self.groups} groups"
            )
        return shape

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.GroupNorm``."""
        return TorchModule("GroupNorm", (self.groups, shapes[0][1]))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one group_norm; all but images are one pixel high."""
        n, c, *rest = shapes[0]
        h, w = rest if len(rest) == 2 else (1, math.prod(rest))
        return (Kernel("group_norm", (n, c, h, w, self.groups), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return scale and shift per channel."""
        return 2 * shapes[0][1]


def _at_least_2(shape: Shape) -> Shape:
    if len(shape) < 2:
        raise ShapeError(f"takes an input of at least 2 dimensions; got {list(shape)}")
    return shape
