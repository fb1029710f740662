"""Matrix products with weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchModule


@dataclass(frozen=True)
class Linear(Layer):
    """A fully connected layer over the last dimension.

    Args:
        out: output features.
        bias: whether a bias is added.
    """

    out: int
    bias: bool = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return (..., out)."""
        (shape,) = shapes
        if len(shape) < 2:
            raise ShapeError(f"takes an input of at least 2 dimensions; got {list(shape)}")
        return (*shape[:-1], self.out)

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Linear``."""
        kwargs = {} if self.bias else {"bias": False}
        return TorchModule("Linear", (shapes[0][-1], self.out), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one linear: m = rows, n = out, k = input features."""
        (shape,) = shapes
        sizes = (math.prod(shape[:-1]), self.out, shape[-1])
        return (Kernel("linear", sizes, dtype, ("bias",) if self.bias else ()),)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        return self.out * (shapes[0][-1] + self.bias)
