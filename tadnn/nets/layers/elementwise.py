"""Activations and elementwise arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchFunction, TorchModule


def rows_cols(shape: Shape) -> tuple[int, int]:
    """Return a tensor seen as rows x cols: images per channel, everything else by the last axis."""
    if len(shape) == 4:
        return shape[0] * shape[1], shape[2] * shape[3]
    return math.prod(shape[:-1]), shape[-1]


@dataclass(frozen=True)
class ReLU(Layer):
    """max(x, 0)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.ReLU`` (not in place, so that it may stand anywhere)."""
        return TorchModule("ReLU")

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one relu."""
        return (Kernel("relu", rows_cols(shapes[0]), dtype),)


@dataclass(frozen=True)
class Add(Layer):
    """The sum of two tensors of one shape: a residual connection."""

    arity: ClassVar[int] = 2

    def infer(self, *shapes: Shape) -> Shape:
        """Return the common shape."""
        first, second = shapes
        if first != second:
            raise ShapeError(f"adds two inputs of one shape; got {list(first)} and {list(second)}")
        return first

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.add``."""
        return TorchFunction("add")

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one add."""
        return (Kernel("add", rows_cols(shapes[0]), dtype),)
