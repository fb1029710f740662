"""Operators with weights: convolutions, linear layers, normalisations, embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from tadnn.nets.layers import (
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    DepthwiseConv2d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Pad,
    RMSNorm,
)
from tadnn.nets.tracing.graph import Call
from tadnn.nets.tracing.lowering import Lowering, Rule, Value
from tadnn.nets.tracing.sizes import numbers


def _weights(lo: Lowering, call: Call) -> dict[str, Tensor | None] | None:
    """Return weight and bias; None where one of them depends on the input."""
    found = {name: lo.const(call.args.get(name)) for name in ("weight", "bias")}
    if any(found[name] is None and call.args.get(name) is not None for name in found):
        return None
    return found


def _conv(lo: Lowering, call: Call) -> Value | None:
    weights = _weights(lo, call)
    rank = len(call.shape) - 2
    if weights is None or rank not in (1, 2, 3):
        return None
    weight = weights["weight"]
    assert weight is not None
    out, groups = weight.shape[0], call.args["groups"]
    kernel = tuple(weight.shape[2:])
    stride, dilation = (numbers(call.args[name], rank) for name in ("stride", "dilation"))
    if call.args.get("transposed"):
        return _transposed(lo, call)
    x = lo.value(call.args["input"])
    padding = call.args["padding"]
    if isinstance(padding, str):
        pads = [(0, 0)] * rank
        if padding == "same":
            reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
            pads = [(r // 2, r - r // 2) for r in reach]
        if any(a != b for a, b in pads):
            x = lo.emit(Pad(tuple(p for pair in reversed(pads) for p in pair)), x)
            pads = [(0, 0)] * rank
        padding = [a for a, _ in pads]
    pad = numbers(padding, rank)
    same = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    kept = None if pad == same else pad
    bias = weights["bias"] is not None
    if rank == 1:
        line = Conv1d(
            out, kernel[0], stride[0], None if kept is None else kept[0], dilation[0], groups, bias
        )
        return lo.emit(line, x, weights=weights)
    if rank == 3:
        volume = Conv3d(out, kernel, stride, pad, dilation, groups, bias)
        return lo.emit(volume, x, weights=weights)
    k, s, d = _pair(kernel), _pair(stride), _pair(dilation)
    p = None if kept is None else _pair(kept)
    if groups == out == x.shape[1] and groups > 1:
        return lo.emit(DepthwiseConv2d(k, s, p, d, bias), x, weights=weights)
    return lo.emit(Conv2d(out, k, s, p, d, groups, bias), x, weights=weights)


def _transposed(lo: Lowering, call: Call) -> Value | None:
    weights = _weights(lo, call)
    rank = len(call.shape) - 2
    if weights is None or rank not in (1, 2):
        return None
    weight, groups = weights["weight"], call.args["groups"]
    assert weight is not None
    x = lo.value(call.args["input"])
    if rank == 1:  # an image one pixel high
        x = lo.viewed(x, _image(x.shape))
        weight = weight.unsqueeze(2)
    steps = {
        name: _pair(((least,) if rank == 1 else ()) + numbers(call.args[name], rank))
        for name, least in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1))
    }
    layer = ConvTranspose2d(
        weight.shape[1] * groups,
        _pair(tuple(weight.shape[2:])),
        groups=groups,
        bias=weights["bias"] is not None,
        **steps,
    )
    made = lo.emit(layer, x, weights=weights | {"weight": weight})
    return lo.viewed(made, call.shape)


def _linear(lo: Lowering, call: Call) -> Value | None:
    weights = _weights(lo, call)
    if weights is None:
        return None
    return linear(lo, lo.value(call.args["input"]), weights["weight"], weights["bias"])


def linear(lo: Lowering, x: Value, weight: Tensor | None, bias: Tensor | None) -> Value | None:
    """Return x times the transposed weight, and a bias; None where sizes are unusual."""
    assert weight is not None
    if weight.dim() != 2 or len(x.shape) < 2 or (bias is not None and bias.dim() != 1):
        return None
    layer = Linear(weight.shape[0], bias is not None)
    return lo.emit(layer, x, weights={"weight": weight, "bias": bias})


def _addmm(lo: Lowering, call: Call) -> Value | None:
    bias, weight = lo.const(call.args["self"]), lo.const(call.args["mat2"])
    plain = call.args["alpha"] == call.args["beta"] == 1
    if bias is None or weight is None or not plain:
        return None
    return linear(lo, lo.value(call.args["mat1"]), weight.t(), bias)


def _batch_norm(lo: Lowering, call: Call) -> Value | None:
    weights = _weights(lo, call)
    x = lo.value(call.args["input"])
    mean, var = (lo.const(call.args[f"running_{name}"]) for name in ("mean", "var"))
    if weights is None or mean is None or var is None or call.args.get("training"):
        return None
    affine = any(t is not None for t in weights.values())
    image = _image(x.shape)
    stored: dict[str, Tensor | None] = {
        "running_mean": mean,
        "running_var": var,
        "num_batches_tracked": torch.tensor(0),
    }
    if affine:
        stored |= _affine(weights, mean)
    layer = BatchNorm2d(float(call.args["eps"]), affine)
    return lo.viewed(lo.emit(layer, lo.viewed(x, image), weights=stored), x.shape)


def _image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes as those of an image with the same channels."""
    if len(shape) == 4:
        return shape
    rest = shape[2:] or (1,)
    return (*shape[:2], math.prod(rest[:-1]), rest[-1])


def _batch_norm_inference(lo: Lowering, call: Call) -> tuple[Value, ...] | None:
    made = _batch_norm(lo, call)
    return None if made is None else (made,)


def _affine(weights: Mapping[str, Tensor | None], like: Tensor) -> dict[str, Tensor | None]:
    weight, bias = weights["weight"], weights["bias"]
    return {
        "weight": torch.ones_like(like) if weight is None else weight,
        "bias": torch.zeros_like(like) if bias is None else bias,
    }


def _layer_norm(lo: Lowering, call: Call) -> Value | None:
    weights = _weights(lo, call)
    if weights is None or (weights["weight"] is None and weights["bias"] is not None):
        return None
    dims = len(call.args["normalized_shape"])
    affine, bias = weights["weight"] is not None, weights["bias"] is not None
    layer = LayerNorm(float(call.args["eps"]), affine, bias or not affine, dims)
    return lo.emit(layer, lo.value(call.args["input"]), weights=weights)


def _rms_norm(lo: Lowering, call: Call) -> Value | None:
    weights = _weights(lo, call)
    if weights is None or len(call.args["normalized_shape"]) != 1:
        return None
    eps = call.args["eps"]
    layer = RMSNorm(None if eps is None else float(eps), weights["weight"] is not None)
    kept = {"weight": weights["weight"]}
    return lo.emit(layer, lo.value(call.args["input"]), weights=kept)


def _group_norm(lo: Lowering, call: Call) -> Value | None:
    return _groups(lo, call, call.args["num_groups"])


def _instance_norm(lo: Lowering, call: Call) -> Value | None:
    return _groups(lo, call, call.shape[1]) if call.args["use_input_stats"] else None


def _groups(lo: Lowering, call: Call, groups: int) -> Value | None:
    weights = _weights(lo, call)
    if weights is None or len(call.shape) < 3:
        return None
    affine = any(t is not None for t in weights.values())
    stored = _affine(weights, torch.empty(call.shape[1])) if affine else None
    layer = GroupNorm(groups, float(call.args["eps"]), affine)
    return lo.emit(layer, lo.value(call.args["input"]), weights=stored)


def _embedding(lo: Lowering, call: Call) -> Value | None:
    weight = lo.const(call.args["weight"])
    if weight is None:
        return None
    layer = Embedding(*weight.shape)
    return lo.emit(layer, lo.value(call.args["indices"]), weights={"weight": weight})


def _pair(values: tuple[Any, ...]) -> int | tuple[int, int]:
    return values[0] if values[0] == values[1] else (values[0], values[1])


TABLE: Final[dict[str, Rule]] = {
    "_native_batch_norm_legit_no_training": _batch_norm_inference,
    "addmm": _addmm,
    "batch_norm": _batch_norm,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv_transpose1d": _transposed,
    "conv_transpose2d": _transposed,
    "convolution": _conv,
    "embedding": _embedding,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "rms_norm": _rms_norm,
}
