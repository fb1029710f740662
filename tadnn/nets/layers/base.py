"""What a layer of the vocabulary is.

A layer states, in one place, its shape rule, parameters, kernels, module and
source. Adding a layer is adding one class here and one name in ``__init__``.

Shapes are tuples that include the batch dimension, such as ``(1, 64, 56, 56)``.
"""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import MAX_SIZE, Kernel

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TorchModule:
    """A layer's ``torch.nn`` class with its arguments: it has state or a mode."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TorchFunction:
    """A layer's ``torch`` function with the arguments after its tensors: it has no state."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Layer(ABC):
    """One operation of a network; subclasses are final, frozen dataclasses of plain values.

    Every method takes the shapes of the layer's inputs, in order. Channel counts
    of inputs are not fields: they follow from the shapes, so a width changes in
    one place.

    Raises:
        ShapeError: a field's value isn't of the type that its annotation names, or a
            whole number is out of bounds (at least 1, or 0 for ``may_be_zero``).
    """

    arity: ClassVar[int] = 1
    """How many inputs it takes."""
    is_view: ClassVar[bool] = False
    """Whether its output shares its input's memory and nothing is launched."""
    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    """The whole-number fields that need not be positive."""

    def __post_init__(self) -> None:
        for name, kinds in _field_kinds(type(self)):
            value = getattr(self, name)
            if type(value) not in kinds:
                value = self._converted(name, value, kinds)
                object.__setattr__(self, name, value)
            if type(value) is int and not (name not in self.may_be_zero) <= value <= MAX_SIZE:
                raise self._wrong(name, kinds, value)
            if type(value) is float and not math.isfinite(value):
                raise self._wrong(name, kinds, value)

    def _converted(self, name: str, value: Any, kinds: tuple[type, ...]) -> Any:
        """Return a NumPy number as Python's, so that JSON and keys know it."""
        if not isinstance(value, (bool, str)):
            if int in kinds and hasattr(value, "__index__"):
                return operator.index(value)
            if float in kinds and isinstance(value, (int, float)):
                return float(value)
        raise self._wrong(name, kinds, value)

    def _wrong(self, name: str, kinds: tuple[type, ...], value: object) -> ShapeError:
        whole = f"a whole number from {int(name not in self.may_be_zero)} to {MAX_SIZE}"
        words = {int: whole, float: "a finite number", bool: "true or false", str: "a string"}
        rule = " or ".join(words.get(kind, "absent") for kind in kinds)
        return ShapeError(f"{name} of {type(self).__name__} is {rule}; got {value!r}")

    @abstractmethod
    def infer(self, *shapes: Shape) -> Shape:
        """Return the output's shape.

        Raises:
            ShapeError: the inputs do not fit.
        """

    @abstractmethod
    def torch(self, *shapes: Shape) -> TorchModule | TorchFunction:
        """Return what runs it in torch; module and source are both made from this."""

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return the raw launches, before a runtime fuses any."""
        return ()

    def parameters(self, *shapes: Shape) -> int:
        """Return the number of trained values."""
        return 0

    def buffers(self, *shapes: Shape) -> int:
        """Return the number of stored, untrained values."""
        return 0

    def flops(self, *shapes: Shape) -> int:
        """Return the FLOPs, two per multiply-add."""
        return sum(kernel.flops for kernel in self.kernels("fp32", *shapes))


@functools.cache
def _field_kinds(layer: type[Layer]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return the fields of plain values with the types that their annotations name."""
    known = {"int": int, "float": float, "bool": bool, "str": str, "None": type(None)}
    found = []
    for f in fields(layer):  # type: ignore[arg-type]
        names = str(f.type).split(" | ")
        if all(name in known for name in names):
            found.append((f.name, tuple(known[name] for name in names)))
    return tuple(found)


def need_rank(shape: Shape, rank: int) -> None:
    """Check the number of dimensions of an input.

    Raises:
        ShapeError: it differs from ``rank``.
    """
    if len(shape) != rank:
        raise ShapeError(f"takes an input of {rank} dimensions; got {list(shape)}")
