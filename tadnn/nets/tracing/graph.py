"""Two exports of one module, for two batches, as one graph whose sizes know the batch.

What is the same number in both is a constant; what grows with the batch is a multiple of it.
A module is not asked for a symbolic batch: many decide by numbers that a symbol cannot give
(windows, paddings, heads folded into the batch), and every size in the two graphs is plain.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from tadnn.errors import TraceError
from tadnn.nets.layers import Shape
from tadnn.nets.tracing.recording import Recorded

BATCHES: Final = (2, 3)
"""The batches of the two exports."""

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')


@dataclass(frozen=True)
class PerBatch:
    """A number that is ``times`` the batch."""

    times: int


@dataclass(frozen=True)
class Origin:
    """Where in the module something is computed.

    ``stack`` are the names of the submodule, such as ``layer1.0.conv1``, and of all around it,
    the outermost first; ``kinds`` are their classes' names.
    """

    stack: tuple[str, ...]
    kinds: tuple[str, ...]
    line: str

    @property
    def path(self) -> str:
        """The submodule's name."""
        return self.stack[-1] if self.stack else ""


@dataclass(frozen=True)
class Call:
    """One operator with its arguments by name; tensors are nodes of the first graph."""

    node: Node
    name: str
    args: dict[str, Any]
    shapes: tuple[Shape, ...]
    origin: Origin

    @property
    def shape(self) -> Shape:
        """The output's sizes; ``-k`` is k times the batch."""
        return self.shapes[0]

    @property
    def overload(self) -> str:
        """The operator with its overload, such as ``aten.add.Tensor``."""
        return str(self.node.target)


def operators(
    first: ExportedProgram | Recorded, second: ExportedProgram | Recorded
) -> Iterator[Call]:
    """Yield every operator in order.

    Raises:
        TraceError: the graphs differ by more than the batch.
    """
    pairs = list(zip(first.graph.nodes, second.graph.nodes, strict=False))
    same = len(first.graph.nodes) == len(second.graph.nodes)
    for a, b in pairs:
        if not same or a.op != b.op or str(a.target) != str(b.target):
            raise TraceError(
                f"a module computes the same for every batch; this one differs between batches "
                f"of {BATCHES[0]} and {BATCHES[1]}{line_of(a)}: {a.target} and {b.target}"
            )
        if a.op == "call_function" and a.target is not operator.getitem:
            yield _call(a, b)


def _call(a: Node, b: Node) -> Call:
    if not isinstance(a.target, torch._ops.OpOverload):
        raise TraceError(f"no operator of a network: {a.target}{line_of(a)}")
    schema = a.target._schema
    names = [argument.name for argument in schema.arguments]
    both = []
    for node in (a, b):
        args = {
            argument.name: argument.default_value
            for argument in schema.arguments
            if argument.has_default_value()
        }
        both.append(args | dict(zip(names, node.args, strict=False)) | dict(node.kwargs))
    args = {name: _merged(both[0][name], both[1][name], a) for name in names if name in both[0]}
    return Call(a, schema.name.replace("::", "."), args, node_shapes(a, b), origin_of(a))


def node_shapes(a: Node, b: Node) -> tuple[Shape, ...]:
    """Return the sizes of every tensor that a node gives; ``-k`` is k times the batch."""
    pair = [_tensors(node.meta.get("val")) for node in (a, b)]
    return tuple(_shape(x, y, a) for x, y in zip(*pair, strict=True))


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [v for v in value if isinstance(v, Tensor)] if isinstance(value, (list, tuple)) else []


def _shape(a: Tensor, b: Tensor, node: Node) -> Shape:
    if a.is_complex():
        raise TraceError(
            f"a network's tensors are real; {node.target} gives complex numbers{line_of(node)}. "
            f"Compute with real and imaginary parts as two tensors, or cos and sin"
        )
    sizes = []
    for x, y in zip(a.shape, b.shape, strict=True):
        merged = _merged(int(x), int(y), node)
        sizes.append(-merged.times if isinstance(merged, PerBatch) else merged)
    return tuple(sizes)


def _merged(a: Any, b: Any, node: Node) -> Any:
    if isinstance(a, Node):
        return a
    if isinstance(a, (list, tuple)):
        if not isinstance(b, (list, tuple)) or len(a) != len(b):
            raise TraceError(f"arguments of {node.target} differ between batches{line_of(node)}")
        return [_merged(x, y, node) for x, y in zip(a, b, strict=True)]
    if a == b or (a != a and b != b):
        return a
    small, large = BATCHES
    if type(a) is int and type(b) is int and a * large == b * small and a % small == 0:
        return PerBatch(a // small)
    raise TraceError(
        f"sizes are constant or a multiple of the batch; {node.target} has {a} for a batch of "
        f"{small} and {b} for {large}{line_of(node)}"
    )


def origin_of(node: Node) -> Origin:
    """Return where in the module a node comes from."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    kinds = tuple(str(k if isinstance(k, str) else k.__name__).split(".")[-1] for _, k in stack)
    # A submodule that is called again has @1 behind its name.
    names = tuple(re.sub(r"@\d+", "", str(name)) for name, _ in stack)
    return Origin(names, kinds, line_of(node))


def line_of(node: Node) -> str:
    """Return `` at file:line (`code`)`` of the source that made a node; else nothing."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    own = [f for f in frames if "/torch/" not in f["file"]] or frames
    return f" at {own[-1]['file']}:{own[-1]['line']} (`{own[-1]['code'].strip()}`)" if own else ""
