"""What ONNX Runtime launches on a CPU: its graph optimisations, mimicked block by block.

ONNX Runtime (1.32 here; ``onnxruntime/core/optimizer``) folds batch normalisation into
convolutions, fuses an addition and an activation into them, and runs convolutions and pools on
images whose channels lie together in blocks of one vector (NCHWc). Where such an image meets an
operator that wants it plain, or the reverse, it is reordered, which costs a pass over it: a
``permute`` kernel here. Matrix products keep their bias; what has no fused operator (GELU as
the exporter writes it) is several nodes, priced together as one kernel.

Fusion never crosses blocks in this model. An image on its way between blocks is taken to be
blocked where its channels are a multiple of 4, which it is where convolutions follow each
other; the block that has it or needs it otherwise pays for the reordering.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tadnn.kernels import Kernel
from tadnn.nets import INPUT, Block, Layer, Node, Shape, block_facts, layers
from tadnn.runtimes.base import layer_kernels

LANES: Final = 16
"""Channels of one block: 16 floats with AVX-512; 8 with AVX2, where reorders are as frequent."""
_ALIGNED: Final = 4  # reordering takes multiples of it
_MOST_IMAGE_CHANNELS: Final = 4  # fewer are an image as it comes, which nobody blocked

# Activations by layer: the epilogue, and whether it fuses into a plain convolution, a blocked
# one, a blocked one that adds already, and a matrix product.
_FUSES: Final[dict[type[Layer], tuple[str, bool, bool, bool, bool]]] = {
    layers.ReLU: ("relu", True, True, True, True),
    layers.ReLU6: ("relu6", True, True, False, False),
    layers.LeakyReLU: ("leaky_relu", True, True, False, True),
    layers.Sigmoid: ("sigmoid", True, True, True, True),
    layers.HardSigmoid: ("hard_sigmoid", True, True, True, True),
    layers.HardSwish: ("hard_swish", False, True, True, False),
    layers.Tanh: ("tanh", True, True, True, True),
}
# What works on blocked images as they are.
_BLIND: Final = (
    layers.ReLU,
    layers.Sigmoid,
    layers.HardSigmoid,
    layers.HardSwish,
    layers.Tanh,
    layers.SiLU,
)
_NOTHING: Final = (layers.Identity, layers.Dropout)
_FREE: Final = (layers.Flatten, layers.Reshape, layers.Select)


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
def _kernel(
    op: str,
    sizes: tuple[int, ...],
    dtype: str,
    epilogue: tuple[str, ...] = (),
    extra: tuple[tuple[str, int], ...] = (),
) -> Kernel:
    return Kernel(op, sizes, dtype, epilogue, extra)


@dataclass(slots=True)
class _Open:
    """A launch that may still take what follows it."""

    kernel: Kernel
    nodes: list[str]
    kind: str  # plain, blocked, matrix
    epilogue: list[str] = field(default_factory=list)

    @property
    def closed(self) -> Launch:
        order = sorted(self.epilogue, key=_place)
        k = self.kernel
        kernel = _kernel(k.op, k.sizes, k.dtype, tuple(order), k.extra)
        return Launch(kernel, tuple(self.nodes))


@functools.lru_cache(maxsize=16384)
def launches(block: Block, shape: Shape, dtype: str) -> tuple[Launch, ...]:
    """Return what a block launches for an input shape (batch included), in order.

    Raises:
        ShapeError: the input doesn't fit; the layer is named.
    """
    return _Lowering(block, shape, dtype).run()


class _Lowering:
    """Walks one block's graph in order."""

    def __init__(self, block: Block, shape: Shape, dtype: str) -> None:
        self.block, self.shape, self.dtype = block, shape, dtype
        self.facts = block_facts(block, shape)
        self.made: list[_Open] = []
        # Which node's value each one's is, seen through what is nothing at inference.
        self.source: dict[int, int] = {INPUT: INPUT}
        self.open: dict[int, _Open] = {}
        self.reordered: set[tuple[int, str]] = set()
        self.blocked: set[int] = set()
        if _blocked_between(shape):
            self.blocked.add(INPUT)
        same: dict[tuple[Layer, tuple[int, ...]], int] = {}
        for i, node in enumerate(block.nodes):
            taken = tuple(self.source[j] for j in node.inputs)
            if isinstance(node.layer, _NOTHING):
                self.source[i] = taken[0]
            else:  # what computes the same twice, without weights, is computed once
                first = same.setdefault((node.layer, taken), i)
                weighs = first != i and node.layer.parameters(*self.facts.inputs[i])
                self.source[i] = i if weighs else first
        self.uses: dict[int, int] = {self.source[len(block.nodes) - 1]: 1}
        for i, node in enumerate(block.nodes):
            if self.source[i] == i:
                for j in node.inputs:
                    self.uses[self.source[j]] = self.uses.get(self.source[j], 0) + 1

    def run(self) -> tuple[Launch, ...]:
        for i, node in enumerate(self.block.nodes):
            if self.source[i] == i:
                taken = [self.source[j] for j in node.inputs]
                _RULES.get(type(node.layer), _Lowering.other)(self, i, node, taken)
        last = self.source[len(self.block.nodes) - 1]
        shape = self._shape(last)
        if last != INPUT and len(shape) == 4 and shape[2:] != (1, 1):
            if not _blocked_between(shape):
                self.need_plain(last)
            elif shape[1] >= LANES:  # fewer are taken plain by the next convolution anyway
                self.need_blocked(last)
        return tuple(made.closed for made in self.made)

    def _shape(self, value: int) -> Shape:
        return self.shape if value == INPUT else self.facts.outputs[value]

    def _name(self, value: int) -> str:
        return "" if value == INPUT else self.block.nodes[value].name

    def launch(self, kernel: Kernel, *nodes: str, kind: str = "") -> _Open:
        made = _Open(kernel, list(nodes), kind, list(kernel.epilogue))
        self.made.append(made)
        return made

    def need_plain(self, value: int) -> None:
        """Have a value as other operators take it."""
        if value in self.blocked and (value, "plain") not in self.reordered:
            self.reordered.add((value, "plain"))
            n, c, h, w = self._shape(value)
            sizes = (n * -(-c // LANES), h * w, LANES, 1)
            self.launch(_kernel("permute", sizes, self.dtype), f"{self._name(value)}>plain")

    def need_blocked(self, value: int) -> None:
        """Have an image in blocks of channels."""
        if value not in self.blocked and (value, "blocked") not in self.reordered:
            self.reordered.add((value, "blocked"))
            n, c, h, w = self._shape(value)
            sizes = (n * -(-c // LANES), LANES, h * w, 1)
            self.launch(_kernel("permute", sizes, self.dtype), f"{self._name(value)}>blocked")

    def other(self, i: int, node: Node, taken: list[int]) -> None:
        """Take plain values; launch the layer's own kernels."""
        for value in taken:
            self.need_plain(value)
        kernels = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        names = (node.name, f"{node.name}/*") if len(kernels) == 1 else ()
        for kernel in kernels:
            self.launch(kernel, *names)

    def free(self, i: int, node: Node, taken: list[int]) -> None:
        """Take a plain value; its memory is the output's."""
        self.need_plain(taken[0])

    def conv(self, i: int, node: Node, taken: list[int]) -> None:
        (kernel,) = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        kind = _conv_kind(kernel) if len(self._shape(taken[0])) == 4 else "plain"
        if kind == "blocked":
            self.need_blocked(taken[0])
        else:
            self.need_plain(taken[0])
        self.open[i] = self.launch(
            kernel, node.name, kind="plain" if kind == "plain" else "blocked"
        )
        if kind != "plain":
            self.blocked.add(i)

    def linear(self, i: int, node: Node, taken: list[int]) -> None:
        self.need_plain(taken[0])
        (kernel,) = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        made = self.launch(kernel, node.name, f"{node.name}/*", kind="matrix")
        if len(self.facts.outputs[i]) == 2:  # Gemm; MatMul takes no activation
            self.open[i] = made

    def batch_norm(self, i: int, node: Node, taken: list[int]) -> None:
        (value,) = taken
        made = self.open.get(value)
        alone = made is not None and self.uses[value] == 1 and made.kind != "matrix"
        if made is not None and alone and not set(made.epilogue) - {"bias"}:
            made.epilogue = ["bias"]
            self._join(i, node, value)
        elif value in self.blocked:
            # Becomes a blocked 1x1 convolution of every channel by itself.
            n, c, h, w = self._shape(value)
            sizes = (n, c, h, w, c, 1, 1, 1, 0, 1, c)
            kernel = Kernel("conv2d", sizes, self.dtype, ("bias",))
            self.open[i] = self.launch(kernel, node.name, kind="blocked")
            self.blocked.add(i)
        else:
            self.other(i, node, taken)

    def activation(self, i: int, node: Node, taken: list[int]) -> None:
        (value,) = taken
        rule = _FUSES.get(type(node.layer))
        made = self.open.get(value)
        if rule is not None and made is not None and self.uses[value] == 1:
            part, plain, blocked, adding, matrix = rule
            acts = set(made.epilogue) - {"bias", "add"}
            may = {"plain": plain, "matrix": matrix}.get(
                made.kind, adding if "add" in made.epilogue else blocked
            )
            if may and not acts:
                made.epilogue.append(part)
                self._join(i, node, value)
                return
        if value in self.blocked and isinstance(node.layer, _BLIND):
            (kernel,) = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
            self.launch(kernel, node.name, f"{node.name}/*")
            self.blocked.add(i)
        else:
            self.other(i, node, taken)

    def _join(self, i: int, node: Node, value: int) -> None:
        made = self.open[value]
        made.nodes += (node.name, f"{node.name}/*")
        self.open[i] = made
        if value in self.blocked:
            self.blocked.add(i)

    def add(self, i: int, node: Node, taken: list[int]) -> None:
        if all(value in self.blocked for value in taken):
            self._add(i, node, taken, "blocked", fallback=self._binary)
        else:
            self._add(i, node, taken, "plain", fallback=self.other)

    def _add(
        self,
        i: int,
        node: Node,
        taken: list[int],
        kind: str,
        fallback: Callable[[int, Node, list[int]], None],
    ) -> None:
        # The addition goes into a convolution that nobody else reads.
        for at, value in enumerate(taken):
            made = self.open.get(value)
            if made is None or made.kind != kind or self.uses[value] != 1:
                continue
            if set(made.epilogue) - {"bias"}:
                continue
            if kind == "plain":
                self.need_plain(taken[1 - at])
            # It runs where the later of the two is known.
            self.made.remove(made)
            self.made.append(made)
            made.epilogue.append("add")
            self._join(i, node, value)
            return
        fallback(i, node, taken)

    def _binary(self, i: int, node: Node, taken: list[int]) -> None:
        (kernel,) = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        self.launch(kernel, node.name)
        self.blocked.add(i)

    def mul(self, i: int, node: Node, taken: list[int]) -> None:
        first, second = self.facts.inputs[i]
        if first == second and all(value in self.blocked for value in taken):
            self._binary(i, node, taken)
        else:
            self.other(i, node, taken)

    def pool(self, i: int, node: Node, taken: list[int]) -> None:
        if self._shape(taken[0])[1] % LANES:
            self.other(i, node, taken)
            return
        self.need_blocked(taken[0])
        (kernel,) = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        self.launch(kernel, node.name)
        self.blocked.add(i)

    def upsample(self, i: int, node: Node, taken: list[int]) -> None:
        if taken[0] not in self.blocked:
            self.other(i, node, taken)
            return
        (kernel,) = layer_kernels(node.layer, self.dtype, self.facts.inputs[i])
        self.launch(kernel, node.name)
        self.blocked.add(i)

    def concat(self, i: int, node: Node, taken: list[int]) -> None:
        layer: Any = node.layer
        aligned = all(
            value in self.blocked and self._shape(value)[1] % LANES == 0 for value in taken
        )
        if aligned and layer.dim == 1:
            self._binary(i, node, taken)
        else:
            self.other(i, node, taken)

    def attention(self, i: int, node: Node, taken: list[int]) -> None:
        """Add what splits and joins heads to the raw kernels, and the mask."""
        layer: Any = node.layer
        (shape,) = self.facts.inputs[i]
        n, t, _ = shape
        project, scores, softmax, mixed, join = layer_kernels(layer, self.dtype, (shape,))
        head, kv = layer.torch(shape).args[2:4]
        name, heads = node.name, layer.heads
        self.launch(project, f"{name}/qkv_matmul", f"{name}/qkv")
        split = (n, t, heads + 2 * kv, head)
        self.launch(_kernel("permute", split, self.dtype), f"{name}/heads", f"{name}/split")
        if kv != heads:
            repeated = Kernel("concat", (n * kv, heads // kv * t * head), self.dtype)
            for part in ("key", "value"):
                self.launch(repeated, f"{name}/{part}_expanded")
        self.launch(scores, f"{name}/scores")
        if layer.causal:
            self.launch(Kernel("add_cols", (n * heads, t * t), self.dtype), f"{name}/masked")
        self.launch(softmax, f"{name}/softmax")
        self.launch(mixed, f"{name}/mixed")
        self.launch(_kernel("permute", (n, heads, t, head), self.dtype), f"{name}/tokens")
        self.launch(join, f"{name}/out_matmul", name)


def _blocked_between(shape: Shape) -> bool:
    """Tell whether an image of a shape is blocked on its way from one block to the next."""
    if len(shape) != 4 or shape[2:] == (1, 1):
        return False
    return shape[1] > _MOST_IMAGE_CHANNELS and shape[1] % _ALIGNED == 0


def _place(part: str) -> int:
    """Order an epilogue: bias, addition, activation."""
    return ("bias", "add").index(part) if part in ("bias", "add") else 2


def _conv_kind(kernel: Kernel) -> str:
    """Return plain, blocked, or direct: blocked, but of a plain input."""
    c, k, groups = (kernel.dim(name) for name in ("c", "k", "groups"))
    if groups == 1:
        if c < LANES:
            return "direct"
        return "plain" if c % _ALIGNED else "blocked"
    if k % _ALIGNED:
        return "plain"
    if groups == c == k:
        return "blocked"
    return "plain" if (c // groups) % LANES or (k // groups) % LANES else "blocked"


_Rule = Callable[[_Lowering, int, Node, list[int]], None]
_RULES: Final[dict[type[Layer], _Rule]] = {
    layers.Add: _Lowering.add,
    layers.Attention: _Lowering.attention,
    layers.AvgPool2d: _Lowering.pool,
    layers.BatchNorm2d: _Lowering.batch_norm,
    layers.Concat: _Lowering.concat,
    layers.Conv1d: _Lowering.conv,
    layers.Conv2d: _Lowering.conv,
    layers.DepthwiseConv2d: _Lowering.conv,
    layers.Linear: _Lowering.linear,
    layers.MaxPool2d: _Lowering.pool,
    layers.Mul: _Lowering.mul,
    layers.Upsample: _Lowering.upsample,
    **dict.fromkeys((*_FUSES, layers.SiLU), _Lowering.activation),
    **dict.fromkeys(_FREE, _Lowering.free),
}
