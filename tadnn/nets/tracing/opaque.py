"""Operators that no rule reads, as layers that call them."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tadnn.errors import ShapeError, TraceError
from tadnn.nets.layers import Opaque
from tadnn.nets.tracing.graph import BATCHES, Call, PerBatch
from tadnn.nets.tracing.lowering import Lowering, Value

_WHERE = ("device", "layout", "memory_format", "pin_memory", "non_blocking", "generator")


def opaque(lo: Lowering, call: Call) -> Value | tuple[Value, ...]:
    """Return the outputs of an operator as opaque layers, one for each.

    Raises:
        TraceError: it draws random numbers, writes to its inputs, or isn't torch's own.
    """
    target = call.node.target
    assert isinstance(target, torch._ops.OpOverload)
    if torch.Tag.nondeterministic_seeded in target.tags and not _is_certain(call):
        raise TraceError(
            f"a network gives the same twice; {call.overload} draws random numbers in evaluation "
            f"mode{call.origin.line}. Draw them only `if self.training`"
        )
    inputs: list[Value] = []
    defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}

    def plain(value: Any) -> Any:
        if isinstance(value, Node):
            inputs.append(lo.value(value))
            return {"input": len(inputs) - 1}
        if isinstance(value, PerBatch):
            return {"batch": value.times}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if abs(value) < float("inf") else {"float": str(value)}
        raise TraceError(
            f"{call.overload} has an argument that no file can hold{call.origin.line}: {value!r}"
        )

    arguments = {
        name: plain(value)
        for name, value in call.args.items()
        if name not in _WHERE and (name not in defaults or defaults[name] != value)
    }
    flops = _flops(call) / BATCHES[0]
    sizes = json.dumps([list(value.shape) for value in inputs])
    several = not isinstance(call.node.meta["val"], Tensor)
    counts = 0
    if several:  # one launch gives all parts: the first that is used counts
        users = [user for user in call.node.users if user.users]
        counts = min((int(str(user.args[1])) for user in users), default=0)
    made = []
    try:
        for part, shape in enumerate(call.shapes):
            layer = Opaque(
                _functional(call.overload),
                json.dumps(arguments),
                sizes,
                json.dumps(list(shape)),
                flops if part == counts else 0.0,
                part if several else None,
            )
            made.append(lo.emit(layer, *inputs))
    except ShapeError as error:
        raise TraceError(f"{call.overload} cannot be kept{call.origin.line}: {error}") from error
    return tuple(made) if several else made[0]


def _functional(overload: str) -> str:
    space, name, kind = overload.split(".")
    return f"{space}.{name.removesuffix('_')}.{kind}"


def _is_certain(call: Call) -> bool:
    """Tell whether an operator that may drop values drops none."""
    return call.args.get("dropout_p") == 0.0 or call.args.get("train") is False


def _flops(call: Call) -> float:
    """Return what torch's own counter says, on tensors without values."""
    node, target = call.node, call.node.target

    def empty(taken: Node) -> Any:
        value = taken.meta["val"]
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), empty)
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            target(*args, **{k: v for k, v in kwargs.items() if k != "device"})  # type: ignore[operator]
    except (NotImplementedError, RuntimeError):
        # It doesn't run without values. Torch's formula asks for shapes alone; where there is
        # none, nothing is counted, as elsewhere, and the operator is priced by what it moves.
        formula = flop_registry.get(getattr(target, "overloadpacket", None))
        return float(formula(*args, **kwargs, out_val=node.meta["val"])) if formula else 0.0
    return float(counter.get_total_flops())
