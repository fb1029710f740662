"""Transposed and 3-D convolutions.

Where a window, stride, padding or dilation may be a pair, it is (vertical, horizontal).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel, conv_out, transposed_out
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank, pair
from tadnn.nets.layers.convolution import check_groups, shown


@dataclass(frozen=True)
class ConvTranspose2d(Layer):
    """2-D transposed convolution: it enlarges by its stride.

    Args:
        out: output channels.
        kernel: window.
        stride: enlargement.
        padding: rows and columns cut from every side of the output.
        output_padding: rows and columns added below and on the right; less than the stride.
        groups: channel groups.
        bias: whether a bias is added.
        dilation: distance between the window's taps.
    """

    out: int
    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    output_padding: int | tuple[int, int] = 0
    groups: int = 1
    bias: bool = False
    dilation: int | tuple[int, int] = 1

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding", "output_padding"})

    @property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """Kernel, stride, padding, output padding, dilation."""
        fields = (self.kernel, self.stride, self.padding, self.output_padding, self.dilation)
        return tuple(pair(value) for value in fields)

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, out, p, q): (h - 1) stride - 2 padding + window + output_padding rows."""
        (shape,) = shapes
        need_rank(shape, 4)
        n, c, h, w = shape
        check_groups(c, self.out, self.groups)
        _, strides, _, added, dilations = self._pairs
        for more, stride, dilation in zip(added, strides, dilations, strict=True):
            if more >= max(stride, dilation):
                raise ShapeError(
                    f"output_padding is less than the stride; got {self.output_padding} "
                    f"for {self.stride}"
                )
        p, q = (transposed_out(*sizes) for sizes in zip((h, w), *self._pairs, strict=True))
        if p < 1 or q < 1:
            raise ShapeError(f"padding ({self.padding}) must leave some output; got {h}x{w}")
        return n, self.out, p, q

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.ConvTranspose2d``."""
        steps: dict[str, Any] = {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "groups": self.groups,
            "dilation": self.dilation,
        }
        kwargs = shown(self.bias, **steps)
        return TorchModule("ConvTranspose2d", (shapes[0][1], self.out, self.kernel), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one conv_transpose2d."""
        (r, s), *steps = self._pairs
        (stride, right), (pad, left), (added, more), (tall, wide) = steps
        sizes = (*shapes[0], self.out, r, s, stride, pad, added, self.groups)
        extra = {"stride_w": right, "pad_w": left, "out_pad_w": more, "dilation": tall}
        epilogue = ("bias",) if self.bias else ()
        optional = (*extra.items(), ("dilation_w", wide))
        return (Kernel("conv_transpose2d", sizes, dtype, epilogue, optional),)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        weights = shapes[0][1] * (self.out // self.groups) * math.prod(pair(self.kernel))
        return weights + self.out * self.bias


@dataclass(frozen=True)
class Conv3d(Layer):
    """3-D convolution of (n, c, d, h, w): videos, volumes.

    Args:
        out: output channels.
        kernel: window, (depth, height, width).
        stride: steps.
        padding: zeros on every side.
        dilation: distances between the window's taps.
        groups: channel groups.
        bias: whether a bias is added.
    """

    out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1
    bias: bool = False

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding"})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kernel", "stride", "padding", "dilation"):
            if len(getattr(self, name)) != 3:
                raise ShapeError(f"{name} of Conv3d is 3 numbers; got {getattr(self, name)}")

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, out, o, p, q)."""
        (shape,) = shapes
        need_rank(shape, 5)
        n, c, *sizes = shape
        check_groups(c, self.out, self.groups)
        each = (self.kernel, self.stride, self.padding, self.dilation)
        edges = [conv_out(*numbers) for numbers in zip(sizes, *each, strict=True)]
        if min(edges) < 1:
            raise ShapeError(
                f"the window ({self.kernel}, dilation {self.dilation}) must fit the volume "
                f"padded by {self.padding}; got {sizes}"
            )
        return (n, self.out, *edges)

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Conv3d``."""
        steps: dict[str, Any] = {"groups": self.groups}
        for name, plain in (("stride", 1), ("padding", 0), ("dilation", 1)):
            if getattr(self, name) != (plain,) * 3:
                steps[name] = getattr(self, name)
        return TorchModule(
            "Conv3d", (shapes[0][1], self.out, self.kernel), shown(self.bias, **steps)
        )

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one conv2d with as many products.

        An image for every slice of the output, with the channels of the slices that a window
        reaches.
        """
        ((n, c, _, h, w),) = shapes
        slices = self.infer(*shapes)[2]
        (deep, r, s), (_, down, right) = self.kernel, self.stride
        (_, above, left), (_, tall, wide) = self.padding, self.dilation
        sizes = (n * slices, c * deep, h, w, self.out, r, s, down, above, tall, self.groups)
        extra = (("stride_w", right), ("pad_w", left), ("dilation_w", wide))
        return (Kernel("conv2d", sizes, dtype, ("bias",) if self.bias else (), extra),)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        return self.out * (shapes[0][1] // self.groups * math.prod(self.kernel) + self.bias)
