"""The steps of tracing: two exports, a rule per operator, blocks, weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from tadnn.errors import RequestError, ShapeError, TraceError
from tadnn.nets.blocks import INPUT
from tadnn.nets.layers import Opaque, Shape
from tadnn.nets.net import Net
from tadnn.nets.tracing import Traced
from tadnn.nets.tracing.constants import Const, Constants
from tadnn.nets.tracing.cutting import net_of
from tadnn.nets.tracing.exporting import export, recorded
from tadnn.nets.tracing.folding import folded
from tadnn.nets.tracing.graph import BATCHES, Call, line_of, node_shapes, operators
from tadnn.nets.tracing.lowering import Lowering, Value, identity
from tadnn.nets.tracing.opaque import opaque
from tadnn.nets.tracing.recording import Recorded
from tadnn.nets.tracing.rules import CREATES, RULES


def trace_module(
    module: nn.Module,
    input_shape: Shape,
    *,
    dtype: torch.dtype | None = None,
    example: Tensor | None = None,
) -> Traced:
    """Return the network that a module computes; see :func:`tadnn.nets.trace`."""
    return _traced(module, input_shape, dtype, example, see=export, weights=True)


def read_module(module: nn.Module, input_shape: Shape) -> Net:
    """Return the network that a module computes; see :func:`tadnn.nets.read_net`."""
    try:
        return _traced(module, input_shape, None, None, see=recorded, weights=False).net
    except Exception:  # whatever people's own forward raises: torch.export goes further, or says it
        return _traced(module, input_shape, None, None, see=export, weights=False).net


def _traced(
    module: nn.Module,
    input_shape: Shape,
    dtype: torch.dtype | None,
    example: Tensor | None,
    *,
    see: Callable[[nn.Module, Tensor], ExportedProgram | Recorded],
    weights: bool,
) -> Traced:
    shape = tuple(input_shape)
    if not shape or any(type(size) is not int or size < 1 for size in shape):
        raise RequestError(
            f"an input shape has positive whole sizes, such as 3, 224, 224; got {shape}"
        )
    if example is not None and tuple(example.shape[1:]) != shape:
        raise RequestError(f"an example is a batch of {list(shape)}; got {list(example.shape)}")
    kind = _input_dtype(module, dtype if example is None else example.dtype)
    programs = [see(module, torch.zeros((batch, *shape), dtype=kind)) for batch in BATCHES]
    first, second = programs
    inputs = [
        (a, b)
        for a, b in zip(first.graph.nodes, second.graph.nodes, strict=False)
        if a.op == "placeholder" and a.name in first.graph_signature.user_inputs
    ]
    if len(inputs) != 1 or not isinstance(inputs[0][0].meta.get("val"), Tensor):
        raise TraceError(
            f"a module takes one tensor; {type(module).__name__} takes {len(inputs)} inputs. "
            f"Wrap it in a module whose forward(x) sets the others"
        )
    ((taken, again),) = inputs
    (input_template,) = node_shapes(taken, again)
    lo = Lowering(Constants(first), input_template, copies=weights)
    for node in first.graph.nodes:
        if node.op == "placeholder":
            held = tuple(node.meta["val"].shape) if isinstance(node.meta.get("val"), Tensor) else ()
            lo.values[node] = Const(node, held)
    lo.constants.sized.add(taken)
    lo.values[taken] = Value(INPUT, input_template, tuple(range(len(input_template))))
    for call in operators(first, second):
        _lower(lo, call)
    output = _output(module, first.graph.output_node(), lo)
    try:
        net, tensors = net_of(folded(lo.items, output.item), output.item, shape)
    except ShapeError as error:
        raise TraceError(
            f"{type(module).__name__} does something that no network of blocks does: {error}"
        ) from error
    if not kind.is_floating_point and net.input_dtype == "float":
        raise TraceError(
            f"whole numbers are inputs only where an embedding looks them up; "
            f"{type(module).__name__} computes with them: pass floats"
        )
    found = Counter(layer.layer.op for layer in net.layers() if isinstance(layer.layer, Opaque))
    return Traced(net, tensors, dict(sorted(found.items())))


def _input_dtype(module: nn.Module, asked: torch.dtype | None) -> torch.dtype:
    tensors = [*module.parameters(), *module.buffers()]
    away = sorted({str(t.device) for t in tensors if t.device.type != "cpu"})
    if away:
        raise TraceError(f"modules are traced on the CPU; got one on {', '.join(away)}")
    if any(t.is_complex() for t in tensors) or (asked is not None and asked.is_complex):
        raise TraceError(
            "a network's tensors are real; got complex numbers. Compute with real and imaginary "
            "parts as two tensors"
        )
    if asked is None:
        floats = [p.dtype for p in module.parameters() if p.is_floating_point()]
        first = next(iter(module.modules()), module)
        looks_up = next((m for m in first.modules() if not list(m.children())), None)
        if isinstance(looks_up, nn.Embedding):
            return torch.int64
        return floats[0] if floats else torch.float32
    if not asked.is_floating_point and asked not in (torch.int64, torch.int32):
        raise TraceError(
            f"inputs are float, or whole numbers (torch.int64) that an embedding looks up; "
            f"got {asked}"
        )
    return asked


# Of constants that are there once per input, a product is computed for each, as the module does.
_PRODUCTS = frozenset(f"aten.{name}" for name in ("addmm", "bmm", "linear", "matmul", "mm"))


def _lower(lo: Lowering, call: Call) -> None:
    if call.name.startswith("aten._assert") or call.name.startswith("aten.sym_constrain"):
        return
    inputs = [node for node in call.node.all_input_nodes]
    constant = all(_is_constant(lo, node) for node in inputs) or call.name in CREATES
    if constant and not (call.name in _PRODUCTS and any(size < 0 for size in call.shape)):
        if torch.Tag.nondeterministic_seeded in call.node.target.tags and not (  # type: ignore[union-attr]
            call.name.endswith("dropout") or call.name in CREATES
        ):
            raise TraceError(
                f"a network gives the same twice; {call.name} draws random numbers in evaluation "
                f"mode{call.origin.line}. Draw them only `if self.training`"
            )
        many = len(call.shapes) != 1 or not isinstance(call.node.meta["val"], Tensor)
        parts = tuple(Const(call.node, shape, i) for i, shape in enumerate(call.shapes))
        lo.values[call.node] = parts if many else Const(call.node, call.shape)
        return
    lo.begin(call)
    before = len(lo.items)
    made = None
    if (rule := RULES.get(call.name.removesuffix("_"))) is not None:
        try:
            made = rule(lo, call)
        except ShapeError:
            made = None  # the vocabulary's layer doesn't go that far
    if made is not None and tuple(v.shape for v in _many(made)) != call.shapes[: len(_many(made))]:
        raise TraceError(
            f"{call.overload} was read wrongly{call.origin.line}: "
            f"{[v.shape for v in _many(made)]} for {call.shapes}"
        )
    if made is None:
        del lo.items[before:]
        made = opaque(lo, call)
    lo.values[call.node] = made
    lo.constants.sized.add(call.node)


def _is_constant(lo: Lowering, node: Node) -> bool:
    known = lo.values.get(node)
    if known is None:  # one of several outputs
        known = lo.operand(node)
    return all(
        isinstance(each, Const) for each in (known if isinstance(known, tuple) else (known,))
    )


def _many(made: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return made if isinstance(made, tuple) else (made,)


def _output(module: nn.Module, node: Node, lo: Lowering) -> Value:
    # Beside its outputs, a graph gives what it wrote to inputs and buffers.
    specs = lo.constants.program.graph_signature.output_specs
    given = zip(node.args[0], specs, strict=True)  # type: ignore[arg-type]
    own = [n for n, spec in given if spec.kind == OutputKind.USER_OUTPUT and isinstance(n, Node)]
    if len(own) != 1:
        raise TraceError(
            f"a module gives one tensor; {type(module).__name__} gives {len(own)}. Wrap it in a "
            f"module whose forward(x) returns one of them"
        )
    if isinstance(lo.operand(own[0]), Const):
        raise TraceError(f"the output doesn't depend on the input{line_of(own[0])}")
    value = lo.value(own[0])
    if value.shape[0] != -1:
        raise TraceError(
            f"an output's first dimension is the batch; got {list(value.shape)} "
            f"(-1: the batch){line_of(own[0])}"
        )
    return identity(lo, value) if value.item == INPUT else value
