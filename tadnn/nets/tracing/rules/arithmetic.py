"""Functions of one value and of two."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch.fx import Node

from tadnn.nets.layers import (
    GELU,
    Add,
    Binary,
    HardSigmoid,
    HardSwish,
    Layer,
    LeakyReLU,
    Mul,
    Pointwise,
    PositionEmbedding,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Const, Lowering, Rule, Value


def _same(lo: Lowering, call: Call) -> Value | None:
    """Return the input: what does nothing in evaluation mode."""
    node = next(iter(call.node.all_input_nodes))
    before, after = node.meta["val"], call.node.meta["val"]
    floats = before.is_floating_point() and after.is_floating_point()
    dropping = call.args.get("train", call.args.get("training", False)) and call.args.get("p")
    if dropping or (before.dtype != after.dtype and not floats):
        return None
    return lo.lazy(node)


def _activation(layer: Layer) -> Rule:
    def rule(lo: Lowering, call: Call) -> Value:
        return lo.emit(layer, lo.value(next(iter(call.args.values()))))

    return rule


def _pointwise(function: str, *names: str) -> Rule:
    """Return a rule for a function with numbers among its arguments."""

    def rule(lo: Lowering, call: Call) -> Value | None:
        values = [call.args[name] for name in names]
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            return None
        layer = Pointwise(function, *(float(value) for value in values))
        return lo.emit(layer, lo.value(next(iter(call.args.values()))))

    return rule


def _gelu(lo: Lowering, call: Call) -> Value:
    return lo.emit(GELU(call.args["approximate"]), lo.value(call.args["self"]))


def _leaky(lo: Lowering, call: Call) -> Value:
    return lo.emit(LeakyReLU(float(call.args["negative_slope"])), lo.value(call.args["self"]))


def _elu(lo: Lowering, call: Call) -> Value | None:
    if call.args["scale"] != 1 or call.args["input_scale"] != 1:
        return None
    return lo.emit(Pointwise("elu", float(call.args["alpha"])), lo.value(call.args["self"]))


def _hardtanh(lo: Lowering, call: Call) -> Value:
    low, high = float(call.args["min_val"]), float(call.args["max_val"])
    layer = ReLU6() if (low, high) == (0, 6) else Pointwise("hardtanh", low, high)
    return lo.emit(layer, lo.value(call.args["self"]))


def _prelu(lo: Lowering, call: Call) -> Value | None:
    weight = lo.const(call.args["weight"])
    if weight is None or weight.dim() != 1:
        return None
    layer = PReLU(weight.numel() > 1)
    return lo.emit(layer, lo.value(call.args["self"]), weights={"weight": weight})


def _clamp(lo: Lowering, call: Call) -> Value | None:
    low, high = call.args["min"], call.args["max"]
    if isinstance(low, Node) or isinstance(high, Node):
        return None
    x = lo.value(call.args["self"])
    if low is None:
        return lo.emit(Pointwise("clamp_max", float(high)), x)
    if high is None:
        return lo.emit(Pointwise("clamp_min", float(low)), x)
    if (low, high) == (0, 6):
        return lo.emit(ReLU6(), x)
    return lo.emit(Pointwise("clamp", float(low), float(high)), x)


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


def _softmax(lo: Lowering, call: Call) -> Value | None:
    dim = call.args["dim"] % len(call.shape)
    last = -1 if dim == len(call.shape) - 1 else dim
    return lo.emit(Softmax(last), lo.value(call.args["self"]))


def _glu(lo: Lowering, call: Call) -> Value:
    x = lo.value(call.args["self"])
    dim = call.args["dim"] % len(x.shape)
    half = x.shape[dim] // 2
    gate = lo.emit(Sigmoid(), lo.sliced(x, dim, half, half))
    return lo.emit(Mul(), lo.sliced(x, dim, 0, half), gate)


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
            if argument.meta["val"].dim() == 0 and not lo.trained(operand.node):
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
        if len(x.shape) == 3 and table and lo.trained(second.node) and second.shape == shape:
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
    """Return x plus a stored -inf where a constant mask says so; other fills stay opaque."""
    mask, value = lo.const(call.args["mask"]), _either(lo, call.args["value"])
    if mask is None or value != -math.inf:
        return None
    return _hidden(lo, call, mask, lo.value(call.args["self"]))


def _where(lo: Lowering, call: Call) -> Value | None:
    mask = lo.const(call.args["condition"])
    other = _either(lo, call.args["other"])
    if mask is None or other != -math.inf or not isinstance(call.args["self"], Node):
        return None
    return _hidden(lo, call, ~mask, lo.value(call.args["self"]))


def _hidden(lo: Lowering, call: Call, mask: torch.Tensor, x: Value) -> Value:
    table = torch.zeros(mask.shape).masked_fill(mask, -math.inf)
    return lo.emit(Binary("add"), x, lo.table(table))


_ACTIVATIONS: Final[dict[str, Layer]] = {
    "hardsigmoid": HardSigmoid(),
    "hardswish": HardSwish(),
    "relu": ReLU(),
    "relu6": ReLU6(),
    "sigmoid": Sigmoid(),
    "silu": SiLU(),
    "tanh": Tanh(),
}
_PLAIN: Final = (
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "log_sigmoid",
    "mish",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "selu",
    "sign",
    "sin",
    "softsign",
    "sqrt",
    "square",
    "tan",
)

TABLE: Final[dict[str, Rule]] = {
    **{name: _activation(layer) for name, layer in _ACTIVATIONS.items()},
    **{name: _activation(Pointwise(name)) for name in _PLAIN},
    **dict.fromkeys(
        (
            "_to_copy",
            "alias",
            "alpha_dropout",
            "clone",
            "contiguous",
            "detach",
            "dropout",
            "feature_dropout",
            "lift_fresh_copy",
            "positive",
            "to",
            "type_as",
        ),
        _same,
    ),
    "add": _binary("add"),
    "addcmul": _addcmul,
    "celu": _pointwise("celu", "alpha"),
    "clamp": _clamp,
    "clamp_max": _pointwise("clamp_max", "max"),
    "clamp_min": _pointwise("clamp_min", "min"),
    "clip": _clamp,
    "div": _binary("div"),
    "elu": _elu,
    "gelu": _gelu,
    "glu": _glu,
    "hardshrink": _pointwise("hardshrink", "lambd"),
    "hardtanh": _hardtanh,
    "leaky_relu": _leaky,
    "masked_fill": _masked_fill,
    "maximum": _binary("maximum"),
    "minimum": _binary("minimum"),
    "mul": _binary("mul"),
    "multiply": _binary("mul"),
    "pow": _pow,
    "prelu": _prelu,
    "rsub": _rsub,
    "softmax": _softmax,
    "_softmax": _softmax,
    "softplus": _pointwise("softplus", "beta", "threshold"),
    "softshrink": _pointwise("softshrink", "lambd"),
    "sub": _binary("sub"),
    "threshold": _pointwise("threshold", "threshold", "value"),
    "true_divide": _binary("div"),
    "where": _where,
}
