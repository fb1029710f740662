"""Pooling and its opposite.

Where a window, stride or padding may be a pair, it is (vertical, horizontal).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel, pool_out
from tadnn.nets.layers.base import (
    Layer,
    Shape,
    TorchFunction,
    TorchModule,
    need_rank,
    pair,
)


class _Pool2d(Layer):
    """One value of every window; the fields are those of a pool."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"padding"})
    op: ClassVar[str]
    """The kernel op."""

    @abstractmethod
    def _window(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], bool]:
        """Return kernel, stride and padding, and whether sizes are rounded up."""

    def _taps(self) -> tuple[int, int]:
        """Return the distance between a window's values."""
        return 1, 1

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, p, q)."""
        (shape,) = shapes
        need_rank(shape, 4)
        kernel, stride, padding, ceil = self._window()
        sizes = self._shrunk(shape)
        for pad, window in zip(padding, kernel, strict=True):
            if 2 * pad > window:
                raise ShapeError(f"padding is at most half the window; got {pad} for {window}")
        # Rounding up never makes a window fit that doesn't.
        fits = all(
            size + 2 * pad >= window
            for size, pad, window in zip(sizes, padding, kernel, strict=True)
        )
        if not fits:
            edge = kernel[0] if kernel[0] == kernel[1] else kernel
            raise ShapeError(f"the window ({edge}) must fit the image; got {shape[2]}x{shape[3]}")
        p, q = (
            pool_out(*each, int(ceil)) for each in zip(sizes, kernel, stride, padding, strict=True)
        )
        return *shape[:2], p, q

    def _shrunk(self, shape: Shape) -> list[int]:
        """Return height and width less what dilation adds to the window: as many windows fit."""
        kernel = self._window()[0]
        return [
            size - (tap - 1) * (window - 1)
            for size, tap, window in zip(shape[2:], self._taps(), kernel, strict=True)
        ]

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one launch; dilated, of an image that as many windows fit."""
        kernel, stride, padding, ceil = self._window()
        image = (*shapes[0][:2], *self._shrunk(shapes[0]))
        sizes = (*image, *kernel, stride[0], padding[0])
        extra = (("stride_w", stride[1]), ("pad_w", padding[1]), ("ceil", int(ceil)))
        return (Kernel(self.op, sizes, dtype, (), extra),)


@dataclass(frozen=True)
class MaxPool2d(_Pool2d):
    """The maximum of every window; ``ceil_mode`` rounds the output's size up.

    ``dilation`` is the distance between a window's values.
    """

    kernel: int | tuple[int, int]
    stride: int | tuple[int, int]
    padding: int | tuple[int, int] = 0
    ceil_mode: bool = False
    dilation: int | tuple[int, int] = 1

    op: ClassVar[str] = "max_pool2d"

    def _taps(self) -> tuple[int, int]:
        return pair(self.dilation)

    def _window(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], bool]:
        return pair(self.kernel), pair(self.stride), pair(self.padding), self.ceil_mode

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.MaxPool2d``."""
        kwargs: dict[str, Any] = {"stride": self.stride, "padding": self.padding}
        if self.ceil_mode:
            kwargs["ceil_mode"] = True
        if self.dilation != 1:
            kwargs["dilation"] = self.dilation
        return TorchModule("MaxPool2d", (self.kernel,), kwargs)


@dataclass(frozen=True)
class AvgPool2d(_Pool2d):
    """The mean of every window; ``count_include_pad`` lets the padding's zeros count."""

    kernel: int | tuple[int, int]
    stride: int | tuple[int, int]
    padding: int | tuple[int, int] = 0
    count_include_pad: bool = True
    ceil_mode: bool = False

    op: ClassVar[str] = "avg_pool2d"

    def _window(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], bool]:
        return pair(self.kernel), pair(self.stride), pair(self.padding), self.ceil_mode

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.AvgPool2d``."""
        kwargs: dict[str, Any] = {"stride": self.stride, "padding": self.padding}
        if not self.count_include_pad:
            kwargs["count_include_pad"] = False
        if self.ceil_mode:
            kwargs["ceil_mode"] = True
        return TorchModule("AvgPool2d", (self.kernel,), kwargs)


@dataclass(frozen=True)
class GlobalAvgPool(Layer):
    """The mean of every channel: (n, c, h, w) -> (n, c, 1, 1)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, 1, 1)."""
        (shape,) = shapes
        need_rank(shape, 4)
        return (*shape[:2], 1, 1)

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.AdaptiveAvgPool2d(1)``."""
        return TorchModule("AdaptiveAvgPool2d", (1,))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one global_avg_pool."""
        return (Kernel("global_avg_pool", shapes[0], dtype),)


@dataclass(frozen=True)
class AdaptiveAvgPool2d(Layer):
    """The means of ``out`` x ``out`` windows that cover the image evenly."""

    out: int | tuple[int, int]

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, *out)."""
        (shape,) = shapes
        need_rank(shape, 4)
        return (*shape[:2], *pair(self.out))

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.AdaptiveAvgPool2d``."""
        return TorchModule("AdaptiveAvgPool2d", (self.out,))

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one adaptive_avg_pool2d, or one global_avg_pool for a single window."""
        if self.out == 1:
            return (Kernel("global_avg_pool", shapes[0], dtype),)
        return (Kernel("adaptive_avg_pool2d", (*shapes[0], *pair(self.out)), dtype),)


@dataclass(frozen=True)
class TokenMean(Layer):
    """The mean over the tokens: (n, t, d) -> (n, d)."""

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, d)."""
        (shape,) = shapes
        need_rank(shape, 3)
        return shape[0], shape[2]

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.mean``."""
        return TorchFunction("mean", {"dim": 1})

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one token_mean."""
        return (Kernel("token_mean", shapes[0], dtype),)


@dataclass(frozen=True)
class Upsample(Layer):
    """Images enlarged ``scale`` times in both directions.

    Args:
        scale: how many times.
        mode: ``nearest`` repeats pixels, ``bilinear`` blends them (corners not aligned).
    """

    scale: int
    mode: str = "nearest"

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"mode": ("nearest", "bilinear")}

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, scale h, scale w)."""
        (shape,) = shapes
        need_rank(shape, 4)
        n, c, h, w = shape
        return n, c, h * self.scale, w * self.scale

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.Upsample``."""
        return TorchModule("Upsample", (), {"scale_factor": self.scale, "mode": self.mode})

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one upsample_nearest or upsample_bilinear."""
        return (Kernel(f"upsample_{self.mode}", (*shapes[0], self.scale), dtype),)


@dataclass(frozen=True)
class Resize(Layer):
    """Images of another size, whatever it is; ``Upsample`` enlarges by a whole number.

    Args:
        out: the new height and width.
        mode: how pixels are found or blended.
        align_corners: whether the corners' pixels keep their place (blending modes).
        antialias: whether what shrinks is smoothed first (blending modes).
        scale_h: how many times higher, where pixels are found by that rather than by sizes.
        scale_w: how many times wider, likewise.
    """

    out: int | tuple[int, int]
    mode: str = "bilinear"
    align_corners: bool = False
    antialias: bool = False
    scale_h: float | None = None
    scale_w: float | None = None

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mode": ("nearest", "nearest-exact", "bilinear", "bicubic")
    }

    def infer(self, *shapes: Shape) -> Shape:
        """Return (n, c, *out)."""
        (shape,) = shapes
        need_rank(shape, 4)
        if self.scales is not None:
            found = tuple(int(n * s) for n, s in zip(shape[2:], self.scales, strict=True))
            if found != pair(self.out):
                raise ShapeError(f"scales {self.scales} give {list(found)}; got {self.out}")
        return (*shape[:2], *pair(self.out))

    @property
    def scales(self) -> tuple[float, float] | None:
        """How many times higher and wider; None where sizes say it."""
        if self.scale_h is None or self.scale_w is None:
            return None
        return self.scale_h, self.scale_w

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.nn.functional.interpolate``."""
        kwargs: dict[str, Any] = {"size": pair(self.out), "mode": self.mode}
        if self.scales is not None:
            kwargs = {"scale_factor": self.scales, "mode": self.mode}
        if self.mode in ("bilinear", "bicubic"):
            kwargs |= {"align_corners": self.align_corners, "antialias": self.antialias}
        return TorchFunction("nn.functional.interpolate", kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one adaptive_avg_pool2d, which moves as much."""
        return (Kernel("adaptive_avg_pool2d", (*shapes[0], *pair(self.out)), dtype),)
