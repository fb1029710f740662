"""Functions of one value, and what does nothing in evaluation mode."""

from __future__ import annotations

from typing import Final

from torch.fx import Node

from tadnn.nets.layers import (
    GELU,
    HardSigmoid,
    HardSwish,
    Layer,
    LeakyReLU,
    LogSoftmax,
    Mul,
    Pointwise,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value


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


def _softmax(lo: Lowering, call: Call) -> Value | None:
    dim = call.args["dim"] % len(call.shape)
    last = -1 if dim == len(call.shape) - 1 else dim
    return lo.emit(Softmax(last), lo.value(call.args["self"]))


def _log_softmax(lo: Lowering, call: Call) -> Value | None:
    dim = call.args["dim"] % len(call.shape)
    last = -1 if dim == len(call.shape) - 1 else dim
    return lo.emit(LogSoftmax(last), lo.value(call.args["self"]))


def _glu(lo: Lowering, call: Call) -> Value:
    x = lo.value(call.args["self"])
    dim = call.args["dim"] % len(x.shape)
    half = x.shape[dim] // 2
    gate = lo.emit(Sigmoid(), lo.sliced(x, dim, half, half))
    return lo.emit(Mul(), lo.sliced(x, dim, 0, half), gate)


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
    "celu": _pointwise("celu", "alpha"),
    "clamp": _clamp,
    "clamp_max": _pointwise("clamp_max", "max"),
    "clamp_min": _pointwise("clamp_min", "min"),
    "clip": _clamp,
    "elu": _elu,
    "gelu": _gelu,
    "glu": _glu,
    "hardshrink": _pointwise("hardshrink", "lambd"),
    "hardtanh": _hardtanh,
    "leaky_relu": _leaky,
    "log_softmax": _log_softmax,
    "_log_softmax": _log_softmax,
    "prelu": _prelu,
    "softmax": _softmax,
    "_softmax": _softmax,
    "softplus": _pointwise("softplus", "beta", "threshold"),
    "softshrink": _pointwise("softshrink", "lambd"),
    "threshold": _pointwise("threshold", "threshold", "value"),
}
