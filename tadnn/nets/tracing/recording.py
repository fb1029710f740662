"""A module's graph as torch.export gives it, recorded in a single pass; several times as fast.

torch.export traces through proxies of everything. Where only the networks' shapes are wanted, of
hundreds of modules, the operators are noted as they come by: on tensors without values, before
autograd takes composite operators apart, which is where torch.export looks too. Who decides by
data, has recurrent layers or is otherwise out of the common goes to torch.export.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from tadnn.errors import TraceError

# Sizes follow without asking torch, which takes a batch norm apart to tell.
_LIKE_INPUT = frozenset(
    {"batch_norm", "gelu", "group_norm", "hardswish", "layer_norm", "relu", "sigmoid", "silu"}
)
_IN_PLACE = frozenset({"add", "hardswish", "hardtanh", "mul", "relu", "sigmoid", "silu"})
_CPU = torch.device("cpu")
_KEY = torch._C.DispatchKey.PreDispatch


@dataclass
class _Signature:
    """What :class:`torch.export.ExportGraphSignature` says, as far as it is asked."""

    user_inputs: list[str]
    inputs_to_parameters: dict[str, str] = field(default_factory=dict)
    inputs_to_buffers: dict[str, str] = field(default_factory=dict)
    inputs_to_lifted_tensor_constants: dict[str, str] = field(default_factory=dict)
    output_specs: list[Any] = field(default_factory=list)


@dataclass
class Recorded:
    """What :class:`torch.export.ExportedProgram` holds, as far as it is asked."""

    graph: Graph
    graph_signature: _Signature
    state_dict: dict[str, Tensor]
    constants: dict[str, Tensor]


class _Recorder(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operators. Torch lets few classes of modes look that early, so it claims to be one."""

    def __init__(self, recorded: Recorded, stack: list[tuple[str, Any]]) -> None:
        TorchDispatchMode.__init__(self, _KEY)  # type: ignore[no-untyped-call]
        self._recorded, self._stack = recorded, stack
        self._nodes: dict[int, Node] = {}
        self._created: dict[int, Node] = {}
        self._alive: list[Tensor] = []  # an id is a tensor's as long as the tensor lives

    def __enter__(self) -> _Recorder:
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode(_KEY)

    def know(self, tensor: Tensor, node: Node) -> None:
        """Note whose value a tensor is."""
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def node_of(self, tensor: Tensor) -> Node:
        """Return whose value a tensor is; one that nobody gave is a constant."""
        if id(tensor) not in self._nodes and tensor.is_meta:
            # What creates a tensor gives Python another object of the same memory.
            created = self._created.get(tensor.untyped_storage()._cdata)
            if created is None or created.meta["val"].shape != tensor.shape:
                raise TraceError("a tensor came from nowhere")
            self.know(tensor, created)
        if id(tensor) not in self._nodes:
            recorded = self._recorded
            name = f"lifted_{len(recorded.constants)}"
            first = next(iter(recorded.graph.nodes))
            with recorded.graph.inserting_before(first):
                node = recorded.graph.placeholder(name)
            node.meta["val"] = tensor
            recorded.constants[name] = tensor
            recorded.graph_signature.inputs_to_lifted_tensor_constants[node.name] = name
            self.know(tensor, node)
        return self._nodes[id(tensor)]

    def _read(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return [self._read(each) for each in value]
        # Values are computed later, where they are.
        return _CPU if isinstance(value, torch.device) else value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out: Any
        name = func._schema.name.removeprefix("aten::")
        if name in _LIKE_INPUT and not (name == "batch_norm" and args[5]):
            out = torch.empty_like(args[0])
        elif name.removesuffix("_") in _IN_PLACE and name.endswith("_"):
            out = args[0]
        else:
            out = func(*args, **kwargs)
        if func.namespace == "prim":
            return out
        read_args = tuple([self._read(value) for value in args])
        read_kwargs = {name: self._read(value) for name, value in kwargs.items()}
        graph = self._recorded.graph
        node = graph.create_node("call_function", func, read_args, read_kwargs)
        node.meta["val"] = out
        node.meta["nn_module_stack"] = dict(enumerate(self._stack))
        if isinstance(out, Tensor):
            self.know(out, node)
            if not node.all_input_nodes and out.is_meta:
                self._created[out.untyped_storage()._cdata] = node
        elif isinstance(out, (list, tuple)):
            for i, part in enumerate(out):
                if isinstance(part, Tensor):
                    taken = graph.call_function(operator.getitem, (node, i))
                    taken.meta["val"] = part
                    taken.meta["nn_module_stack"] = node.meta["nn_module_stack"]
                    self.know(part, taken)
        return out


def _without_values(tensor: Tensor) -> Tensor:
    like = torch.empty_like(tensor, device="meta")
    held: object = tensor
    return nn.Parameter(like, False) if isinstance(held, nn.Parameter) else like


def record(module: nn.Module, example: Tensor) -> Recorded:
    """Return the module's graph for one batch; raises whatever its forward raises."""
    graph, signature = Graph(), _Signature([])
    recorded = Recorded(graph, signature, {}, {})
    stack: list[tuple[str, Any]] = []
    recorder = _Recorder(recorded, stack)
    stand_ins: dict[str, Tensor] = {}
    for held, where in (
        (module.named_parameters(), signature.inputs_to_parameters),
        (module.named_buffers(), signature.inputs_to_buffers),
    ):
        for name, tensor in held:
            node = graph.placeholder("held_" + name.replace(".", "_"))
            stand_ins[name] = node.meta["val"] = _without_values(tensor)
            where[node.name], recorded.state_dict[name] = name, tensor
            recorder.know(stand_ins[name], node)
    taken = graph.placeholder("x")
    signature.user_inputs.append(taken.name)
    x = taken.meta["val"] = _without_values(example)
    recorder.know(x, taken)
    early = torch._C._IncludeDispatchKeyGuard(_KEY)  # else what creates tensors isn't seen
    with torch.no_grad(), _whereabouts(module, stack), enable_python_dispatcher(), early, recorder:
        out = torch.func.functional_call(module, stand_ins, (x,))
    outs = list(out) if isinstance(out, (list, tuple)) else [out]
    graph.output(tuple(recorder.node_of(each) for each in outs))
    signature.output_specs = [SimpleNamespace(kind=OutputKind.USER_OUTPUT)] * len(outs)
    return recorded


@contextlib.contextmanager
def _whereabouts(module: nn.Module, stack: list[tuple[str, Any]]) -> Iterator[None]:
    """Keep the names and kinds of the submodules that are running in a list, outermost first."""
    names = {id(part): name for name, part in module.named_modules()}

    def enter(part: nn.Module, _: Any) -> None:
        stack.append((names.get(id(part), ""), type(part).__name__))

    def leave(*_: Any) -> None:
        stack.pop()

    hooks = nn.modules.module
    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
