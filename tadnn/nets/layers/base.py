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
    """A layer's function with the arguments after its tensors: it has no state.

    ``name`` is looked up in ``torch`` and may be dotted, such as ``nn.functional.elu``.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TorchComposite:
    """A class of ``tadnn.nets.composites`` with its arguments: what torch has no one name for.

    Written source carries the text of the class.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Recipe = TorchModule | TorchFunction | TorchComposite


class Layer(ABC):
    """One operation of a network; subclasses are final, frozen dataclasses of plain values.

    Every method takes the shapes of the layer's inputs, in order. Channel counts
    of inputs are not fields: they follow from the shapes, so a width changes in
    one place.

    A field of two whole numbers, (vertical, horizontal), becomes the one number where they
    are equal; lists, which is what JSON has, become tuples.

    Raises:
        ShapeError: a field's value isn't of the type that its annotation names, or a
            whole number is out of bounds (at least 1; 0 for ``may_be_zero``, any for
            ``may_be_negative``), or a string isn't among the field's ``choices``.
    """

    arity: ClassVar[int] = 1
    """How many inputs it takes; the fewest where it is ``variadic``."""
    variadic: ClassVar[bool] = False
    """Whether it takes any number of inputs from ``arity`` on."""
    is_view: ClassVar[bool] = False
    """Whether its output shares its input's memory and nothing is launched."""
    takes: ClassVar[str] = "float"
    """What its inputs hold: ``float`` or ``int64``."""
    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    """The whole-number fields that need not be positive."""
    may_be_negative: ClassVar[frozenset[str]] = frozenset()
    """The whole-number fields of any sign."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The strings that a field may be."""

    def __post_init__(self) -> None:
        for name, kinds in _field_kinds(type(self)):
            value = getattr(self, name)
            if type(value) not in kinds:
                value = self._converted(name, value, kinds)
                object.__setattr__(self, name, value)
            if type(value) is int and not self._least(name) <= value <= MAX_SIZE:
                raise self._wrong(name, kinds, value)
            if type(value) is float and not math.isfinite(value):
                raise self._wrong(name, kinds, value)
            if type(value) is str and value not in self.choices.get(name, (value,)):
                raise self._wrong(name, kinds, value)

    def _least(self, name: str) -> int:
        return -MAX_SIZE if name in self.may_be_negative else int(name not in self.may_be_zero)

    def _converted(self, name: str, value: Any, kinds: tuple[type, ...]) -> Any:
        """Return a NumPy number as Python's, so that JSON and keys know it; a list as a tuple."""
        if isinstance(value, (tuple, list)) and (_Pair in kinds or _Sizes in kinds):
            sizes = tuple(operator.index(size) for size in value if _is_whole(size))
            long_enough = len(sizes) == 2 if _Pair in kinds else bool(sizes)
            bounded = all(self._least(name) <= size <= MAX_SIZE for size in sizes)
            if not (len(sizes) == len(value) and long_enough and bounded):
                raise self._wrong(name, kinds, value)
            return sizes[0] if _Pair in kinds and sizes[0] == sizes[1] else sizes
        if not isinstance(value, (bool, str)):
            if int in kinds and _is_whole(value):
                return operator.index(value)
            if float in kinds and isinstance(value, (int, float)):
                return float(value)
        raise self._wrong(name, kinds, value)

    def _wrong(self, name: str, kinds: tuple[type, ...], value: object) -> ShapeError:
        bounds = f"from {self._least(name)} to {MAX_SIZE}"
        words = {
            int: f"a whole number {bounds}",
            _Pair: "a pair of them",
            _Sizes: f"a list of whole numbers {bounds}",
            float: "a finite number",
            bool: "true or false",
            str: " or ".join(map(repr, self.choices.get(name, ()))) or "a string",
        }
        rule = " or ".join(words.get(kind, "absent") for kind in kinds)
        return ShapeError(f"{name} of {type(self).__name__} is {rule}; got {value!r}")

    @property
    def input_limit(self) -> int | None:
        """What its inputs are less than, where they are whole numbers."""
        return None

    @abstractmethod
    def infer(self, *shapes: Shape) -> Shape:
        """Return the output's shape.

        Raises:
            ShapeError: the inputs do not fit.
        """

    @abstractmethod
    def torch(self, *shapes: Shape) -> Recipe:
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
        return sum(kernel.flops for kernel in layer_kernels(self, "fp32", shapes))


# Asked for by counting and by every runtime's lowering; blocks differ more than their layers do.
@functools.lru_cache(maxsize=65536)
def layer_kernels(layer: Layer, dtype: str, shapes: tuple[Shape, ...]) -> tuple[Kernel, ...]:
    """Return a layer's raw kernels, remembered."""
    return layer.kernels(dtype, *shapes)


class _Pair:
    """Stands for a field of two whole numbers."""


class _Sizes:
    """Stands for a field of at least one whole number."""


@functools.cache
def _field_kinds(layer: type[Layer]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return the fields of plain values with the types that their annotations name."""
    known = {"int": int, "float": float, "bool": bool, "str": str, "None": type(None)}
    known |= {"tuple[int, int]": _Pair, "tuple[int, ...]": _Sizes}
    found = []
    for f in fields(layer):  # type: ignore[arg-type]
        names = str(f.type).split(" | ")
        if all(name in known for name in names):
            found.append((f.name, tuple(known[name] for name in names)))
    return tuple(found)


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return the vertical and the horizontal value of a field that may be one for both."""
    return value if isinstance(value, tuple) else (value, value)


def single(value: tuple[int, int]) -> int | tuple[int, int]:
    """Return the one number that two equal ones are."""
    return value[0] if value[0] == value[1] else value


def rows_cols(shape: Shape) -> tuple[int, int]:
    """Return a tensor seen as rows x cols: images per channel, everything else by the last axis."""
    if len(shape) == 4:
        return shape[0] * shape[1], shape[2] * shape[3]
    return rows_cols_last(shape)


def rows_cols_last(shape: Shape) -> tuple[int, int]:
    """Return a tensor seen as rows x cols, where a row is the last axis."""
    return math.prod(shape[:-1]), shape[-1]


def axis(shape: Shape, dim: int) -> int:
    """Return a dimension counted from the front.

    Raises:
        ShapeError: the shape has no such dimension, or it is the batch's.
    """
    found = dim + len(shape) if dim < 0 else dim
    if not 1 <= found < len(shape):
        raise ShapeError(f"dim is one after the batch's, of {list(shape)}; got {dim}")
    return found


def need_rank(shape: Shape, rank: int) -> None:
    """Check the number of dimensions of an input.

    Raises:
        ShapeError: it differs from ``rank``.
    """
    if len(shape) != rank:
        raise ShapeError(f"takes an input of {rank} dimensions; got {list(shape)}")
