"""Elementwise arithmetic, and softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import (
    Layer,
    Shape,
    TorchComposite,
    TorchFunction,
    TorchModule,
    axis,
    rows_cols,
)


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


@dataclass(frozen=True)
class Mul(Layer):
    """The product of two tensors: of one shape, or an image and a number per channel.

    The number per channel, (n, c, 1, 1), comes second.
    """

    arity: ClassVar[int] = 2

    def infer(self, *shapes: Shape) -> Shape:
        """Return the first input's shape."""
        first, second = shapes
        if first != second and not _per_channel(first, second):
            raise ShapeError(
                f"multiplies two inputs of one shape, or [n, c, h, w] by [n, c, 1, 1]; "
                f"got {list(first)} and {list(second)}"
            )
        return first

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.mul``."""
        return TorchFunction("mul")

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one mul, or one mul_rows for a number per channel."""
        op = "mul" if shapes[0] == shapes[1] else "mul_rows"
        return (Kernel(op, rows_cols(shapes[0]), dtype),)


def _per_channel(first: Shape, second: Shape) -> bool:
    return len(first) == 4 and second == (*first[:2], 1, 1)


@dataclass(frozen=True)
class Softmax(Layer):
    """Exponentials over their sum along one dimension; not the batch's."""

    dim: int = -1

    may_be_negative: ClassVar[frozenset[str]] = frozenset({"dim"})

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        axis(shapes[0], self.dim)
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Softmax``."""
        return TorchModule("Softmax", (), {"dim": self.dim})

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one softmax; it is priced as if along the last dimension."""
        (shape,) = shapes
        cols = shape[axis(shape, self.dim)]
        return (Kernel("softmax", (math.prod(shape) // cols, cols), dtype),)


@dataclass(frozen=True)
class LogSoftmax(Softmax):
    """The logarithm of softmax along one dimension, computed as one; not the batch's."""

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.LogSoftmax``."""
        return TorchModule("LogSoftmax", (), {"dim": self.dim})


@dataclass(frozen=True)
class Concat(Layer):
    """Two or more tensors after each other along one dimension; not the batch's."""

    dim: int = 1

    arity: ClassVar[int] = 2
    variadic: ClassVar[bool] = True
    may_be_negative: ClassVar[frozenset[str]] = frozenset({"dim"})

    def infer(self, *shapes: Shape) -> Shape:
        """Return the first input's shape with the sizes along ``dim`` added up."""
        first = shapes[0]
        dim = axis(first, self.dim)
        rests = {(*shape[:dim], None, *shape[dim + 1 :]) for shape in shapes}
        if len(rests) != 1:
            raise ShapeError(
                f"concatenates inputs that differ in dimension {self.dim} only; "
                f"got {' and '.join(str(list(shape)) for shape in shapes)}"
            )
        return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Concat``, which calls ``torch.cat``."""
        return TorchComposite("Concat", (self.dim,))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one concat: a row is what lies together in the output."""
        shape = self.infer(*shapes)
        rows = math.prod(shape[: axis(shape, self.dim)])
        return (Kernel("concat", (rows, math.prod(shape) // rows), dtype),)
