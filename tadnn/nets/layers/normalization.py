"""Normalisations, as they run at inference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchModule, need_rank, rows_cols_last


@dataclass(frozen=True)
class BatchNorm2d(Layer):
    """Batch normalisation over (n, h, w) of each channel.

    Args:
        eps: added to the variance.
        affine: whether a learned scale and shift follow.
    """

    eps: float = 1e-5
    affine: bool = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        (shape,) = shapes
        need_rank(shape, 4)
        return shape

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.BatchNorm2d``."""
        kwargs = _shown(eps=self.eps, affine=self.affine)
        return TorchModule("BatchNorm2d", (shapes[0][1],), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one batch_norm."""
        return (Kernel("batch_norm", shapes[0], dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return scale and shift per channel."""
        return 2 * shapes[0][1] * self.affine

    def buffers(self, *shapes: Shape) -> int:
        """Return running mean and variance per channel, and the batch counter."""
        return 2 * shapes[0][1] + 1


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Normalisation over the last dimension (channels of an image: Permute around it).

    Args:
        eps: added to the variance.
        affine: whether a learned scale follows.
        bias: whether a learned shift follows the scale.
        dims: how many of the last dimensions are normalised together.
    """

    eps: float = 1e-5
    affine: bool = True
    bias: bool = True
    dims: int = 1

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        shape = _at_least_2(shapes[0])
        if self.dims >= len(shape):
            raise ShapeError(f"dims leave the batch's; got {self.dims} of {list(shape)}")
        return shape

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.LayerNorm``."""
        sizes = shapes[0][-self.dims :]
        kwargs = _shown(eps=self.eps, elementwise_affine=self.affine)
        if self.affine and not self.bias:
            kwargs["bias"] = False
        return TorchModule("LayerNorm", (sizes[0] if self.dims == 1 else sizes,), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one layer_norm."""
        cols = math.prod(shapes[0][-self.dims :])
        return (Kernel("layer_norm", (math.prod(shapes[0]) // cols, cols), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return scale and shift per feature."""
        return (self.affine + (self.affine and self.bias)) * math.prod(shapes[0][-self.dims :])


@dataclass(frozen=True)
class RMSNorm(Layer):
    """Division by the root mean square over the last dimension.

    Args:
        eps: added to the mean square; None: the dtype's own.
        affine: whether a learned scale follows.
    """

    eps: float | None = None
    affine: bool = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        return _at_least_2(shapes[0])

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.RMSNorm``."""
        kwargs: dict[str, Any] = {} if self.eps is None else {"eps": self.eps}
        kwargs |= _shown(elementwise_affine=self.affine)
        return TorchModule("RMSNorm", (shapes[0][-1],), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one rms_norm."""
        return (Kernel("rms_norm", rows_cols_last(shapes[0]), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return the scale per feature."""
        return shapes[0][-1] * self.affine


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Normalisation over each group of channels of each image or sequence (n, c, ...).

    Args:
        groups: of how many parts the channels are.
        eps: added to the variance.
        affine: whether a learned scale and shift per channel follow.
    """

    groups: int
    eps: float = 1e-5
    affine: bool = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        shape = _at_least_2(shapes[0])
        if shape[1] % self.groups:
            raise ShapeError(
                f"groups divide the channels; got {shape[1]} channels in {self.groups} groups"
            )
        return shape

    def torch(self, *shapes: Shape) -> TorchModule:
        """Return ``nn.GroupNorm``."""
        kwargs = _shown(eps=self.eps, affine=self.affine)
        return TorchModule("GroupNorm", (self.groups, shapes[0][1]), kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one group_norm; all but images are one pixel high."""
        n, c, *rest = shapes[0]
        h, w = rest if len(rest) == 2 else (1, math.prod(rest))
        return (Kernel("group_norm", (n, c, h, w, self.groups), dtype),)

    def parameters(self, *shapes: Shape) -> int:
        """Return scale and shift per channel."""
        return 2 * shapes[0][1] * self.affine


def _shown(**kwargs: Any) -> dict[str, Any]:
    """Return torch's arguments without those that are its defaults."""
    defaults = {"eps": 1e-5, "affine": True, "elementwise_affine": True}
    return {name: value for name, value in kwargs.items() if value != defaults[name]}


def _at_least_2(shape: Shape) -> Shape:
    if len(shape) < 2:
        raise ShapeError(f"takes an input of at least 2 dimensions; got {list(shape)}")
    return shape
