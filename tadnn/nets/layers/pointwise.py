"""Arithmetic of traced modules: functions of one value, of two, and of many along dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import (
    Layer,
    Shape,
    TorchComposite,
    TorchFunction,
    TorchModule,
    rows_cols,
)
from tadnn.nets.layers.products import broadcast

POINTWISE: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = MappingProxyType(
    {
        # name: kernel op, function of torch, its arguments (numbers)
        "add": ("scalar", "add", ("other",)),
        "clamp": ("scalar", "clamp", ("min", "max")),
        "clamp_max": ("scalar", "clamp", ("max",)),
        "clamp_min": ("scalar", "clamp", ("min",)),
        "div": ("scalar", "div", ("other",)),
        "mul": ("scalar", "mul", ("other",)),
        "neg": ("scalar", "neg", ()),
        "rsub": ("scalar", "rsub", ("other",)),
        "sub": ("scalar", "sub", ("other",)),
        "abs": ("scalar", "abs", ()),
        "sign": ("scalar", "sign", ()),
        "square": ("scalar", "square", ()),
        "reciprocal": ("scalar", "reciprocal", ()),
        "hardtanh": ("scalar", "nn.functional.hardtanh", ("min_val", "max_val")),
        "softsign": ("scalar", "nn.functional.softsign", ()),
        "hardshrink": ("scalar", "nn.functional.hardshrink", ("lambd",)),
        "softshrink": ("scalar", "nn.functional.softshrink", ("lambd",)),
        "threshold": ("scalar", "nn.functional.threshold", ("threshold", "value")),
        "floor": ("scalar", "floor", ()),
        "ceil": ("scalar", "ceil", ()),
        "round": ("scalar", "round", ()),
        "celu": ("pointwise", "celu", ("alpha",)),
        "cos": ("pointwise", "cos", ()),
        "elu": ("pointwise", "nn.functional.elu", ("alpha",)),
        "erf": ("pointwise", "erf", ()),
        "exp": ("pointwise", "exp", ()),
        "expm1": ("pointwise", "expm1", ()),
        "log": ("pointwise", "log", ()),
        "log1p": ("pointwise", "log1p", ()),
        "log_sigmoid": ("pointwise", "nn.functional.logsigmoid", ()),
        "mish": ("pointwise", "nn.functional.mish", ()),
        "pow": ("pointwise", "pow", ("exponent",)),
        "rsqrt": ("pointwise", "rsqrt", ()),
        "selu": ("pointwise", "selu", ()),
        "sin": ("pointwise", "sin", ()),
        "softplus": ("pointwise", "nn.functional.softplus", ("beta", "threshold")),
        "sqrt": ("pointwise", "sqrt", ()),
        "tan": ("pointwise", "tan", ()),
    }
)
"""Functions of one value that have no layer of their own."""

BINARY: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        # name: kernel op, function of torch
        "add": ("add", "add"),
        "div": ("mul", "div"),
        "maximum": ("add", "maximum"),
        "minimum": ("add", "minimum"),
        "mul": ("mul", "mul"),
        "pow": ("mul", "pow"),
        "sub": ("add", "sub"),
    }
)
"""Functions of two values."""

REDUCTIONS: Final = ("mean", "sum", "amax", "amin", "var", "std", "norm")


@dataclass(frozen=True)
class Pointwise(Layer):
    """A function of every value by itself, with up to two numbers: see ``POINTWISE``.

    Args:
        function: its name, such as ``elu`` or ``mul``.
        first: its first number, where it has one.
        second: its second number, where it has two.
    """

    function: str
    first: float | None = None
    second: float | None = None

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"function": tuple(sorted(POINTWISE))}

    def __post_init__(self) -> None:
        super().__post_init__()
        names = POINTWISE[self.function][2]
        given = sum(number is not None for number in (self.first, self.second))
        if given != len(names) or (given == 1 and self.first is None):
            raise ShapeError(
                f"{self.function} has {len(names)} numbers ({', '.join(names) or 'none'}); "
                f"got {self.first} and {self.second}"
            )

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return the function."""
        _, name, names = POINTWISE[self.function]
        return TorchFunction(name, dict(zip(names, (self.first, self.second), strict=False)))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one scalar, or one pointwise where the function is no arithmetic."""
        return (Kernel(POINTWISE[self.function][0], rows_cols(shapes[0]), dtype),)


@dataclass(frozen=True)
class PReLU(Layer):
    """x where positive, a learned slope times x elsewhere.

    Args:
        per_channel: whether every channel (dimension 1) has a slope of its own.
    """

    per_channel: bool = False

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        if self.per_channel and len(shapes[0]) < 2:
            raise ShapeError(f"takes an input of at least 2 dimensions; got {list(shapes[0])}")
        return shapes[0]

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.PReLU``."""
        return TorchModule("PReLU", (self.parameters(*shapes),))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one leaky_relu."""
        return (Kernel("leaky_relu", rows_cols(shapes[0]), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return the slopes."""
        return shapes[0][1] if self.per_channel else 1


@dataclass(frozen=True)
class Binary(Layer):
    """A function of two tensors whose sizes are equal or 1: see ``BINARY``.

    Args:
        function: its name, such as ``sub``.
    """

    function: str

    arity: ClassVar[int] = 2
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"function": tuple(sorted(BINARY))}

    def infer(self, *shapes: Shape) -> Shape:
        """Return the common shape."""
        return broadcast(*shapes)

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return the function."""
        return TorchFunction(BINARY[self.function][1])

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one launch: of whole tensors, or of one and a number per row or per column.

        Where the smaller one is repeated along dimensions between others, it is priced as a
        number per row.
        """
        out = self.infer(*shapes)
        small = min(shapes, key=math.prod)
        small = (1,) * (len(out) - len(small)) + small
        if small == out or math.prod(map(math.prod, shapes)) == 0:
            return (Kernel(BINARY[self.function][0], rows_cols(out), dtype),)
        if out not in shapes:  # an outer sum or product: writes more than it reads
            return (Kernel("scalar", rows_cols(out), dtype),)
        first = next((i for i, size in enumerate(small) if size != 1), len(out))
        if first == len(out):
            return (Kernel("scalar", rows_cols(out), dtype),)
        if small[first:] == out[first:]:
            cols = math.prod(small)
            return (Kernel("add_cols", (math.prod(out) // cols, cols), dtype),)
        last = max(i for i, size in enumerate(small) if size != 1) + 1
        cols = math.prod(out[last:])
        return (Kernel("mul_rows", (math.prod(out) // cols, cols), dtype),)


@dataclass(frozen=True)
class Where(Layer):
    """The second input where the first isn't false or 0, else the third; they broadcast."""

    arity: ClassVar[int] = 3

    def infer(self, *shapes: Shape) -> Shape:
        """Return the common shape."""
        return broadcast(*shapes)

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Where``, which calls ``torch.where``."""
        return TorchComposite("Where")

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one add, or one scalar where a choice is a number."""
        out = self.infer(*shapes)
        op = "scalar" if 1 in map(math.prod, shapes[1:]) else "add"
        return (Kernel(op, rows_cols(out), dtype),)


@dataclass(frozen=True)
class Reduce(Layer):
    """One value of all those along some dimensions.

    Args:
        function: ``mean``, ``sum``, ``amax``, ``amin``, ``norm`` (Euclidean), ``var`` or ``std``.
        dims: the dimensions, counted from the front.
        keepdim: whether they stay, of size 1.
        correction: of ``var`` and ``std``: what is subtracted from the count.
    """

    function: str
    dims: tuple[int, ...]
    keepdim: bool = False
    correction: int = 0

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"dims", "correction"})
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"function": REDUCTIONS}

    def infer(self, *shapes: Shape) -> Shape:
        """Return the sizes that are left."""
        (shape,) = shapes
        if max(self.dims) >= len(shape):
            raise ShapeError(f"dims are of {list(shape)}; got {self.dims}")
        if self.keepdim:
            return tuple(1 if i in self.dims else size for i, size in enumerate(shape))
        left = tuple(size for i, size in enumerate(shape) if i not in self.dims)
        if not left:
            raise ShapeError(f"leaves a dimension of {list(shape)}; got {self.dims}")
        return left

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return the function."""
        kwargs: dict[str, Any] = {"dim": self.dims, "keepdim": self.keepdim}
        if self.function in ("var", "std"):
            kwargs["correction"] = self.correction
        name = "linalg.vector_norm" if self.function == "norm" else self.function
        return TorchFunction(name, kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one token_mean, which moves as much."""
        (shape,) = shapes
        t = math.prod(shape[dim] for dim in self.dims)
        cols = math.prod(shape[max(self.dims) + 1 :])
        return (Kernel("token_mean", (math.prod(shape) // t // cols, t, cols), dtype),)
