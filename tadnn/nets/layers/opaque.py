"""Operators that the vocabulary lacks: counted and named, never dropped."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tadnn.errors import ShapeError
from tadnn.kernels import MAX_SIZE, Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchComposite

NAMESPACES: Final = ("aten", "prims", "torchvision")
"""Whose operators may be run."""

_NAME = re.compile(r"(?P<space>[a-z]+)\.(?P<op>[A-Za-z0-9_]+)\.(?P<overload>[A-Za-z0-9_]+)")


@dataclass(frozen=True)
class Opaque(Layer):
    """An operator of torch by its name, with the arguments that it was traced with.

    Sizes and arguments are JSON, so that a network stays plain data; the batch's share of a
    size is written as a negative number: ``-3`` is three times the batch. Only functional
    operators of ``NAMESPACES`` are run.

    Args:
        op: the operator, such as ``aten.cumsum.default``.
        arguments: a JSON object by the operator's names. In it, an object stands for what JSON
            lacks: ``{"input": 0}`` the first input, ``{"batch": 2}`` twice the batch,
            ``{"dtype": "float32"}``, ``{"float": "inf"}``.
        inputs: a JSON list of the inputs' sizes.
        output: a JSON list of the output's sizes.
        flops_each: FLOPs for a batch of 1.
        part: which of several outputs.
    """

    op: str
    arguments: str
    inputs: str
    output: str
    flops_each: float = 0.0
    part: int | None = None

    variadic: ClassVar[bool] = True
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"part"})

    def __post_init__(self) -> None:
        super().__post_init__()
        name = _NAME.fullmatch(self.op)
        if name is None or name["space"] not in NAMESPACES or name["op"].endswith("_"):
            raise ShapeError(
                f"op of Opaque is a functional operator of {', '.join(NAMESPACES)}, such as "
                f"aten.cumsum.default; got {self.op!r}"
            )
        if self.flops_each < 0:
            raise ShapeError(f"flops_each of Opaque is not negative; got {self.flops_each}")
        inputs, output = _read(self.inputs), _read(self.output)
        if not isinstance(_read(self.arguments), dict) or not all(
            isinstance(sizes, list) and all(type(size) is int and size for size in sizes)
            for sizes in [output, *(inputs if isinstance(inputs, list) else [None])]
        ):
            raise ShapeError(
                f"arguments of Opaque are a JSON object, inputs and output lists of sizes but 0; "
                f"got {self.arguments}, {self.inputs} and {self.output}"
            )

    def _batch(self, shapes: tuple[Shape, ...]) -> int:
        """Return the batch that the inputs' shapes come from."""
        traced = _read(self.inputs)
        batches = {
            size // -known if size % -known == 0 else 0
            for shape, sizes in zip(shapes, traced, strict=False)
            for size, known in zip(shape, sizes, strict=False)
            if known < 0
        }
        batch = batches.pop() if len(batches) == 1 else 0
        if (
            batch < 1
            or len(shapes) != len(traced)
            or shapes != tuple(_at(s, batch) for s in traced)
        ):
            raise ShapeError(
                f"{self.op} takes inputs as they were traced, {self.inputs} "
                f"(negative: times the batch); got {[list(shape) for shape in shapes]}"
            )
        return batch

    def infer(self, *shapes: Shape) -> Shape:
        """Return the output's sizes at the inputs' batch."""
        return _at(_read(self.output), self._batch(shapes))

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Operator``, which calls the operator."""
        sizes = _read(self.inputs)
        where = next(
            [i, dim, -size] for i, s in enumerate(sizes) for dim, size in enumerate(s) if size < 0
        )
        return TorchComposite("Operator", (self.op, self.arguments, tuple(where), self.part))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one opaque: the work of one input, as many times as the batch has inputs."""
        batch = self._batch(shapes)
        work = (
            math.ceil(self.flops_each),
            sum(map(math.prod, shapes)) // batch,
            math.prod(self.infer(*shapes)) // batch,
        )
        # What is more than a size may be is dealt out to several.
        times = math.ceil(max(work) / MAX_SIZE)
        sizes = (batch * times, *(math.ceil(each / times) for each in work))
        return (Kernel("opaque", (sizes[0], sizes[1], max(1, sizes[2]), max(1, sizes[3])), dtype),)

    def flops(self, *shapes: Shape) -> int:
        """Return the FLOPs by torch's formula for the operator; 0 where it has none."""
        return int(self.flops_each) * self._batch(shapes)


def _at(sizes: list[int], batch: int) -> Shape:
    return tuple(size if size > 0 else -size * batch for size in sizes)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ShapeError(f"not JSON: {text!r}") from error
