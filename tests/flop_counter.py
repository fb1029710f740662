"""Counts the FLOPs of a module as it runs, independently of tadnn's own formulas.

Two per multiply-add of convolutions, matrix products, attention and recurrent layers; nothing
else counts. An operator that looks as if it multiplied matrices and has no formula here is an
error: a count is never quietly too small.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_MULTIPLIES: Final = re.compile(
    r"mm$|^mv$|addmv|^dot$|vdot|matmul|linear|conv|attention|encoder_layer|"
    r"lstm|gru|rnn|einsum|cdist|kron|addr$|^ger$"
)
# They match, and multiply nothing.
_HARMLESS: Final = frozenset({"upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"})


def _mm(a: Tensor, b: Tensor) -> int:
    (m, k), (_, n) = a.shape, b.shape
    return 2 * m * n * k


def _bmm(a: Tensor, b: Tensor) -> int:
    (batch, m, k), (_, _, n) = a.shape, b.shape
    return 2 * batch * m * n * k


def _convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, pad: Any, dilation: Any, transposed: bool,
    out: Tensor,
) -> int:  # fmt: skip
    # Every output value of a convolution, and every input value of a transposed one, meets each
    # value of its filter once; the second axis of either weight is what one group sees.
    meets = weight.shape[1] * prod(weight.shape[2:])
    return 2 * (x if transposed else out).numel() * meets


def _attention(q: Tensor, k: Tensor, v: Tensor) -> int:
    batch, heads, queries, width = q.shape
    return 2 * batch * heads * queries * k.shape[-2] * (width + v.shape[-1])


def _recurrent(x: Tensor, w_input: Tensor, w_hidden: Tensor) -> int:
    return 2 * prod(x.shape[:-1]) * (w_input.numel() + w_hidden.numel())


_FORMULAS: Final[Mapping[str, Callable[[Sequence[Any], Tensor], int]]] = {
    "mm": lambda args, out: _mm(args[0], args[1]),
    "addmm": lambda args, out: _mm(args[1], args[2]),
    "mv": lambda args, out: 2 * args[0].numel(),
    "dot": lambda args, out: 2 * args[0].numel(),
    "bmm": lambda args, out: _bmm(args[0], args[1]),
    "baddbmm": lambda args, out: _bmm(args[1], args[2]),
    "convolution": lambda args, out: _convolution(*args[:7], out=out),
    "_convolution": lambda args, out: _convolution(*args[:7], out=out),
    "_scaled_dot_product_flash_attention_for_cpu": lambda args, out: _attention(*args[:3]),
    "_scaled_dot_product_flash_attention": lambda args, out: _attention(*args[:3]),
    "_scaled_dot_product_efficient_attention": lambda args, out: _attention(*args[:3]),
    "_scaled_dot_product_cudnn_attention": lambda args, out: _attention(*args[:3]),
    # One direction of one layer: an LSTM's four gates are rows of its weights.
    "mkldnn_rnn_layer": lambda args, out: _recurrent(*args[:3]),
}


class FlopCounter(TorchDispatchMode):
    """Counts what runs inside a ``with`` block, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.by_op: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.by_op.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name not in _FORMULAS:
            with self:  # composed of others: those are counted
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            if _MULTIPLIES.search(name) and name not in _HARMLESS:
                raise AssertionError(f"no FLOP formula for {func}")
        out = func(*args, **kwargs)
        if name in _FORMULAS:
            self.by_op[name] += _FORMULAS[name](args, out)
        return out


def count_flops(module: nn.Module, *inputs: Tensor) -> Counter[str]:
    """Return the FLOPs of one forward pass, by operator."""
    with torch.no_grad(), FlopCounter() as counter:
        module(*inputs)
    return counter.by_op
