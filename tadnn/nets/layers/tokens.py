"""What makes tokens: embeddings and learned tokens. (n, t, d): n sequences of t tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchComposite, TorchModule, need_rank


@dataclass(frozen=True)
class Embedding(Layer):
    """A learned vector for every whole number: (n, t) -> (n, t, width).

    Args:
        count: the vocabulary: inputs are from 0 to ``count - 1``.
        width: values per vector.
    """

    count: int
    width: int

    takes: ClassVar[str] = "int64"

    @property
    def input_limit(self) -> int:
        """The vocabulary."""
        return self.count

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, t, width)."""
        (shape,) = shapes
        need_rank(shape, 2)
        return (*shape, self.width)

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Embedding``."""
        return TorchModule("Embedding", (self.count, self.width))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one embedding."""
        ((n, t),) = shapes
        return (Kernel("embedding", (n * t, self.width, self.count), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return the vectors' values."""
        return self.count * self.width


@dataclass(frozen=True)
class PositionEmbedding(Layer):
    """A learned vector added at every position: (n, t, d) -> (n, t, d)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        (shape,) = shapes
        need_rank(shape, 3)
        return shape

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``PositionEmbedding``."""
        return TorchComposite("PositionEmbedding", shapes[0][1:])

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one add_cols."""
        ((n, t, d),) = shapes
        return (Kernel("add_cols", (n, t * d), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return the vectors' values."""
        return shapes[0][1] * shapes[0][2]


@dataclass(frozen=True)
class ClassToken(Layer):
    """A learned token before the others: (n, t, d) -> (n, t + 1, d)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, t + 1, d)."""
        (shape,) = shapes
        need_rank(shape, 3)
        n, t, d = shape
        return n, t + 1, d

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``ClassToken``."""
        return TorchComposite("ClassToken", (shapes[0][2],))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one concat."""
        ((n, t, d),) = shapes
        return (Kernel("concat", (n, (t + 1) * d), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return the token's values."""
        return shapes[0][2]
