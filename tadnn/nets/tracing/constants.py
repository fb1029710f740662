"""Tensors of a module that depend on its weights alone: computed once, while it is traced."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from tadnn.errors import TraceError
from tadnn.nets.layers import Shape
from tadnn.nets.tracing.graph import line_of
from tadnn.nets.tracing.recording import Recorded


@dataclass(frozen=True)
class Const:
    """A tensor that depends on weights alone; computed when someone asks for it."""

    node: Node
    shape: Shape
    part: int | None = None


@dataclass
class Constants:
    """Computes the constants of one graph.

    ``sized`` are nodes that depend on the input, and of which a constant takes the size.
    """

    program: ExportedProgram | Recorded
    sized: set[Node] = field(default_factory=set)
    _tensors: dict[Node, Any] = field(default_factory=dict)
    _trained: dict[Node, bool] = field(default_factory=dict)

    def tensor(self, const: Const) -> Tensor:
        """Return a constant's values."""
        with torch.no_grad():
            made = self._computed(const.node)
        tensor = made if const.part is None else made[const.part]
        assert isinstance(tensor, Tensor)
        if tensor.is_complex():
            raise TraceError(f"a network's constants are real{line_of(const.node)}")
        return tensor.detach()

    def trained(self, node: Node) -> bool:
        """Tell whether a constant depends on a parameter."""
        if node not in self._trained:
            signature = self.program.graph_signature
            own = node.op == "placeholder" and node.name in signature.inputs_to_parameters
            self._trained[node] = own or any(self.trained(n) for n in node.all_input_nodes)
        return self._trained[node]

    def _computed(self, node: Node) -> Any:
        if node in self._tensors:
            return self._tensors[node]
        whole = node.args[0] if node.target is operator.getitem else node
        if whole in self.sized:  # only its size matters
            like = node.meta["val"]
            made: Any = torch.empty(like.shape, dtype=like.dtype)
        elif node.op == "placeholder":
            made = self._held(node.name)
        else:

            def read(argument: Any) -> Any:
                return torch.fx.node.map_arg(argument, self._computed)

            made = node.target(*read(node.args), **read(node.kwargs))  # type: ignore[operator]
        self._tensors[node] = made
        return made

    def _held(self, name: str) -> Tensor:
        signature, program = self.program.graph_signature, self.program
        where = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }[name]
        held = program.state_dict.get(where)
        tensor = program.constants[where] if held is None else held
        assert isinstance(tensor, Tensor)
        return tensor
