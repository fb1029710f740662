"""Activations and arithmetic as ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from onnx import TensorProto

from tadnn.nets import Layer, Shape, layers
from tadnn.runtimes.onnx_writer import GraphWriter, Writer, plain

_NEGLIGIBLE: Final = 1e-6


def _gelu(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    (x,) = taken
    if layer.approximate == "tanh":
        cube = g.add("Pow", [x, g.constant(3.0)], "cube")
        inner = g.add("Mul", [g.constant(0.044715), cube], "inner")
        inner = g.add(
            "Mul", [g.constant(math.sqrt(2 / math.pi)), g.add("Add", [x, inner], "sum")], "scaled"
        )
        part = g.add("Tanh", [inner], "tanh")
    else:
        part = g.add("Erf", [g.add("Div", [x, g.constant(math.sqrt(2))], "div")], "erf")
    part = g.add("Add", [part, g.constant(1.0)], "above")
    return g.add("Mul", [x, g.add("Mul", [g.constant(0.5), part], "half")])


def _silu(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    return g.add("Mul", [taken[0], g.add("Sigmoid", taken, "sigmoid")])


def _clip(g: GraphWriter, x: str, low: float | None, high: float | None) -> str:
    bounds = ["" if bound is None else g.constant(bound) for bound in (low, high)]
    return g.add("Clip", [x, *(bounds if bounds[1] else bounds[:1])])


def _prelu(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    sizes = (out[1], *[1] * (len(out) - 2)) if layer.per_channel else (1,)
    return g.add("PRelu", [*taken, g.weight("weight", sizes)])


def _softplus(g: GraphWriter, x: str, beta: float, threshold: float) -> str:
    """Write log(1 + exp(beta x)) / beta, but x where beta x is over the threshold."""
    line = threshold < -math.log(_NEGLIGIBLE)  # else the two are the same there
    scaled = x if beta == 1 else g.add("Mul", [x, g.constant(beta)], "scaled")
    soft = g.add("Softplus", [scaled], "softplus" if beta != 1 or line else "")
    if beta != 1:
        soft = g.add("Div", [soft, g.constant(beta)], "rescaled" if line else "")
    if not line:
        return soft
    above = g.add("Greater", [scaled, g.constant(threshold)], "above")
    return g.add("Where", [above, x, soft])


def _of_one(op: str) -> Callable[..., str]:
    return lambda g, x: g.add(op, [x])


def _with(op: str) -> Callable[..., str]:
    return lambda g, x, number: g.add(op, [x, g.constant(number)])


# Functions of (graph, value, first number, second number).
_POINTWISE: Final[dict[str, Callable[..., str]]] = {
    **{
        name: _of_one(op)
        for name, op in {
            "abs": "Abs",
            "ceil": "Ceil",
            "cos": "Cos",
            "erf": "Erf",
            "exp": "Exp",
            "floor": "Floor",
            "log": "Log",
            "neg": "Neg",
            "reciprocal": "Reciprocal",
            "round": "Round",
            "selu": "Selu",
            "sign": "Sign",
            "sin": "Sin",
            "softsign": "Softsign",
            "sqrt": "Sqrt",
            "tan": "Tan",
        }.items()
    },
    "add": _with("Add"),
    "celu": lambda g, x, alpha: g.add("Celu", [x], alpha=alpha),
    "clamp": _clip,
    "clamp_max": lambda g, x, high: _clip(g, x, None, high),
    "clamp_min": lambda g, x, low: _clip(g, x, low, None),
    "div": _with("Div"),
    "elu": lambda g, x, alpha: g.add("Elu", [x], alpha=alpha),
    "expm1": lambda g, x: g.add("Sub", [g.add("Exp", [x], "exp"), g.constant(1.0)]),
    "hardshrink": lambda g, x, bound: g.add("Shrink", [x], lambd=bound, bias=0.0),
    "hardtanh": _clip,
    "log1p": lambda g, x: g.add("Log", [g.add("Add", [x, g.constant(1.0)], "sum")]),
    "log_sigmoid": lambda g, x: g.add(
        "Neg", [g.add("Softplus", [g.add("Neg", [x], "negative")], "softplus")]
    ),
    "mish": lambda g, x: g.add(
        "Mul", [x, g.add("Tanh", [g.add("Softplus", [x], "softplus")], "tanh")]
    ),
    "mul": _with("Mul"),
    "pow": _with("Pow"),
    "rsqrt": lambda g, x: g.add("Reciprocal", [g.add("Sqrt", [x], "sqrt")]),
    "rsub": lambda g, x, number: g.add("Sub", [g.constant(number), x]),
    "softplus": _softplus,
    "softshrink": lambda g, x, bound: g.add("Shrink", [x], lambd=bound, bias=bound),
    "square": lambda g, x: g.add("Mul", [x, x]),
    "sub": _with("Sub"),
    "threshold": lambda g, x, bound, value: g.add(
        "Where", [g.add("Greater", [x, g.constant(bound)], "above"), x, g.constant(value)]
    ),
}


def _pointwise(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    numbers = [number for number in (layer.first, layer.second) if number is not None]
    return _POINTWISE[layer.function](g, *taken, *numbers)


_BINARY: Final = {
    "add": "Add",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "pow": "Pow",
    "sub": "Sub",
}


def _where(
    g: GraphWriter, layer: Any, taken: list[str], shapes: tuple[Shape, ...], out: Shape
) -> str:
    condition, *choices = taken
    if g.kind_of(condition) != "bool":
        condition = g.add("Cast", [condition], "condition", to=TensorProto.BOOL)
    return g.add("Where", [condition, *choices])


TABLE: Final[dict[type[Layer], Writer]] = {
    layers.Add: plain("Add"),
    layers.Binary: lambda g, layer, taken, shapes, out: g.add(_BINARY[layer.function], taken),
    layers.GELU: _gelu,
    layers.HardSigmoid: plain("HardSigmoid", alpha=1 / 6, beta=0.5),
    layers.HardSwish: plain("HardSwish"),
    layers.LeakyReLU: lambda g, layer, taken, shapes, out: g.add(
        "LeakyRelu", taken, alpha=layer.slope
    ),
    layers.LogSoftmax: lambda g, layer, taken, shapes, out: g.add(
        "LogSoftmax", taken, axis=layer.dim
    ),
    layers.Mul: plain("Mul"),
    layers.PReLU: _prelu,
    layers.Pointwise: _pointwise,
    layers.ReLU: plain("Relu"),
    layers.ReLU6: lambda g, layer, taken, shapes, out: _clip(g, taken[0], 0.0, 6.0),
    layers.SiLU: _silu,
    layers.Sigmoid: plain("Sigmoid"),
    layers.Softmax: lambda g, layer, taken, shapes, out: g.add("Softmax", taken, axis=layer.dim),
    layers.Tanh: plain("Tanh"),
    layers.Where: _where,
}
