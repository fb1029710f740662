"""Walking a block's graph as ONNX Runtime's optimisers leave it: what is open, what is blocked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tadnn.kernels import Kernel
from tadnn.nets import INPUT, Block, Layer, Node, Shape, block_facts, layers
from tadnn.nets.layers.base import layer_kernels

LANES: Final = 16
"""Channels of one block: 16 floats with AVX-512; 8 with AVX2, where reorders are as frequent."""
ALIGNED: Final = 4  # reordering takes multiples of it
_MOST_IMAGE_CHANNELS: Final = 4  # fewer are an image as it comes, which nobody blocked


# An image's dimensions with the channels last, and back.
_TO_LAST: Final = (0, 2, 3, 1)
_FROM_LAST_DIMS: Final = (0, 3, 1, 2)
_FROM_LAST: Final = "from channels last"
_NOTHING: Final = (layers.Identity, layers.Dropout)


@dataclass(frozen=True)
class Launch:
    """A kernel, and the nodes of the ONNX graph that it is.

    Nodes are named ``layer``, ``layer/part`` or ``layer/*`` for all parts. A reordering is
    ``layer>plain`` or ``layer>blocked`` after the value that it reorders, the block's input
    being the layer ``""``.
    """

    kernel: Kernel
    nodes: tuple[str, ...]


@functools.lru_cache(maxsize=65536)
def kernel_of(
    op: str,
    sizes: tuple[int, ...],
    dtype: str,
    epilogue: tuple[str, ...] = (),
    extra: tuple[tuple[str, int], ...] = (),
) -> Kernel:
    """Return a kernel; remembered."""
    return Kernel(op, sizes, dtype, epilogue, extra)


@dataclass(slots=True)
class Open:
    """A launch that may still take what follows it."""

    kernel: Kernel
    nodes: list[str]
    kind: str  # plain, blocked, matrix
    epilogue: list[str] = field(default_factory=list)

    @property
    def closed(self) -> Launch:
        """The launch with all that it took."""
        order = sorted(self.epilogue, key=_place)
        k = self.kernel
        kernel = kernel_of(k.op, k.sizes, k.dtype, tuple(order), k.extra)
        return Launch(kernel, tuple(self.nodes))


class Walk:
    """Walks one block's graph in order."""

    def __init__(self, block: Block, shape: Shape, dtype: str, *, plain: bool = False) -> None:
        self.block, self.shape, self.dtype = block, shape, dtype
        self.facts = block_facts(block, shape)
        self.made: list[Open] = []
        # Which node's value each one's is, seen through what is nothing at inference.
        self.source: dict[int, int] = {INPUT: INPUT}
        self.open: dict[int, Open] = {}
        self.reordered: set[tuple[int, str]] = set()
        self.blocked: set[int] = set()
        self._plain = plain
        if not plain and _blocked_between(shape):
            self.blocked.add(INPUT)
        self.plain_inside = False
        same: dict[tuple[Layer, tuple[int, ...]], int] = {}
        for i, node in enumerate(block.nodes):
            taken = tuple(self.source[j] for j in node.inputs)
            if isinstance(node.layer, _NOTHING) or self._joins_next(i):
                self.source[i] = taken[0]
            else:  # what computes the same twice, without weights, is computed once
                first = same.setdefault((node.layer, taken), i)
                weighs = first != i and self._weighs(i)
                self.source[i] = i if weighs else first
        self.uses: dict[int, int] = {self.source[len(block.nodes) - 1]: 1}
        for i, node in enumerate(block.nodes):
            if self.source[i] == i:
                for j in node.inputs:
                    self.uses[self.source[j]] = self.uses.get(self.source[j], 0) + 1

    def _weighs(self, i: int) -> bool:
        layer, shapes = self.block.nodes[i].layer, self.facts.inputs[i]
        return bool(layer.parameters(*shapes) or layer.buffers(*shapes))

    def _joins_next(self, i: int) -> bool:
        """Tell whether a layer becomes part of the only one that takes it."""
        layer: Any = self.block.nodes[i].layer
        users = [node.layer for node in self.block.nodes if i in node.inputs]
        if len(users) != 1:
            return False
        if isinstance(layer, layers.Pad):  # zeros around images become a window's padding
            inside = len(layer.pads) <= 4 and min(layer.pads) >= 0
            zeros = (layer.mode, layer.value) == ("constant", 0.0) and inside
            return zeros and isinstance(users[0], (layers.Conv2d, layers.DepthwiseConv2d))
        scales = isinstance(layer, layers.Pointwise) and layer.function in ("mul", "div")
        return scales and isinstance(users[0], layers.MatMul)

    def run(self, rules: Mapping[type[Layer], Rule]) -> tuple[Launch, ...]:
        """Return what is launched; layers without a rule launch their own kernels."""
        for i, node in enumerate(self.block.nodes):
            if self.source[i] == i:
                taken = [self.source[j] for j in node.inputs]
                rules.get(type(node.layer), Walk.other)(self, i, node, taken)
        last = self.source[len(self.block.nodes) - 1]
        shape = self.shape_of(last)
        if last != INPUT and len(shape) == 4 and shape[2:] != (1, 1):
            self.plain_inside = last not in self.blocked and self._adds_plain_input()
            if self._plain or not _blocked_between(shape):
                self.need_plain(last)
            elif shape[1] >= LANES:  # fewer are taken plain by the next convolution anyway
                self.need_blocked(last)
        return tuple(made.closed for made in self.made)

    def _adds_plain_input(self) -> bool:
        """Tell whether the input is added to what was made of it, both of them plain."""
        adds = any(
            isinstance(node.layer, layers.Add) and INPUT in (self.source[j] for j in node.inputs)
            for node in self.block.nodes
        )
        return adds and (INPUT, "plain") in self.reordered

    def layer_of(self, value: int) -> Layer | None:
        """Return the layer that gives a value; None for the block's input."""
        return None if value == INPUT else self.block.nodes[value].layer

    def shape_of(self, value: int) -> Shape:
        """Return a value's sizes."""
        return self.shape if value == INPUT else self.facts.outputs[value]

    def name_of(self, value: int) -> str:
        """Return the name of the layer that gives a value."""
        return "" if value == INPUT else self.block.nodes[value].name

    def launch(self, kernel: Kernel, *nodes: str, kind: str = "") -> Open:
        """Add a launch."""
        made = Open(kernel, list(nodes), kind, list(kernel.epilogue))
        self.made.append(made)
        return made

    def need_plain(self, value: int) -> None:
        """Have a value as other operators take it."""
        if value in self.blocked and (value, "plain") not in self.reordered:
            self.reordered.add((value, "plain"))
            n, c, h, w = self.shape_of(value)
            sizes = (n * -(-c // LANES), h * w, LANES, 1)
            self.launch(kernel_of("permute", sizes, self.dtype), f"{self.name_of(value)}>plain")

    def need_blocked(self, value: int) -> None:
        """Have an image in blocks of channels."""
        if value not in self.blocked and (value, "blocked") not in self.reordered:
            self.reordered.add((value, "blocked"))
            n, c, h, w = self.shape_of(value)
            made = self.open.get(value)
            if made is not None and made.kind == _FROM_LAST and self.uses[value] == 1:
                # Reordering reads the image with its channels last just as well.
                self.made.remove(made)
                (value,) = (self.source[j] for j in self.block.nodes[value].inputs)
            sizes = (n * -(-c // LANES), LANES, h * w, 1)
            self.launch(kernel_of("permute", sizes, self.dtype), f"{self.name_of(value)}>blocked")

    def other(self, i: int, node: Node, taken: list[int]) -> None:
        """Take plain values; launch the layer's own kernels."""
        for value in taken:
            self.need_plain(value)
        kernels = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        names = (node.name, f"{node.name}/*") if len(kernels) == 1 else ()
        for kernel in kernels:
            self.launch(kernel, *names)

    def permute(self, i: int, node: Node, taken: list[int]) -> None:
        """Launch a permute, unless a reordering of blocks can be it."""
        layer: Any = node.layer
        if layer.dims == _TO_LAST and taken[0] in self.blocked:
            n, c, h, w = self.shape_of(taken[0])
            sizes = (n * -(-c // LANES), h * w, LANES, 1)
            self.launch(kernel_of("permute", sizes, self.dtype), f"{node.name}>plain")
            return
        before = len(self.made)
        self.other(i, node, taken)
        if layer.dims == _FROM_LAST_DIMS and len(self.made) == before + 1:
            self.made[-1].kind = _FROM_LAST
            self.open[i] = self.made[-1]

    def join(self, i: int, node: Node, value: int) -> None:
        """Make a layer part of the launch whose value it takes."""
        made = self.open[value]
        made.nodes += (node.name, f"{node.name}/*")
        self.open[i] = made
        if value in self.blocked:
            self.blocked.add(i)


Rule = Callable[[Walk, int, Node, list[int]], None]
"""What a layer becomes: (walk, its place, its node, the values that it takes)."""


def _blocked_between(shape: Shape) -> bool:
    """Tell whether an image of a shape is blocked on its way from one block to the next."""
    if len(shape) != 4 or shape[2:] == (1, 1):
        return False
    return shape[1] > _MOST_IMAGE_CHANNELS and shape[1] % ALIGNED == 0


def _place(part: str) -> int:
    """Order an epilogue: bias, addition, activation."""
    return ("bias", "add").index(part) if part in ("bias", "add") else 2
