"""A network as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError, ShapeError, UnknownName
from tadnn.files import stable_hash
from tadnn.kernels import DTYPE_BYTES
from tadnn.nets.blocks import INPUT, Block, BlockFacts, block_facts, check_name
from tadnn.nets.layers import Layer, Shape

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class PlacedLayer:
    """A layer where it stands in a network, with the shapes it takes and gives."""

    name: str
    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape


PlacedBlock = tuple[str, Block, Shape, BlockFacts]
"""A block's name, the block, the shape it takes (batch included), what follows from both."""


class Net:
    """A chain of named blocks; each takes the previous one's output. Immutable.

    Args:
        input_shape: one input without the batch dimension, such as (3, 224, 224).
        blocks: (name, block) pairs in order.

    Raises:
        ShapeError: shapes do not fit; the layer is named.
    """

    def __init__(self, input_shape: Shape, blocks: tuple[tuple[str, Block], ...]) -> None:
        if not blocks:
            raise ShapeError("a network has at least one block; got none")
        if not input_shape or any(type(size) is not int or size < 1 for size in input_shape):
            raise ShapeError(
                f"an input shape has positive whole sizes, such as 3, 224, 224; got {input_shape!r}"
            )
        self.input_shape, self.blocks = tuple(input_shape), tuple(blocks)
        self._chain: tuple[PlacedBlock, ...] | None = None

    @classmethod
    def checked(cls, input_shape: Shape, blocks: tuple[tuple[str, Block], ...]) -> Net:
        """Return the network after checking its names and inferring every shape.

        Raises:
            ShapeError: a name is taken, or shapes do not fit; the layer is named.
        """
        net = cls(input_shape, blocks)
        _check_names(tuple(name for name, _ in blocks))
        net.chain(1)
        for name, block in blocks[1:]:
            if block.takes != "float":
                raise ShapeError(
                    f"block {name}: takes {block.takes} values, "
                    f"which only the network's input holds"
                )
        return net

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Net):
            return NotImplemented
        return self.input_shape == other.input_shape and self.blocks == other.blocks

    def __hash__(self) -> int:
        return hash((self.input_shape, self.blocks))

    def __repr__(self) -> str:
        return f"Net({list(self.input_shape)}, {len(self.blocks)} blocks)"

    def chain(self, batch: int = 1) -> tuple[PlacedBlock, ...]:
        """Return every block with its name, input shape and facts at a batch size.

        Raises:
            ShapeError: shapes do not fit; block and layer are named.
        """
        if batch == 1 and self._chain is not None:
            return self._chain
        if type(batch) is not int or batch < 1:
            raise RequestError(f"a batch is a whole number of at least 1; got {batch!r}")
        shape: Shape = (batch, *self.input_shape)
        placed = []
        for name, block in self.blocks:
            try:
                facts = block_facts(block, shape)
            except ShapeError as error:
                raise ShapeError(f"block {name}, {error}") from error
            placed.append((name, block, shape, facts))
            shape = facts.output
        chain = tuple(placed)
        if batch == 1:
            self._chain = chain
        return chain

    def layers(self, batch: int = 1) -> Iterator[PlacedLayer]:
        """Yield every layer in order; names read ``block.layer``."""
        for name, block, _, facts in self.chain(batch):
            for node, inputs, output in zip(block.nodes, facts.inputs, facts.outputs, strict=True):
                yield PlacedLayer(f"{name}.{node.name}", node.layer, inputs, output)

    def output_shape(self, batch: int = 1) -> Shape:
        """Return the output's shape, batch included."""
        return self.chain(batch)[-1][3].output

    @property
    def input_dtype(self) -> str:
        """What an input holds: ``float``, or ``int64`` where the first layer looks it up."""
        return self.blocks[0][1].takes

    @property
    def input_limit(self) -> int | None:
        """What whole-number inputs are less than: the vocabulary; None for floats."""
        nodes = (node for node in self.blocks[0][1].nodes if INPUT in node.inputs)
        limits = [limit for node in nodes if (limit := node.layer.input_limit) is not None]
        return min(limits, default=None)

    def example(self, batch: int = 1, seed: int = 0) -> Tensor:
        """Return a random batch of inputs: standard normal, or whole numbers below the limit."""
        from tadnn.nets.module import net_to_example

        return net_to_example(self, batch, seed)

    @cached_property
    def parameters(self) -> int:
        """The number of trained values."""
        return sum(facts.parameters for *_, facts in self.chain())

    def flops(self, batch: int = 1) -> int:
        """Return the FLOPs of a batch, two per multiply-add."""
        return sum(facts.flops for *_, facts in self.chain(batch))

    def peak_activation_bytes(self, batch: int = 1, dtype: str = "fp32") -> int:
        """Return the most bytes of activations alive at once, each freed after its last use."""
        peak = max(facts.peak_elements for *_, facts in self.chain(batch))
        return peak * _bytes(dtype)

    def memory_bytes(self, batch: int = 1, dtype: str = "fp32") -> int:
        """Return what inference holds at its peak: parameters, buffers and activations."""
        stored = sum(facts.parameters + facts.buffers for *_, facts in self.chain())
        return stored * _bytes(dtype) + self.peak_activation_bytes(batch, dtype)

    @cached_property
    def key(self) -> str:
        """A stable hash of the network, 16 hex digits."""
        return stable_hash(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the network as JSON-able data; :meth:`from_json` takes it back."""
        from tadnn.nets.serialize import net_to_json

        return net_to_json(self)

    @staticmethod
    def from_json(data: Any) -> Net:
        """Return the network that :meth:`to_json` gave.

        Raises:
            RequestError: the data breaks a rule of the format.
            ShapeError: shapes do not fit; the layer is named.
        """
        from tadnn.nets.serialize import net_from_json

        return net_from_json(data)

    def to_module(self, seed: int | None = None) -> nn.Module:
        """Return the network as an ``nn.Module`` in training mode.

        Weights are initialised as torch does, from ``seed`` where one is given
        (the caller's generator is then left alone).
        """
        from tadnn.nets.module import net_to_module

        return net_to_module(self, seed)

    def to_source(self) -> str:
        """Return standalone Python source that imports only torch and defines ``Model``.

        ``Model()`` has the parameter names of :meth:`to_module`, so weights move
        between the two.
        """
        from tadnn.nets.source import net_to_source

        return net_to_source(self)


class NetBuilder:
    """Collects the blocks of one network."""

    def __init__(self, input_shape: Shape) -> None:
        self.input_shape = input_shape
        self._blocks: list[tuple[str, Block]] = []

    def add(self, name: str, block: Block) -> None:
        """Append a block; it takes the previous one's output."""
        self._blocks.append((name, block))

    def build(self) -> Net:
        """Return the network, its names and shapes checked.

        Raises:
            ShapeError: a name is taken, or shapes do not fit; the layer is named.
        """
        return Net.checked(self.input_shape, tuple(self._blocks))


@lru_cache(maxsize=16384)
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        check_name(name)
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ShapeError(f"block names are unique; {', '.join(twice)} stands twice")


def _bytes(dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise UnknownName("dtype", str(dtype), DTYPE_BYTES)
    return DTYPE_BYTES[dtype]
