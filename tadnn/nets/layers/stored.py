"""Stored values beside those that a layer of its own would learn, and looking values up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchComposite


@dataclass(frozen=True)
class Stored(Layer):
    """A stored tensor, whatever the input's values are: scales, tables, masks, indices; a view.

    Args:
        shape: the sizes.
        per_input: whether it is repeated for every input of a batch: (n, ...) of the input
            gives (n shape[0], ...); not copied.
        trained: whether it is a parameter; else it is a buffer.
        kind: what it holds.
    """

    shape: tuple[int, ...]
    per_input: bool = False
    trained: bool = True
    kind: str = "float"

    is_view: ClassVar[bool] = True  # no memory but the weights', and nothing is launched
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"kind": ("float", "int64", "bool")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trained and self.kind != "float":
            raise ShapeError(f"what is trained is float; got {self.kind}")

    def infer(self, *shapes: Shape) -> Shape:
        """Return the sizes."""
        if self.per_input:
            return (shapes[0][0] * self.shape[0], *self.shape[1:])
        return self.shape

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Stored``."""
        return TorchComposite("Stored", (self.shape, self.per_input, self.trained, self.kind))

    def parameters(self, *shapes: Shape) -> int:
        """Return the values, if trained."""
        return math.prod(self.shape) * self.trained

    def buffers(self, *shapes: Shape) -> int:
        """Return the values, if not trained."""
        return math.prod(self.shape) * (not self.trained)


@dataclass(frozen=True)
class Gather(Layer):
    """Values at stored indices of one dimension, such as the tokens in another order; a copy.

    Args:
        dim: which dimension, counted from the front; not the batch's.
        count: how many indices.
    """

    dim: int
    count: int

    def infer(self, *shapes: Shape) -> Shape:
        """Return the shape with ``count`` values along the dimension."""
        (shape,) = shapes
        if self.dim >= len(shape):
            raise ShapeError(f"dim is one after the batch's, of {list(shape)}; got {self.dim}")
        return (*shape[: self.dim], self.count, *shape[self.dim + 1 :])

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Gather``, which calls ``index_select``."""
        return TorchComposite("Gather", (self.dim, self.count))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one embedding: rows are what lies together in memory."""
        (shape,) = shapes
        cols = math.prod(shape[self.dim + 1 :])
        rows = math.prod(self.infer(shape)) // cols
        count = math.prod(shape[: self.dim + 1])
        return (Kernel("embedding", (rows, cols, count), dtype),)

    def buffers(self, *shapes: Shape) -> int:
        """Return the indices."""
        return self.count
