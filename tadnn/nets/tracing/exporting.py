"""A module through torch.export, left as it was, and what goes wrong in words."""

from __future__ import annotations

import contextlib
import copy
import io
import linecache
import logging
import operator
import random
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.export import ExportedProgram
from torch.fx import Node

from tadnn.errors import TraceError
from tadnn.nets.tracing.recording import Recorded, record

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


@contextlib.contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside a ``with`` block and restore everything but values after it.

    Values are safe: what runs inside are tensors without any. They may end up in attributes
    and in what attributes hold, such as a module's cache of masks by their size.
    """
    kept = [
        (part, dict(part.__dict__), [(v, copy.copy(v)) for v in _holders(part)])
        for part in module.modules()
    ]
    python, generator = random.getstate(), torch.get_rng_state()
    fast = torch.backends.mha.get_fastpath_enabled()
    # It is one operator for a whole layer, whose products nobody could see.
    torch.backends.mha.set_fastpath_enabled(False)
    for part in module.modules():
        part.training = False
    try:
        yield
    finally:
        for part, attributes, contents in kept:
            part.__dict__.clear()
            part.__dict__.update(attributes)
            for holder, content in contents:
                holder.clear()
                (holder.extend if isinstance(holder, list) else holder.update)(content)
        torch.backends.mha.set_fastpath_enabled(fast)
        random.setstate(python)
        torch.set_rng_state(generator)


def _holders(part: nn.Module) -> list[Any]:
    return [value for value in vars(part).values() if isinstance(value, (dict, list, set))]


def export(module: nn.Module, example: Tensor) -> ExportedProgram:
    """Return the module's graph for one batch.

    Raises:
        TraceError: torch.export cannot follow the module.
    """
    try:
        with as_it_was(module), _quiet(), torch.no_grad():
            program = torch.export.export(module, (example,), strict=False)
            table = _recurrent(program)
            if table or _must_be_functional(program):
                program = program.run_decompositions(table)
            return program
    except Exception as error:  # whatever people's own forward raises
        raise TraceError(_in_words(module, example, error)) from error


def recorded(module: nn.Module, example: Tensor) -> Recorded:
    """Return the module's graph for one batch, recorded, which is several times as fast.

    Raises:
        TraceError: only torch.export can follow the module.
        Exception: whatever the module's forward raises on tensors without values.
    """
    with as_it_was(module), _quiet():
        program = record(module, example)
    if _recurrent(program) or _must_be_functional(program):
        raise TraceError("operators must be taken apart, or what is written in place be followed")
    return program


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch prints of its own insides, whole graphs among it."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _recurrent(program: ExportedProgram | Recorded) -> dict[Any, Any]:
    """Return how the program's recurrent operators are computed step by step; empty without any.

    Their steps are products and activations, which are counted and priced as such.
    """
    names = {f"aten.{kind}.input" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    found = {
        node.target
        for node in program.graph.nodes
        if node.op == "call_function" and str(node.target) in names
    }
    return dict(get_decompositions(list(found))) if found else {}


def _must_be_functional(program: ExportedProgram | Recorded) -> bool:
    """Tell whether something is written in place that is read by another name afterwards.

    Everything else that is written in place has the same graph without: whoever reads it later
    reads what the operator gave. Making a graph functional takes longer than the export.
    """
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return True
        schema = node.target._schema
        if not schema.is_mutable:
            continue
        first = node.args[0] if node.args else None
        if not schema.name.endswith("_") or not isinstance(first, Node):
            return True
        names = _names(first, node)
        stored = any(
            n.op == "placeholder" and n.name not in program.graph_signature.user_inputs
            for n in names
        )
        if stored or any(order[user] > order[node] for name in names for user in name.users):
            return True
    return False


def _names(written: Node, writer: Node) -> set[Node]:
    """Return every node whose memory a value shares, but for the writer's own output."""
    found: set[Node] = set()
    waiting = [written]
    while waiting:
        node = waiting.pop()
        if node in found or node is writer:
            continue
        found.add(node)
        if _is_view(node):
            waiting += node.all_input_nodes
        waiting += [user for user in node.users if _is_view(user)]
    return found


def _is_view(node: Node) -> bool:
    """Tell whether a value may share memory with the one that it comes from."""
    target = node.target
    if node.op != "call_function":
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return True
    shares = any(argument.alias_info is not None for argument in target._schema.arguments)
    return shares or target._schema.name.removeprefix("aten::") in _MAYBE_VIEWS


_MAYBE_VIEWS = frozenset({"reshape", "contiguous", "flatten", "unflatten", "to", "dropout"})


def _in_words(module: nn.Module, example: Tensor, error: Exception) -> str:
    kind = type(module).__name__
    where = source_line(error)
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    names = {type(e).__name__ for e in _chain(error)}
    size = list(example.shape)
    if names & {"GuardOnDataDependentSymNode", "DataDependentOutputException", "UserError"} or (
        "data-dependent" in str(error).lower()
    ):
        return (
            f"{kind} decides by its data what to compute{where}: {text}. A network is one graph "
            f"for every input: make the branch static (a flag of the module), select with "
            f"torch.where, or hand over the part of the module without it"
        )
    if "'indices'" in str(error) and "Long" in str(error):
        return (
            f"{kind} looks token ids up{where}: {text}. Pass dtype=torch.int64; got {example.dtype}"
        )
    if "missing" in text and "argument" in text:
        return (
            f"a module takes one tensor; {kind} takes several{where}: {text}. Wrap it in a module "
            f"whose forward(x) sets the others"
        )
    return (
        f"torch.export cannot follow {kind} with an input of {size} ({example.dtype}){where}: "
        f"{type(error).__name__}: {text}. Check the input's shape; what torch cannot trace "
        f"(numpy, .item(), Python side effects) belongs outside of forward"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def source_line(error: Exception) -> str:
    """Return `` at file:line (`code`)`` of the last line that is people's own; else nothing."""
    for each in _chain(error):
        frames = traceback.extract_tb(each.__traceback__)
        own = [f for f in frames if not f.filename.startswith((_TORCH, _HERE, "<"))]
        if own:
            code = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
            return f" at {own[-1].filename}:{own[-1].lineno} (`{code}`)"
    return ""
