"""Arithmetic of two operands: values, constants, numbers."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch.fx import Node

from tadnn.nets.layers import (
    Add,
    Binary,
    Layer,
    Mul,
    Pointwise,
    PositionEmbedding,
    Where,
)
from tadnn.nets.tracing.constants import Const
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value


def _pow(lo: Lowering, call: Call) -> Value | None:
    base, exponent = call.args["self"], call.args["exponent"]
    if isinstance(exponent, Node) and isinstance(base, Node):
        return _binary("pow")(lo, call)  # type: ignore[return-value]
    if isinstance(exponent, Node):
        return None
    x = lo.value(base)
    named = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in named:
        return lo.emit(Pointwise(named[exponent]), x)
    return lo.emit(Pointwise("pow", float(exponent)), x)


def _binary(function: str) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value | None:
        first, second = call.args["self"], call.args.get("other", call.args.get("exponent"))
        if call.args.get("rounding_mode") is not None:
            return None
        if call.args.get("alpha", 1) != 1:
            if not isinstance(second, Node):
                second = second * call.args["alpha"]
            else:
                scaled = lo.emit(Pointwise("mul", float(call.args["alpha"])), lo.value(second))
                return binary(lo, function, _either(lo, first), scaled)
        return binary(lo, function, _either(lo, first), _either(lo, second))

    return rule


def _rsub(lo: Lowering, call: Call) -> Value | None:
    if call.args["alpha"] != 1:
        return None
    first, second = _either(lo, call.args["self"]), _either(lo, call.args["other"])
    if isinstance(second, (int, float)) and isinstance(first, Value):
        return lo.emit(Pointwise("rsub", float(second)), first)
    return binary(lo, "sub", second, first)


def _either(lo: Lowering, argument: Any) -> Any:
    """Return an argument as a value, a constant, or a number; None for what is neither."""
    if isinstance(argument, Node):
        operand = lo.operand(argument)
        if isinstance(operand, Const):
            if argument.meta["val"].dim() == 0 and not lo.trained(operand):
                return lo.tensor(operand).item()
            return operand
        return operand
    plain = isinstance(argument, (int, float)) and not isinstance(argument, bool)
    return argument if plain else None


def binary(lo: Lowering, function: str, first: Any, second: Any) -> Value | None:
    """Return a function of two operands, each a value, a constant or a number."""
    if first is None or second is None:
        return None
    if isinstance(second, (int, float)):
        return _with_number(lo, function, lo.settled(first), float(second))
    if isinstance(first, (int, float)):
        return _from_number(lo, function, float(first), lo.settled(second))
    if isinstance(second, Value) and isinstance(first, Value):
        a, b = lo.unexpanded(lo.settled(first)), lo.unexpanded(lo.settled(second))
        return _of_values(lo, function, a, b)
    if isinstance(second, Const) and function == "add" and isinstance(first, Value):
        shape = tuple(lo.tensor(second).shape)
        x = lo.settled(first)
        table = shape in ((1, *x.shape[1:]), x.shape[1:])
        if len(x.shape) == 3 and table and lo.trained(second) and second.shape == shape:
            weight = lo.tensor(second).reshape(1, *x.shape[1:])
            return lo.emit(PositionEmbedding(), x, weights={"weight": weight})
    a, b = (
        lo.stored(each, repeated=False)
        if isinstance(each, Const)
        else lo.unexpanded(lo.settled(each))
        for each in (first, second)
    )
    return lo.emit(Binary(function), a, b)


def _of_values(lo: Lowering, function: str, a: Value, b: Value) -> Value:
    if function in ("add", "mul"):
        layer: Layer = Add() if function == "add" else Mul()
        if a.shape == b.shape:
            return lo.emit(layer, a, b)
        if function == "mul":
            for image, gate in ((a, b), (b, a)):
                if len(image.shape) == 4 and gate.shape == (*image.shape[:2], 1, 1):
                    return lo.emit(layer, image, gate)
    return lo.emit(Binary(function), a, b)


def _with_number(lo: Lowering, function: str, x: Value, number: float) -> Value | None:
    if not math.isfinite(number):
        return None
    if (function, number) in (("add", 0), ("sub", 0), ("mul", 1), ("div", 1)):
        return x
    if function in ("maximum", "minimum"):
        return lo.emit(Pointwise("clamp_min" if function == "maximum" else "clamp_max", number), x)
    return lo.emit(Pointwise(function, number), x)


def _from_number(lo: Lowering, function: str, number: float, x: Value) -> Value | None:
    if function in ("add", "mul"):
        return _with_number(lo, function, x, number)
    if function == "sub":
        return lo.emit(Pointwise("rsub", number), x)
    if function == "div":
        return _with_number(lo, "mul", lo.emit(Pointwise("reciprocal"), x), number)
    return None


def _addcmul(lo: Lowering, call: Call) -> Value | None:
    """Return self + value first second."""
    product = binary(lo, "mul", *(_either(lo, call.args[f"tensor{i}"]) for i in (1, 2)))
    if product is None:
        return None
    if call.args["value"] != 1:
        product = lo.emit(Pointwise("mul", float(call.args["value"])), product)
    return binary(lo, "add", product, _either(lo, call.args["self"]))


def _masked_fill(lo: Lowering, call: Call) -> Value | None:
    """Return x where a mask doesn't say that a number is in its place."""
    return _chosen(lo, call.args["mask"], call.args["value"], call.args["self"])


def _where(lo: Lowering, call: Call) -> Value | None:
    return _chosen(lo, call.args["condition"], call.args["self"], call.args["other"])


def _chosen(lo: Lowering, condition: Node, true: Any, false: Any) -> Value | None:
    """Return one of two where a condition holds, else the other; -inf is added where stored."""
    first, second = _either(lo, true), _either(lo, false)
    mask = lo.const(condition)
    if first is None or second is None:
        return None
    for x, number in ((first, second), (second, first)):
        if mask is not None and number == -math.inf and isinstance(x, Value):
            hides = mask if x is second else ~mask
            table = torch.zeros(mask.shape).masked_fill(hides, -math.inf)
            return lo.emit(Binary("add"), lo.settled(x), lo.table(table))
    chosen = []
    for each in (lo.operand(condition), first, second):
        if isinstance(each, (int, float)):
            chosen.append(lo.table(torch.tensor([float(each)])))
        elif isinstance(each, Const):
            chosen.append(lo.stored(each, repeated=False))
        else:
            chosen.append(lo.unexpanded(lo.settled(each)))
    return lo.emit(Where(), *chosen)


TABLE: Final[dict[str, Rule]] = {
    "add": _binary("add"),
    "addcmul": _addcmul,
    "div": _binary("div"),
    "masked_fill": _masked_fill,
    "maximum": _binary("maximum"),
    "minimum": _binary("minimum"),
    "mul": _binary("mul"),
    "multiply": _binary("mul"),
    "pow": _pow,
    "rsub": _rsub,
    "sub": _binary("sub"),
    "true_divide": _binary("div"),
    "where": _where,
}
