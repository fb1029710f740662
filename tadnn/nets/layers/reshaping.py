"""Layers that compute nothing: other shapes of the same values, and identities.

What launches nothing: all but Permute give a view of their input, which is free as long as
the input's memory is in order. That holds for everything that a layer computes, in the layout
``nchw`` (under ``nhwc``, torch copies an image before it reshapes it; that copy isn't
priced). Permute therefore puts memory in order itself, which is the copy that eager torch
would otherwise make inside of what comes next, and launches that one copy. Moving axes of
size 1 only doesn't change the order of memory: then nothing is launched.
"""

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
    need_rank,
)


@dataclass(frozen=True)
class Identity(Layer):
    """The input itself."""

    is_view: ClassVar[bool] = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Identity``."""
        return TorchModule("Identity")


@dataclass(frozen=True)
class Dropout(Layer):
    """Zeroes values with probability ``p`` while training; the input itself at inference."""

    p: float = 0.5

    is_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.p <= 1:
            raise ShapeError(f"p of Dropout is a probability, 0 to 1; got {self.p}")

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Dropout``."""
        return TorchModule("Dropout", (self.p,))


@dataclass(frozen=True)
class Flatten(Layer):
    """(n, ...) -> (n, everything else); a view."""

    is_view: ClassVar[bool] = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, product of the rest)."""
        (shape,) = shapes
        if len(shape) < 2:
            raise ShapeError(f"takes an input of at least 2 dimensions; got {list(shape)}")
        return shape[0], math.prod(shape[1:])

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.flatten`` from dimension 1 on."""
        return TorchFunction("flatten", {"start_dim": 1})


@dataclass(frozen=True)
class Reshape(Layer):
    """(n, ...) -> (n, *shape); a view.

    Args:
        shape: all sizes after the batch's; one may be -1: what is left.
    """

    shape: tuple[int, ...]

    is_view: ClassVar[bool] = True
    may_be_negative: ClassVar[frozenset[str]] = frozenset({"shape"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < 1 and size != -1 for size in self.shape) or self.shape.count(-1) > 1:
            raise ShapeError(
                f"shape of Reshape has positive sizes, one of which may be -1; got {self.shape}"
            )

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, *shape)."""
        n, *rest = shapes[0]
        values, known = math.prod(rest), math.prod(size for size in self.shape if size > 0)
        if values % known or (-1 not in self.shape and values != known):
            raise ShapeError(
                f"keeps the number of values; got {rest} to {list(self.shape)}, after the batch's"
            )
        return n, *(values // known if size == -1 else size for size in self.shape)

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.reshape`` with the batch's size open."""
        return TorchFunction("reshape", {"shape": (-1, *self.infer(*shapes)[1:])})


@dataclass(frozen=True)
class Permute(Layer):
    """The dimensions in another order, memory too.

    Args:
        dims: the input's dimension at every place; the batch's, 0, comes first as a rule.
    """

    dims: tuple[int, ...]

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"dims"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.dims) != list(range(len(self.dims))):
            raise ShapeError(
                f"dims of Permute has each of 0 to {len(self.dims) - 1} once; got {self.dims}"
            )

    def infer(self, *shapes: Shape) -> Shape:
        """Return the sizes in the new order."""
        (shape,) = shapes
        need_rank(shape, len(self.dims))
        return tuple(shape[dim] for dim in self.dims)

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Permute``, which calls ``permute`` and ``contiguous``."""
        return TorchComposite("Permute", (self.dims,))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one permute, or nothing where memory keeps its order.

        Kernels swap two runs of dimensions, between ones that stay: any order in which
        the dimensions rotate. Others are priced as the rotation with the same first one.
        """
        (shape,) = shapes
        dims = [dim for dim in self.dims if shape[dim] > 1]
        places = sorted(dims)
        if dims == places:
            return ()
        moved = [i for i, (dim, place) in enumerate(zip(dims, places, strict=True)) if dim != place]
        first, last = moved[0], moved[-1] + 1
        cut = places.index(dims[first])
        sizes = [
            math.prod(shape[dim] for dim in run)
            for run in (places[:first], places[first:cut], places[cut:last], places[last:])
        ]
        if 0 not in places:
            sizes[0] *= shape[0]
        return (Kernel("permute", tuple(sizes), dtype),)


@dataclass(frozen=True)
class Select(Layer):
    """One index of one dimension, which goes away: such as the class token; a view."""

    dim: int
    index: int

    is_view: ClassVar[bool] = True
    may_be_negative: ClassVar[frozenset[str]] = frozenset({"dim", "index"})

    def infer(self, *shapes: Shape) -> Shape:
        """Return the shape without the dimension."""
        (shape,) = shapes
        dim = axis(shape, self.dim)
        if not -shape[dim] <= self.index < shape[dim]:
            raise ShapeError(
                f"index is within dimension {self.dim} of {list(shape)}; got {self.index}"
            )
        return (*shape[:dim], *shape[dim + 1 :])

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.select``."""
        return TorchFunction("select", {"dim": self.dim, "index": self.index})
