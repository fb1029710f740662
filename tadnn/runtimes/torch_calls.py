"""Kernels as ATen calls on realistic data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.runtimes.base import Run
from tadnn.runtimes.torch_operands import Asked, Operands, PlainWeights, Shapes


def aten_call(
    kernel: Kernel, device: str, *, channels_last: bool, plain_weights: bool = False
) -> Run:
    """Return a callable that makes the kernel's ATen call on seeded normal data.

    With ``plain_weights`` only images are channels-last; a convolution's weights are in the
    usual order, and every call reorders them.

    Raises:
        RequestError: eager torch never launches such a kernel.
    """
    unfused = [part for part in kernel.epilogue if part != "bias"]
    if unfused or kernel.op not in _CALLS:
        what = f"the epilogue {'+'.join(unfused)}" if unfused else f"the op {kernel.op!r}"
        raise RequestError(f"eager torch has no single call with {what}; got {kernel.key}")
    with torch.inference_mode():
        if plain_weights and kernel.op in ("conv2d", "conv_transpose2d"):
            return _CALLS[kernel.op](kernel, PlainWeights(kernel, device, channels_last))
        return _CALLS[kernel.op](kernel, Operands(kernel, device, channels_last))


def call_and_operands(kernel: Kernel, operands: Operands) -> tuple[Callable[..., Tensor], Shapes]:
    """Return the call of a kernel without its epilogue, and the shapes of what it takes."""
    asked = Asked(kernel, operands.device, operands.channels_last)
    _CALLS[kernel.op](kernel, asked)
    return asked.call, asked.shapes


def _conv2d(kernel: Kernel, operands: Operands) -> Run:
    d = kernel.dims
    shapes = (d["n"], d["c"], d["h"], d["w"]), (d["k"], d["c"] // d["groups"], d["r"], d["s"])
    bias = operands.fixed(d["k"]) if operands.bias else None
    steps = (_both(kernel, name) for name in ("stride", "pad", "dilation"))
    return operands.calls(F.conv2d, shapes, bias, *steps, d["groups"])


def _conv_transpose2d(kernel: Kernel, operands: Operands) -> Run:
    n, c, h, w, k, r, s, _, _, _, groups = kernel.sizes
    stride, pad, out_pad, dilation = (
        (kernel.dim(name), kernel.dim(f"{name}_w"))
        for name in ("stride", "pad", "out_pad", "dilation")
    )
    bias = operands.fixed(k) if operands.bias else None
    shapes = (n, c, h, w), (c, k // groups, r, s)
    return operands.calls(F.conv_transpose2d, shapes, bias, stride, pad, out_pad, groups, dilation)


def _linear(kernel: Kernel, operands: Operands) -> Run:
    m, n, k = kernel.sizes
    bias = operands.fixed(n) if operands.bias else None
    return operands.calls(F.linear, [(m, k), (n, k)], bias)


def _bmm(kernel: Kernel, operands: Operands) -> Run:
    b, m, n, k = kernel.sizes
    return operands.calls(torch.bmm, [(b, m, k), (b, k, n)])


def _batch_norm(kernel: Kernel, operands: Operands) -> Run:
    mean, variance, weight, bias = (operands.fixed(kernel.dim("c")) for _ in range(4))
    return operands.calls(F.batch_norm, [kernel.sizes], mean, variance, weight, bias)


def _group_norm(kernel: Kernel, operands: Operands) -> Run:
    *shape, groups = kernel.sizes
    weight, bias = (operands.fixed(kernel.dim("c")) for _ in range(2))
    return operands.calls(F.group_norm, [tuple(shape)], groups, weight, bias)


def _max_pool2d(kernel: Kernel, operands: Operands) -> Run:
    stride, pad, ceil = _both(kernel, "stride"), _both(kernel, "pad"), bool(kernel.dim("ceil"))
    call = functools.partial(F.max_pool2d, ceil_mode=ceil)
    return operands.calls(call, [kernel.sizes[:4]], kernel.sizes[4:6], stride, pad)


def _avg_pool2d(kernel: Kernel, operands: Operands) -> Run:
    stride, pad, ceil = _both(kernel, "stride"), _both(kernel, "pad"), bool(kernel.dim("ceil"))
    return operands.calls(F.avg_pool2d, [kernel.sizes[:4]], kernel.sizes[4:6], stride, pad, ceil)


def _both(kernel: Kernel, name: str) -> tuple[int, int]:
    return kernel.dim(name), kernel.dim(f"{name}_w")


def _global_avg_pool(kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(F.adaptive_avg_pool2d, [kernel.sizes], 1)


def _adaptive_avg_pool2d(kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(F.adaptive_avg_pool2d, [kernel.sizes[:4]], kernel.sizes[4:])


def _token_mean(kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(torch.mean, [kernel.sizes], 1)


def _upsample(kernel: Kernel, operands: Operands) -> Run:
    mode = kernel.op.removeprefix("upsample_")
    *shape, scale = kernel.sizes
    return operands.calls(F.interpolate, [tuple(shape)], None, float(scale), mode)


def _elementwise(call: Callable[[Tensor], Tensor], kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(call, [kernel.sizes])


def _binary(call: Callable[..., Tensor], kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(call, [kernel.sizes, kernel.sizes])


def _add_cols(kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(torch.add, [kernel.sizes, (1, kernel.dim("cols"))])


def _mul_rows(kernel: Kernel, operands: Operands) -> Run:
    return operands.calls(torch.mul, [kernel.sizes, (kernel.dim("rows"), 1)])


def _concat(kernel: Kernel, operands: Operands) -> Run:
    rows, cols = kernel.sizes
    halves = [(rows, part) for part in (cols - cols // 2, cols // 2) if part]
    return operands.calls(lambda *parts: torch.cat(parts, dim=1), halves)


def _opaque(kernel: Kernel, operands: Operands) -> Run:
    """Return a matrix product with these FLOPs, and copies of what it reads and writes."""
    n, flops, read, written = kernel.sizes
    # n products of 1 x k and k x 1 values: arithmetic that is done as memory goes by.
    half = max(1, flops // 2)

    def call(x: Tensor, y: Tensor) -> Tensor:
        if flops:
            torch.mv(y.expand(n, half), y)
        return x.sum(1, keepdim=True).expand(n, written).contiguous()

    return operands.calls(call, [(n, read), (half,)])


def _permute(kernel: Kernel, operands: Operands) -> Run:
    # Handed out flat: four sizes would be taken for an image.
    def call(x: Tensor) -> Tensor:
        return x.view(kernel.sizes).transpose(1, 2).contiguous()

    return operands.calls(call, [(math.prod(kernel.sizes),)])


def _embedding(kernel: Kernel, operands: Operands) -> Run:
    rows, cols, count = kernel.sizes
    indices = operands.indices(rows, count)
    return operands.calls(lambda table: F.embedding(indices, table), [(count, cols)])


def _layer_norm(kernel: Kernel, operands: Operands) -> Run:
    columns = kernel.dim("cols")
    weight, bias = operands.fixed(columns), operands.fixed(columns)
    return operands.calls(F.layer_norm, [kernel.sizes], (columns,), weight, bias)


def _rms_norm(kernel: Kernel, operands: Operands) -> Run:
    columns = kernel.dim("cols")
    return operands.calls(F.rms_norm, [kernel.sizes], (columns,), operands.fixed(columns))


def _attention(kernel: Kernel, operands: Operands) -> Run:
    b, t, s, d, e = kernel.sizes
    shapes = [(b, t, d), (b, s, d), (b, s, e)]
    return operands.calls(F.scaled_dot_product_attention, shapes)


def _cast(kernel: Kernel, operands: Operands) -> Run:
    wider = torch.float64 if operands.dtype == torch.float32 else torch.float32
    return operands.calls(lambda x: x.to(wider), [kernel.sizes])


ELEMENTWISE: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "pointwise": torch.exp,
    "relu": F.relu,
    "relu6": F.relu6,
    "scalar": functools.partial(torch.mul, other=0.5),
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softmax": functools.partial(torch.softmax, dim=-1),
    "tanh": torch.tanh,
}

_CALLS: Final[dict[str, Callable[[Kernel, Operands], Run]]] = {
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "add": functools.partial(_binary, torch.add),
    "add_cols": _add_cols,
    "attention": _attention,
    "avg_pool2d": _avg_pool2d,
    "batch_norm": _batch_norm,
    "bmm": _bmm,
    "cast": _cast,
    "concat": _concat,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "embedding": _embedding,
    "global_avg_pool": _global_avg_pool,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "max_pool2d": _max_pool2d,
    "mul": functools.partial(_binary, torch.mul),
    "mul_rows": _mul_rows,
    "opaque": _opaque,
    "permute": _permute,
    "rms_norm": _rms_norm,
    "token_mean": _token_mean,
    "upsample_bilinear": _upsample,
    "upsample_nearest": _upsample,
    **{op: functools.partial(_elementwise, call) for op, call in ELEMENTWISE.items()},
}
