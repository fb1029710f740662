"""Convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel, conv_out
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank


@dataclass(frozen=True)
class Conv2d(Layer):
    """2-D convolution with a square window.

    Args:
        out: output channels.
        kernel: window edge.
        stride: step.
        padding: zeros on every side; None keeps the size at stride 1 (odd kernels).
        dilation: distance between the window's taps.
        groups: channel groups.
        bias: whether a bias is added.
    """

    out: int
    kernel: int
    stride: int = 1
    padding: int | None = None
    dilation: int = 1
    groups: int = 1
    bias: bool = False

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding"})

    @property
    def pad(self) -> int:
        """The zeros on every side."""
        return self.dilation * (self.kernel - 1) // 2 if self.padding is None else self.padding

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, out, p, q)."""
        (shape,) = shapes
        need_rank(shape, 4)
        n, c, h, w = shape
        if c % self.groups or self.out % self.groups:
            raise ShapeError(
                f"groups divide input and output channels; "
                f"got {c} -> {self.out} channels in {self.groups} groups"
            )
        p = conv_out(h, self.kernel, self.stride, self.pad, self.dilation)
        q = conv_out(w, self.kernel, self.stride, self.pad, self.dilation)
        if p < 1 or q < 1:
            raise ShapeError(
                f"the window ({self.kernel}, dilation {self.dilation}) must fit the image "
                f"padded by {self.pad}; got {h}x{w}"
            )
        return n, self.out, p, q

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Conv2d``."""
        ((_, c, _, _),) = shapes
        kwargs = {"stride": self.stride, "padding": self.pad, "dilation": self.dilation}
        kwargs |= {"groups": self.groups, "bias": self.bias}
        defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}
        shown = {name: value for name, value in kwargs.items() if value != defaults[name]}
        return TorchModule("Conv2d", (c, self.out, self.kernel), shown)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one conv2d."""
        ((n, c, h, w),) = shapes
        window = (self.kernel, self.kernel, self.stride, self.pad, self.dilation)
        sizes = (n, c, h, w, self.out, *window, self.groups)
        return (Kernel("conv2d", sizes, dtype, ("bias",) if self.bias else ()),)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        ((_, c, _, _),) = shapes
        return self.out * (c // self.groups * self.kernel**2 + self.bias)
