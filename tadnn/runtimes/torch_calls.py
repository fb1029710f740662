"""Kernels as ATen calls on realistic data."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.runtimes.base import Run

TORCH_DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# What the inputs and weights of one kernel's calls span together. See `_Operands`.
_WORKING_SET_BYTES = 16 << 20
_MOST_COPIES = 64


def aten_call(kernel: Kernel, device: str, *, channels_last: bool) -> Run:
    """Return a callable that makes the kernel's ATen call on seeded normal data.

    Raises:
        RequestError: eager torch never launches such a kernel.
    """
    unfused = [part for part in kernel.epilogue if part != "bias"]
    if unfused or kernel.op not in _CALLS:
        what = f"the epilogue {'+'.join(unfused)}" if unfused else f"the op {kernel.op!r}"
        raise RequestError(f"eager torch has no single call with {what}; got {kernel.key}")
    with torch.inference_mode():
        return _CALLS[kernel.op](kernel, _Operands(kernel, device, channels_last))


class _Operands:
    """Hands out the tensors of one kernel.

    In a network, a layer's weights were last read one whole pass ago, and its
    input was written by other layers; a loop over one and the same call instead
    finds all of it in the first-level cache. So calls rotate through several
    operands, views of one pool of numbers larger than a core's caches.
    Comparing the sum over kernels with whole ResNets (2 cores with 2 MB of L2
    each; widths 16 to 128, 32x32 images; 1 and 2 threads): with one operand the
    difference per launch grew with the network from 6 to 25 us; rotated through
    16 MB it stayed between 1 and 10 us, around the 5 us that Python spends per
    layer, which a constant gap describes. With widths up to 512 on 64x64 images
    20 to 30 us remain (of 600 per launch; 50 to 100 with one operand). Evicting
    everything before every call overshot by as much for small networks, which
    do stay in the caches: hence the limit on copies.
    """

    def __init__(self, kernel: Kernel, device: str, channels_last: bool) -> None:
        self.dtype, self.device, self.channels_last = (
            TORCH_DTYPES[kernel.dtype],
            device,
            channels_last,
        )
        self.bias = "bias" in kernel.epilogue

    def fixed(self, *shape: int) -> Tensor:
        """Return one small tensor, such as a bias; positive, so that it may be a variance."""
        return (
            torch.linspace(0.5, 1.5, math.prod(shape), device=self.device)
            .to(self.dtype)
            .view(shape)
        )

    def calls(
        self, call: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], *arguments: object
    ) -> Run:
        """Return ``call(*tensors, *arguments)`` with tensors of these shapes, others each time."""
        sizes = [_aligned(math.prod(shape)) for shape in shapes]
        item = torch.finfo(self.dtype).bits // 8
        whole = max(_WORKING_SET_BYTES // item, sum(sizes))
        pool = _pool(self.dtype, self.device, 1 << (whole - 1).bit_length())
        operands, offset = [], 0
        for _ in range(min(_MOST_COPIES, whole // sum(sizes))):
            tensors = []
            for shape, size in zip(shapes, sizes, strict=True):
                tensors.append(self._view(pool[offset : offset + math.prod(shape)], shape))
                offset += size
            operands.append(tuple(tensors))
        draw = itertools.cycle(operands).__next__
        return lambda: call(*draw(), *arguments)

    def _view(self, flat: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.channels_last and len(shape) == 4:
            n, c, h, w = shape
            return flat.view(n, h, w, c).permute(0, 3, 1, 2)
        return flat.view(shape)


@functools.lru_cache(maxsize=4)
def _pool(dtype: torch.dtype, device: str, size: int) -> Tensor:
    """Return ``size`` standard normal numbers, the first 4 Mi of them repeated."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(min(size, 1 << 22), generator=generator)
    return numbers.to(device, dtype).repeat(-(-size // numbers.numel()))[:size]


def _aligned(size: int) -> int:
    return -(-size // 64) * 64  # views start on cache lines, as allocations do


def _conv2d(kernel: Kernel, operands: _Operands) -> Run:
    d = kernel.dims
    shapes = (d["n"], d["c"], d["h"], d["w"]), (d["k"], d["c"] // d["groups"], d["r"], d["s"])
    bias = operands.fixed(d["k"]) if operands.bias else None
    arguments = (bias, d["stride"], d["pad"], d["dilation"], d["groups"])
    return operands.calls(F.conv2d, shapes, *arguments)


def _linear(kernel: Kernel, operands: _Operands) -> Run:
    m, n, k = kernel.sizes
    bias = operands.fixed(n) if operands.bias else None
    return operands.calls(F.linear, [(m, k), (n, k)], bias)


def _bmm(kernel: Kernel, operands: _Operands) -> Run:
    b, m, n, k = kernel.sizes
    return operands.calls(torch.bmm, [(b, m, k), (b, k, n)])


def _batch_norm(kernel: Kernel, operands: _Operands) -> Run:
    mean, variance, weight, bias = (operands.fixed(kernel.dim("c")) for _ in range(4))
    return operands.calls(F.batch_norm, [kernel.sizes], mean, variance, weight, bias)


def _max_pool2d(kernel: Kernel, operands: _Operands) -> Run:
    n, c, h, w, r, s, stride, pad = kernel.sizes
    return operands.calls(F.max_pool2d, [(n, c, h, w)], (r, s), stride, pad)


def _global_avg_pool(kernel: Kernel, operands: _Operands) -> Run:
    return operands.calls(F.adaptive_avg_pool2d, [kernel.sizes], 1)


def _relu(kernel: Kernel, operands: _Operands) -> Run:
    return operands.calls(F.relu, [kernel.sizes])


def _add(kernel: Kernel, operands: _Operands) -> Run:
    return operands.calls(torch.add, [kernel.sizes, kernel.sizes])


def _softmax(kernel: Kernel, operands: _Operands) -> Run:
    return operands.calls(functools.partial(torch.softmax, dim=-1), [kernel.sizes])


def _layer_norm(kernel: Kernel, operands: _Operands) -> Run:
    columns = kernel.dim("cols")
    weight, bias = operands.fixed(columns), operands.fixed(columns)
    return operands.calls(F.layer_norm, [kernel.sizes], (columns,), weight, bias)


_CALLS: Final[dict[str, Callable[[Kernel, _Operands], Run]]] = {
    "add": _add,
    "batch_norm": _batch_norm,
    "bmm": _bmm,
    "conv2d": _conv2d,
    "global_avg_pool": _global_avg_pool,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "max_pool2d": _max_pool2d,
    "relu": _relu,
    "softmax": _softmax,
}
