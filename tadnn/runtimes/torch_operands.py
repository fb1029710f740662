"""The tensors that a kernel's ATen call is made on."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from tadnn.kernels import Kernel
from tadnn.runtimes.base import Run

TORCH_DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# What the inputs and weights of one kernel's calls span together. See `Operands`.
_WORKING_SET_BYTES = 16 << 20
_MOST_COPIES = 64

Shapes = list[tuple[int, ...]]


class Operands:
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
        self._kernel = kernel
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

    def indices(self, count: int, limit: int) -> Tensor:
        """Return whole numbers below a limit, seeded."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(limit, (count,), generator=generator).to(self.device)

    def calls(
        self, call: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], *arguments: object
    ) -> Run:
        """Return ``call(*tensors, *arguments)`` with tensors of these shapes, others each time."""
        draw = itertools.cycle(self.tensors(shapes)).__next__
        return lambda: call(*draw(), *arguments)

    def tensors(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[Tensor, ...]]:
        """Return one or more operands, each of tensors of these shapes."""
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
        return operands

    def _view(self, flat: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.channels_last and len(shape) == 4:
            n, c, h, w = shape
            return flat.view(n, h, w, c).permute(0, 3, 1, 2)
        return flat.view(shape)


class PlainWeights(Operands):
    """Images are channels-last, weights are as a module has them: every call reorders them."""

    def calls(
        self, call: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], *arguments: object
    ) -> Run:
        """Return the call with its second tensor reordered first."""

        def reordered(x: Tensor, weight: Tensor) -> Tensor:
            ordered = weight.contiguous(memory_format=torch.channels_last)
            return call(x, ordered, *arguments)

        return super().calls(reordered, shapes)

    def _view(self, flat: Tensor, shape: tuple[int, ...]) -> Tensor:
        # The images come first; a weight of the same shape needs no reordering anyway.
        return super()._view(flat, shape) if self._images(shape) else flat.view(shape)

    def _images(self, shape: tuple[int, ...]) -> bool:
        return shape == self._kernel.sizes[:4]


class Asked(Operands):
    """Only notes what would be called on what."""

    call: Callable[..., Tensor]
    shapes: Shapes

    def calls(
        self, call: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], *arguments: object
    ) -> Run:
        """Keep call and shapes."""
        count = len(shapes)
        self.call = lambda *tensors: call(*tensors[:count], *arguments)
        self.shapes = list(shapes)
        return lambda: None


@functools.lru_cache(maxsize=4)
def _pool(dtype: torch.dtype, device: str, size: int) -> Tensor:
    """Return ``size`` standard normal numbers, the first 4 Mi of them repeated."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(min(size, 1 << 22), generator=generator)
    return numbers.to(device, dtype).repeat(-(-size // numbers.numel()))[:size]


def _aligned(size: int) -> int:
    return -(-size // 64) * 64  # views start on cache lines, as allocations do
