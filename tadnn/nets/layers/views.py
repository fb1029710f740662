"""Views that any dimension may take part in, the batch's too: what traced modules are made of.

``Reshape`` and ``Select`` leave the batch's dimension alone; these need not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import (
    Layer,
    Shape,
    TorchComposite,
    TorchFunction,
    rows_cols_last,
)


@dataclass(frozen=True)
class View(Layer):
    """The same values in other dimensions, whichever of them the batch is part of; a view.

    Windows of an image are an example: (n windows, t, d) is ``View((-1, t, d))``.

    Args:
        shape: all sizes; the one that grows with the batch is -1, and no other is.
    """

    shape: tuple[int, ...]

    is_view: ClassVar[bool] = True
    may_be_negative: ClassVar[frozenset[str]] = frozenset({"shape"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < 1 and size != -1 for size in self.shape) or self.shape.count(-1) != 1:
            raise ShapeError(
                f"shape of View has positive sizes and a single -1, which holds the batch; "
                f"got {self.shape}"
            )

    def infer(self, *shapes: Shape) -> Shape:
        """Return the shape with what is left in the place of -1."""
        values, known = math.prod(shapes[0]), math.prod(size for size in self.shape if size > 0)
        if values % known:
            raise ShapeError(
                f"keeps the number of values; got {list(shapes[0])} to {list(self.shape)}"
            )
        return tuple(values // known if size == -1 else size for size in self.shape)

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.reshape``."""
        return TorchFunction("reshape", {"shape": self.shape})


@dataclass(frozen=True)
class Slice(Layer):
    """A run of indices along one dimension: one part of a split; a view.

    Args:
        dim: which dimension, counted from the front.
        start: the first index.
        length: how many.
        step: from one index to the next.
    """

    dim: int
    start: int
    length: int
    step: int = 1

    is_view: ClassVar[bool] = True
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"dim", "start"})

    def infer(self, *shapes: Shape) -> Shape:
        """Return the shape with ``length`` indices along the dimension."""
        (shape,) = shapes
        last = self.start + (self.length - 1) * self.step
        if self.dim >= len(shape) or last >= shape[self.dim]:
            raise ShapeError(
                f"takes indices {self.start} to {last} of dimension {self.dim}; got {list(shape)}"
            )
        return (*shape[: self.dim], self.length, *shape[self.dim + 1 :])

    def torch(self, *shapes: Shape) -> TorchFunction | TorchComposite:
        """Return ``torch.narrow``, or ``Strided`` where indices are left out."""
        if self.step == 1:
            sizes = {"dim": self.dim, "start": self.start, "length": self.length}
            return TorchFunction("narrow", sizes)
        end = self.start + (self.length - 1) * self.step + 1
        return TorchComposite("Strided", (self.dim, self.start, end, self.step))


@dataclass(frozen=True)
class Expand(Layer):
    """Dimensions of size 1 repeated, and dimensions added in front; a copy.

    Args:
        shape: the sizes; -1 keeps the input's.
    """

    shape: tuple[int, ...]

    may_be_negative: ClassVar[frozenset[str]] = frozenset({"shape"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < 1 and size != -1 for size in self.shape):
            raise ShapeError(f"shape of Expand has positive sizes or -1; got {self.shape}")

    def infer(self, *shapes: Shape) -> Shape:
        """Return the sizes."""
        (shape,) = shapes
        added = len(self.shape) - len(shape)
        sizes = list(zip(self.shape[max(added, 0) :], shape, strict=False))
        new = self.shape[: max(added, 0)]
        if added < 0 or -1 in new or any(w not in (-1, s) and s != 1 for w, s in sizes):
            raise ShapeError(
                f"repeats dimensions of size 1; got {list(shape)} to {list(self.shape)}"
            )
        return (*new, *(size if wanted == -1 else wanted for wanted, size in sizes))

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Expand``."""
        return TorchComposite("Expand", (self.shape,))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one concat of the output's size."""
        return (Kernel("concat", rows_cols_last(self.infer(*shapes)), dtype),)


@dataclass(frozen=True)
class Roll(Layer):
    """Values moved along dimensions, those that leave coming in at the other end; a copy.

    Args:
        shifts: how far along each dimension.
        dims: the dimensions, counted from the front.
    """

    shifts: tuple[int, ...]
    dims: tuple[int, ...]

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"dims"})
    may_be_negative: ClassVar[frozenset[str]] = frozenset({"shifts"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shifts) != len(self.dims):
            raise ShapeError(
                f"Roll has a shift for each of its dims; got {self.shifts} and {self.dims}"
            )

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        if max(self.dims) >= len(shapes[0]):
            raise ShapeError(f"dims are of {list(shapes[0])}; got {self.dims}")
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.roll``."""
        return TorchFunction("roll", {"shifts": self.shifts, "dims": self.dims})

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one concat: every value is copied."""
        return (Kernel("concat", rows_cols_last(shapes[0]), dtype),)


@dataclass(frozen=True)
class Pad(Layer):
    """Values added around the last dimensions, or cut from them; a copy.

    Args:
        pads: before and after the last dimension, then the one before it, and so on.
        mode: ``constant`` adds ``value``; the others continue the input.
        value: what ``constant`` adds.
    """

    pads: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    may_be_negative: ClassVar[frozenset[str]] = frozenset({"pads"})
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mode": ("constant", "reflect", "replicate", "circular")
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.pads) % 2:
            raise ShapeError(f"pads of Pad are two numbers for each dimension; got {self.pads}")

    def infer(self, *shapes: Shape) -> Shape:
        """Return the shape with the sizes grown."""
        (shape,) = shapes
        sizes = list(shape)
        if len(self.pads) > 2 * (len(shape) - 1):
            raise ShapeError(f"pads the dimensions after the batch's of {list(shape)}; got {self}")
        for i, grown in enumerate(zip(self.pads[::2], self.pads[1::2], strict=True)):
            sizes[-1 - i] += sum(grown)
        if min(sizes) < 1:
            raise ShapeError(f"pads must leave some output; got {list(shape)} to {sizes}")
        return tuple(sizes)

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.nn.functional.pad``."""
        kwargs = {"pad": self.pads, "mode": self.mode}
        if self.mode == "constant":
            kwargs["value"] = self.value  # type: ignore[assignment]
        return TorchFunction("nn.functional.pad", kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one concat of the output's size."""
        return (Kernel("concat", rows_cols_last(self.infer(*shapes)), dtype),)
