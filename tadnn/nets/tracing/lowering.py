"""What the rules build with: layers that are not yet cut into blocks, and constants."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Node

from tadnn.errors import TraceError
from tadnn.nets.blocks import INPUT
from tadnn.nets.layers import (
    Expand,
    Flatten,
    Identity,
    Layer,
    Permute,
    Reshape,
    Select,
    Shape,
    Slice,
    Stored,
    View,
)
from tadnn.nets.tracing.constants import Const, Constants
from tadnn.nets.tracing.graph import BATCHES, Call, Origin, line_of
from tadnn.nets.tracing.sizes import at_batch, merged_shape

ANY: Final = -2
"""The reference of what only asks how large the batch is: the block's input serves."""


@dataclass(frozen=True)
class Item:
    """A layer with what it takes, its weights by their names in its module, and its origin."""

    layer: Layer
    inputs: tuple[int, ...]
    weights: Mapping[str, Tensor]
    origin: Origin
    shape: Shape
    name: str


@dataclass(frozen=True)
class Value:
    """A tensor that depends on the input: an item's output, its dimensions maybe reordered.

    ``dims`` are the item's dimensions in the order of this value. Reordering costs nothing
    until memory must follow, so it waits: who takes one part of a value, or multiplies by
    the transposed one, needs no copy.
    """

    item: int
    shape: Shape
    dims: tuple[int, ...]


Operand = Value | Const
Rule = Callable[["Lowering", Call], "Value | tuple[Value, ...] | None"]


@dataclass
class Lowering:
    """Collects the layers of one graph; ``copies``: weights are copies, not the module's own."""

    constants: Constants
    input_shape: Shape
    items: list[Item] = field(default_factory=list)
    values: dict[Node, Operand | tuple[Operand, ...]] = field(default_factory=dict)
    copies: bool = True
    _origin: Origin = field(default_factory=lambda: Origin((), (), ""))
    _name: str = ""

    # What rules ask for

    def begin(self, call: Call) -> None:
        """Note whose layers come next."""
        self._origin = call.origin
        self._name = call.name.split(".")[1].strip("_")

    def operand(self, node: Any) -> Operand:
        """Return what a node of the graph is."""
        if node.target is operator.getitem:
            whole = self.values[node.args[0]]
            assert isinstance(whole, tuple)
            part: Operand = whole[node.args[1]]
            return part
        found = self.values[node]
        assert not isinstance(found, tuple)
        return found

    def value(self, node: Any) -> Value:
        """Return a node's value, a constant stored; in memory's order."""
        operand = self.operand(node)
        return self.settled(self.stored(operand) if isinstance(operand, Const) else operand)

    def lazy(self, node: Any) -> Value:
        """Return a node's value, a constant stored; maybe reordered."""
        operand = self.operand(node)
        return self.stored(operand) if isinstance(operand, Const) else operand

    def tensor(self, const: Const) -> Tensor:
        """Return a constant's values."""
        return self.constants.tensor(const)

    def trained(self, const: Const) -> bool:
        """Tell whether a constant depends on a parameter."""
        return self.constants.trained(const.node)

    def const(self, node: Any) -> Tensor | None:
        """Return the tensor of a node that depends on weights alone; None for others."""
        if node is None:
            return None
        operand = self.operand(node)
        return self.tensor(operand) if isinstance(operand, Const) else None

    def emit(
        self, layer: Layer, *inputs: Value, weights: Mapping[str, Tensor | None] | None = None
    ) -> Value:
        """Add a layer; tensors that are None are left out.

        Raises:
            ShapeError: the layer doesn't take these.
        """
        taken = [self.settled(value) for value in inputs]
        shape = merged_shape(
            *(layer.infer(*(at_batch(v.shape, batch) for v in taken)) for batch in BATCHES)
        )
        kept = {n: self._weight(t) for n, t in (weights or {}).items() if t is not None}
        refs = tuple(value.item for value in taken)
        return self._add(Item(layer, refs, kept, self._origin, shape, self._name))

    def _add(self, item: Item) -> Value:
        self.items.append(item)
        return Value(len(self.items) - 1, item.shape, tuple(range(len(item.shape))))

    # Dimensions

    def settled(self, value: Value) -> Value:
        """Return the value with memory in its order."""
        if value.dims == tuple(range(len(value.dims))):
            return value
        source = self.source(value)
        return self.emit(Permute(value.dims), source)

    def source(self, value: Value) -> Value:
        """Return what a reordered value is made of."""
        shape = self.input_shape if value.item == INPUT else self.items[value.item].shape
        return Value(value.item, shape, tuple(range(len(shape))))

    def permuted(self, value: Value, dims: Sequence[int]) -> Value:
        """Return the value with its dimensions in another order."""
        return Value(
            value.item,
            tuple(value.shape[dim] for dim in dims),
            tuple(value.dims[dim] for dim in dims),
        )

    def viewed(self, value: Value, shape: Shape) -> Value:
        """Return the value in other dimensions.

        Raises:
            TraceError: no dimension of the result grows with the batch.
        """
        if value.shape == shape:
            return value
        value = self.settled(value)
        while value.item >= 0 and type(self.items[value.item].layer) in (View, Reshape, Flatten):
            (before,) = self.items[value.item].inputs
            value = self.source(Value(before, (), ()))
        if value.shape == shape:
            return value
        growing = [size for size in shape if size < 0]
        if len(growing) != 1:
            raise TraceError(f"mixes the inputs of a batch{self._origin.line}: {list(shape)}")
        if value.shape[0] == shape[0] == -1:
            return self.emit(Flatten() if len(shape) == 2 else Reshape(shape[1:]), value)
        return self.emit(View(tuple(size if size > 0 else -1 for size in shape)), value)

    def sliced(self, value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
        """Return a run of indices along a dimension."""
        if length == value.shape[dim] and step == 1:
            return value
        part = self.emit(Slice(value.dims[dim], start, length, step), self.source(value))
        return Value(part.item, _with(value.shape, dim, length), value.dims)

    def selected(self, value: Value, dim: int, index: int) -> Value:
        """Return one index of a dimension, which goes away."""
        at = value.dims[dim]
        source = self.source(value)
        if at:
            part = self.emit(Select(at, index), source)
        else:
            one = self.emit(Slice(0, index % value.shape[dim], 1), source)
            part = self.viewed(one, source.shape[1:])
        left = [d for i, d in enumerate(value.dims) if i != dim]
        dims = tuple(d - (d > at) for d in left)
        shape = tuple(size for i, size in enumerate(value.shape) if i != dim)
        return Value(part.item, shape, dims)

    def expanded(self, value: Value, shape: Shape) -> Value | None:
        """Return the value with dimensions of size 1 repeated; None where the batch would be."""
        if value.shape == shape:
            return value
        before = (1,) * (len(shape) - len(value.shape)) + value.shape
        if any(wanted < 0 and size != wanted for size, wanted in zip(before, shape, strict=True)):
            return None
        value = self.viewed(value, before)
        sizes = (-1 if s == w else w for s, w in zip(before, shape, strict=True))
        return self.emit(Expand(tuple(sizes)), value)

    def permuted_like(
        self, before: Value, made: Value, keepdim: bool, gone: Sequence[int]
    ) -> Value:
        """Return what came of a value's source in the value's own order.

        ``gone`` are the source's dimensions that went away, or have size 1 with ``keepdim``.
        """
        dims = [dim for dim in before.dims if keepdim or dim not in gone]
        if not keepdim:
            dims = [dim - sum(g < dim for g in gone) for dim in dims]
        return self.permuted(made, dims)

    def unexpanded(self, value: Value) -> Value:
        """Return what an expanded value repeats, for those who repeat by themselves."""
        if value.item >= 0 and isinstance(self.items[value.item].layer, Expand):
            (before,) = self.items[value.item].inputs
            return self.source(Value(before, (), ()))
        return value

    # Constants

    def stored(self, const: Const, *, repeated: bool = True) -> Value:
        """Return a constant as a value.

        Args:
            const: the constant.
            repeated: whether what is the same for every input is given once per input.
        """
        tensor, shape = self.tensor(const), const.shape
        growing = [i for i, size in enumerate(shape) if size < 0]
        per_input, moved = bool(growing), 0
        for dim in growing:
            each = -shape[dim]
            parts = torch.split(tensor, each, dim)
            # Where weights are unset their values say nothing.
            same = not self.copies or all(torch.equal(part, parts[0]) for part in parts)
            if dim != growing[0] or not same:
                raise TraceError(f"a constant differs with the batch{line_of(const.node)}")
            tensor = parts[0]
            if each == 1 and not repeated:
                per_input = False
            moved = dim
        kind = "float" if tensor.is_floating_point() else "int64"
        kind = "bool" if tensor.dtype == torch.bool else kind
        trained = kind == "float" and self.trained(const)
        if per_input and moved:  # the batch's dimension first; then it goes where it was
            tensor = tensor.movedim(moved, 0)
        sizes = tuple(tensor.shape) or (1,)
        layer = Stored(sizes, per_input, trained, kind)
        out = (-sizes[0], *sizes[1:]) if per_input else sizes
        weights = {"value": self._weight(tensor).reshape(sizes)}
        made = self._add(Item(layer, (ANY,), weights, self._origin, out, "stored"))
        back = [*range(1, moved + 1), 0, *range(moved + 1, len(sizes))]
        return self.permuted(made, back) if per_input and moved else made

    def table(self, tensor: Tensor) -> Value:
        """Return a tensor that isn't trained as a value."""
        sizes = tuple(tensor.shape) or (1,)
        weights = {"value": self._weight(tensor).reshape(sizes)}
        layer = Stored(sizes, False, False)
        return self._add(Item(layer, (ANY,), weights, self._origin, sizes, "stored"))

    def _weight(self, tensor: Tensor) -> Tensor:
        made = tensor.detach()
        if not self.copies:
            return made
        if made.is_floating_point():
            made = made.to(torch.float32)
        elif made.dtype != torch.bool:
            made = made.to(torch.int64)
        # A copy: the network's weights are no view of the module's, nor of each other's.
        return made.clone(memory_format=torch.contiguous_format)


def identity(lo: Lowering, value: Value) -> Value:
    """Return a layer that gives its input, for a graph without any."""
    return lo.emit(Identity(), value)


def _with(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])
