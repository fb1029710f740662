"""Blocks: the pieces a network is a chain of, and the unit of memoisation.

A block is a small graph of layers with one input and one output. It doesn't know
its input's shape; what follows from one is in :func:`block_facts`, remembered.
Fusion never crosses from one block into the next.
"""

from __future__ import annotations

import functools
import keyword
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Concatenate, NamedTuple, ParamSpec, cast

from tadnn.errors import KernelError, ShapeError
from tadnn.nets.layers import Layer, Shape
from tadnn.nets.layers.base import layer_kernels

P = ParamSpec("P")

INPUT = -1
"""The reference to a block's input."""

# What a torch module already has and blocks and nodes must not hide; a test compares it with
# torch, which this file doesn't import.
_OF_MODULES = """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda
    double dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter
    get_submodule half ipu load_state_dict modules mtia named_buffers named_children
    named_modules named_parameters parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state
    set_submodule share_memory state_dict to to_empty train training type xpu zero_grad
"""
_OF_SOURCE = "nn self super torch x"  # what the written source needs for itself
_TAKEN = frozenset(_OF_MODULES.split() + _OF_SOURCE.split())


def check_name(name: str) -> None:
    """Check that a block or node may have this name in a module and in source.

    Raises:
        ShapeError: it may not.
    """
    # Beyond ASCII, Python takes different spellings for one name and state dicts don't.
    spelt = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    if not spelt or name in _TAKEN or name[0] == "_":
        raise ShapeError(
            f"names of blocks and layers are ASCII Python identifiers that torch modules "
            f"leave free; got {name!r}"
        )


@dataclass(frozen=True)
class Node:
    """A layer in a block; ``inputs`` are indices of earlier nodes, -1 is the block's input."""

    name: str
    layer: Layer
    inputs: tuple[int, ...]


class Block:
    """A graph of layers with one input and one output, the last node's; immutable.

    Args:
        label: what kind of block it is, such as ``"bottleneck"``.
        nodes: in an order in which inputs come first.

    Attributes:
        takes: what its input holds, ``float`` or ``int64``.

    Raises:
        ShapeError: the graph is malformed; the node is named.
    """

    __slots__ = ("_hash", "label", "nodes", "takes")

    def __init__(self, label: str, nodes: tuple[Node, ...]) -> None:
        check_name(label)
        _check(label, nodes)
        self.label, self.nodes, self.takes = label, nodes, _taken_kind(nodes)
        # Blocks are looked up by the thousand; hashing the graph each time would dominate.
        self._hash = hash((label, nodes))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Block) or self._hash != other._hash:
            return False
        return self.label == other.label and self.nodes == other.nodes

    def __repr__(self) -> str:
        return f"Block({self.label!r}, {len(self.nodes)} layers)"

    def __reduce__(self) -> tuple[type[Block], tuple[str, tuple[Node, ...]]]:
        # Hashes of strings differ between processes: a copy computes its own.
        return Block, (self.label, self.nodes)


class BlockBuilder:
    """Collects the layers of one block; references are what :meth:`add` returns."""

    input = INPUT

    def __init__(self) -> None:
        self._nodes: list[Node] = []

    def add(self, layer: Layer, *inputs: int, name: str = "") -> int:
        """Add a layer that takes the referenced inputs (default: the previous layer).

        Args:
            layer: the layer.
            inputs: references; the block's input is ``b.input``.
            name: unique in the block; numbered by the layer's kind when empty.
        """
        if not name:
            kind = type(layer).__name__.lower()
            name = f"{kind}{sum(type(n.layer) is type(layer) for n in self._nodes) + 1}"
        self._nodes.append(Node(name, layer, inputs or (len(self._nodes) - 1,)))
        return len(self._nodes) - 1

    def build(self, label: str) -> Block:
        """Return the block; its output is that of the layer added last."""
        return Block(label, tuple(self._nodes))


def block(build: Callable[Concatenate[BlockBuilder, P], object]) -> Callable[P, Block]:
    """Turn a function that adds layers to a builder into a memoised maker of blocks.

    The function's name becomes the block's label; its arguments must be hashable.
    """

    @functools.lru_cache(maxsize=16384)
    def made(*args: P.args, **kwargs: P.kwargs) -> Block:
        builder = BlockBuilder()
        build(builder, *args, **kwargs)
        return builder.build(build.__name__)

    functools.update_wrapper(made, build)
    return cast("Callable[P, Block]", made)


@dataclass(frozen=True)
class BlockFacts:
    """What follows from a block and the shape of its input.

    ``inputs[i]`` are the shapes that node i takes, ``outputs[i]`` the one it gives.
    """

    block: Block
    shape: Shape
    inputs: tuple[tuple[Shape, ...], ...]
    outputs: tuple[Shape, ...]
    parameters: int
    buffers: int

    @property
    def output(self) -> Shape:
        """The block's output shape."""
        return self.outputs[-1]

    # Counted when asked for: latency alone, of thousands of blocks, asks for neither.
    @cached_property
    def flops(self) -> int:
        """FLOPs, two per multiply-add."""
        nodes = zip(self.block.nodes, self.inputs, strict=True)
        return sum(node.layer.flops(*taken) for node, taken in nodes)

    @cached_property
    def peak_elements(self) -> int:
        """The most elements alive at once when each tensor is freed after its last use."""
        return _peak_elements(self.block, self.shape, self.outputs)


class _LayerFacts(NamedTuple):
    inputs: tuple[Shape, ...]
    output: Shape
    parameters: int
    buffers: int


# A space's blocks: those of the resnet space are 50,000, most of them made of the same layers.
@functools.lru_cache(maxsize=65536)
def block_facts(block: Block, shape: Shape) -> BlockFacts:
    """Infer every shape in a block and count.

    Raises:
        ShapeError: a layer's inputs do not fit; the layer is named.
    """
    inputs: list[tuple[Shape, ...]] = []
    outputs: list[Shape] = []
    parameters = buffers = 0
    for node in block.nodes:
        taken = tuple([shape if i == INPUT else outputs[i] for i in node.inputs])
        try:
            facts = _layer_facts(node.layer, taken)
        except (ShapeError, KernelError) as error:
            kind = type(node.layer).__name__
            raise ShapeError(f"layer {node.name} ({kind}): {error}") from error
        inputs.append(facts.inputs)
        outputs.append(facts.output)
        parameters += facts.parameters
        buffers += facts.buffers
    return BlockFacts(block, shape, tuple(inputs), tuple(outputs), parameters, buffers)


@functools.lru_cache(maxsize=65536)
def _layer_facts(layer: Layer, taken: tuple[Shape, ...]) -> _LayerFacts:
    # The shapes are kept with it, so that the blocks which share a layer share them too.
    facts = _LayerFacts(taken, layer.infer(*taken), layer.parameters(*taken), layer.buffers(*taken))
    layer_kernels(layer, "fp32", taken)  # sizes that no kernel has are refused here, by name
    return facts


def _peak_elements(block: Block, shape: Shape, outputs: tuple[Shape, ...]) -> int:
    """Return the most elements alive at once when each tensor is freed after its last use."""
    owner: dict[int, int] = {INPUT: INPUT}  # a view's memory is its input's
    for i, node in enumerate(block.nodes):
        owner[i] = owner[node.inputs[0]] if node.layer.is_view else i
    last_use = {owner[i]: step for step, node in enumerate(block.nodes) for i in node.inputs}
    alive = {INPUT: math.prod(shape)}
    peak = alive[INPUT]
    for step in range(len(block.nodes)):
        if owner[step] == step:
            alive[step] = math.prod(outputs[step])
        peak = max(peak, sum(alive.values()))
        alive = {i: size for i, size in alive.items() if last_use.get(i, step) > step}
    return peak


def _check(label: str, nodes: tuple[Node, ...]) -> None:
    if not nodes:
        raise ShapeError(f"a block has at least one layer; {label} has none")
    seen: set[str] = set()
    used: set[int] = set()
    for index, node in enumerate(nodes):
        check_name(node.name)
        if node.name in seen:
            raise ShapeError(f"layer names are unique in a block; {node.name!r} stands twice")
        seen.add(node.name)
        taken, arity = len(node.inputs), node.layer.arity
        if taken < arity or (taken > arity and not node.layer.variadic):
            raise ShapeError(
                f"layer {node.name} ({type(node.layer).__name__}) takes "
                f"{arity} inputs{' or more' if node.layer.variadic else ''}; got {taken}"
            )
        if not all(INPUT <= i < index for i in node.inputs):
            raise ShapeError(
                f"layer {node.name} takes inputs that come before it; got {node.inputs}"
            )
        used.update(node.inputs)
    idle = [node.name for i, node in enumerate(nodes[:-1]) if i not in used]
    if idle:
        raise ShapeError(f"every layer but the last feeds another; nothing takes {', '.join(idle)}")


def _taken_kind(nodes: tuple[Node, ...]) -> str:
    """Return what the input holds, after checking that all who take it agree."""
    kinds = [node.layer.takes for node in nodes if INPUT in node.inputs]
    for node in nodes:
        takes, what = node.layer.takes, f"layer {node.name} ({type(node.layer).__name__})"
        if takes != "float" and node.inputs != (INPUT,):
            raise ShapeError(f"{what} takes {takes} values, which only an input holds")
        if INPUT in node.inputs and takes != kinds[0]:
            raise ShapeError(f"{what} takes {takes} values; another takes the input as {kinds[0]}")
    return kinds[0] if kinds else "float"
