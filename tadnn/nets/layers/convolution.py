"""Convolutions.

Where a window, stride, padding or dilation may be a pair, it is (vertical, horizontal).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel, conv_out
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank, pair, single

_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}


@dataclass(frozen=True)
class Conv2d(Layer):
    """2-D convolution.

    Args:
        out: output channels.
        kernel: window.
        stride: step.
        padding: zeros on every side; None keeps the size at stride 1 (odd kernels).
        dilation: distance between the window's taps.
        groups: channel groups.
        bias: whether a bias is added.
    """

    out: int
    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] | None = None
    dilation: int | tuple[int, int] = 1
    groups: int = 1
    bias: bool = False

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding"})

    @property
    def pad(self) -> tuple[int, int]:
        """The zeros above and below, left and right."""
        return self._window[2]

    @property
    def _window(self) -> tuple[tuple[int, int], ...]:
        return _window(self.kernel, self.stride, self.padding, self.dilation)

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, out, p, q)."""
        (shape,) = shapes
        need_rank(shape, 4)
        n, c, h, w = shape
        check_groups(c, self.out, self.groups)
        (r, s), (down, right), (above, left), (tall, wide) = self._window
        p, q = conv_out(h, r, down, above, tall), conv_out(w, s, right, left, wide)
        if p < 1 or q < 1:
            raise ShapeError(
                f"the window ({self.kernel}, dilation {self.dilation}) must fit the image "
                f"padded by {single(self.pad)}; got {h}x{w}"
            )
        return n, self.out, p, q

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Conv2d``."""
        ((_, c, _, _),) = shapes
        steps = {"stride": self.stride, "padding": single(self.pad), "dilation": self.dilation}
        kwargs = shown(self.bias, **steps, groups=self.groups)
        return TorchModule("Conv2d", (c, self.out, self.kernel), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one conv2d."""
        ((n, c, h, w),) = shapes
        epilogue = ("bias",) if self.bias else ()
        (r, s), (down, right), (above, left), (tall, wide) = self._window
        sizes = (n, c, h, w, self.out, r, s, down, above, tall, self.groups)
        if down == right and above == left and tall == wide:
            return (Kernel("conv2d", sizes, dtype, epilogue),)
        extra = (("stride_w", right), ("pad_w", left), ("dilation_w", wide))
        return (Kernel("conv2d", sizes, dtype, epilogue, extra),)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        ((_, c, _, _),) = shapes
        r, s = pair(self.kernel)
        return self.out * (c // self.groups * r * s + self.bias)


@dataclass(frozen=True)
class DepthwiseConv2d(Layer):
    """2-D convolution of every channel by itself: as many groups as the input has channels.

    Args:
        kernel: window.
        stride: step.
        padding: zeros on every side; None keeps the size at stride 1 (odd kernels).
        dilation: distance between the window's taps.
        bias: whether a bias is added.
    """

    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] | None = None
    dilation: int | tuple[int, int] = 1
    bias: bool = False

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding"})

    def _conv(self, shape: Shape) -> Conv2d:
        need_rank(shape, 4)
        c = shape[1]
        return Conv2d(c, self.kernel, self.stride, self.padding, self.dilation, c, self.bias)

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, p, q)."""
        return self._conv(shapes[0]).infer(*shapes)

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Conv2d``."""
        return self._conv(shapes[0]).torch(*shapes)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one conv2d with groups = channels."""
        return self._conv(shapes[0]).kernels(dtype, *shapes)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        return self._conv(shapes[0]).parameters(*shapes)


@dataclass(frozen=True)
class Conv1d(Layer):
    """1-D convolution of (n, c, length).

    Args:
        out: output channels.
        kernel: window.
        stride: step.
        padding: zeros on both sides; None keeps the length at stride 1 (odd kernels).
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
        """The zeros on both sides."""
        return self.dilation * (self.kernel - 1) // 2 if self.padding is None else self.padding

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, out, q)."""
        (shape,) = shapes
        need_rank(shape, 3)
        n, c, length = shape
        check_groups(c, self.out, self.groups)
        q = conv_out(length, self.kernel, self.stride, self.pad, self.dilation)
        if q < 1:
            raise ShapeError(
                f"the window ({self.kernel}, dilation {self.dilation}) must fit the sequence "
                f"padded by {self.pad}; got {length}"
            )
        return n, self.out, q

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Conv1d``."""
        ((_, c, _),) = shapes
        steps = {"stride": self.stride, "padding": self.pad, "dilation": self.dilation}
        kwargs = shown(self.bias, **steps, groups=self.groups)
        return TorchModule("Conv1d", (c, self.out, self.kernel), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one conv2d of an image one pixel high, which is how torch runs it."""
        ((n, c, length),) = shapes
        window = (1, self.kernel, self.stride, 0, self.dilation, self.groups)
        epilogue = ("bias",) if self.bias else ()
        sizes = (n, c, 1, length, self.out, *window)
        return (Kernel("conv2d", sizes, dtype, epilogue, (("pad_w", self.pad),)),)

    def parameters(self, *shapes: Shape) -> int:
        """Return weights and biases."""
        return self.out * (shapes[0][1] // self.groups * self.kernel + self.bias)


@functools.lru_cache(maxsize=4096)
def _window(
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | tuple[int, int] | None,
    dilation: int | tuple[int, int],
) -> tuple[tuple[int, int], ...]:
    """Return kernel, stride, padding and dilation as pairs."""
    (r, s), (tall, wide) = pair(kernel), pair(dilation)
    same = (tall * (r - 1) // 2, wide * (s - 1) // 2)
    return (r, s), pair(stride), same if padding is None else pair(padding), (tall, wide)


def check_groups(c: int, out: int, groups: int) -> None:
    """Check that groups divide the channels.

    Raises:
        ShapeError: they don't.
    """
    if c % groups or out % groups:
        raise ShapeError(
            f"groups divide input and output channels; got {c} -> {out} channels in {groups} groups"
        )


def shown(bias: bool, **kwargs: Any) -> dict[str, Any]:
    """Return torch's arguments without those that are its defaults."""
    shown = {name: value for name, value in kwargs.items() if value != _DEFAULTS[name]}
    return shown if bias else {**shown, "bias": False}
