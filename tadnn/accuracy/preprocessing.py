"""How a raw image becomes a network's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Images are converted in chunks of about this many values, so that no second copy exists.
CHUNK_VALUES = 2**20


@dataclass(frozen=True)
class Preprocessing:
    """How a raw image becomes a network's input.

    In this order: values to 0..1, bilinear resize, normalisation per channel, and a single
    channel repeated where three are wanted.

    Args:
        raw_shape: (C, H, W) as stored.
        input_shape: (C, H, W) of the result.
        value_range: raw values that become 0 and 1.
        mean: per channel of the result, of values in 0..1.
        std: per channel of the result, of values in 0..1.
        decoding: how a stored file becomes a raw image, where that takes more than reading it.
    """

    raw_shape: tuple[int, int, int]
    input_shape: tuple[int, int, int]
    value_range: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    decoding: Mapping[str, object] | None = None

    def apply(self, raw: Tensor) -> Tensor:
        """Turn raw images ``[n, *raw_shape]`` into float32 ``[n, *input_shape]``."""
        return self.normalise_(unit_images(raw, self.value_range, self.input_shape))

    def normalise_(self, units: Tensor) -> Tensor:
        """Normalise what `unit_images` returned, in place."""
        return units.sub_(_per_channel(self.mean)).div_(_per_channel(self.std))

    def black(self) -> Tensor:
        """Return what the lowest raw value becomes: float32 ``[C, 1, 1]``."""
        return -_per_channel(self.mean) / _per_channel(self.std)

    def to_dict(self) -> dict[str, object]:
        """Return everything needed to reproduce the input, as plain JSON-able data."""
        same_size = self.raw_shape[1:] == self.input_shape[1:]
        resize = {
            "size": list(self.input_shape[1:]),
            "mode": "bilinear",
            "align_corners": False,
            "antialias": False,
        }
        return {
            "decode": None if self.decoding is None else dict(self.decoding),
            "layout": "NCHW",
            "dtype": "float32",
            "raw_shape": list(self.raw_shape),
            "input_shape": list(self.input_shape),
            "value_range": list(self.value_range),
            "resize": None if same_size else resize,
            "repeat_channels": self.input_shape[0] // self.raw_shape[0],
            "mean": list(self.mean),
            "std": list(self.std),
            "formula": "(resize((x - low) / (high - low)) - mean) / std; value_range = [low, high]",
        }


def unit_images(
    raw: Tensor, value_range: tuple[float, float], shape: tuple[int, int, int]
) -> Tensor:
    """Return float32 ``[n, *shape]`` in 0..1: resized, a single channel repeated."""
    units = torch.empty(len(raw), *shape)
    for chunk, into in zip(chunks(raw, shape), chunks(units, shape), strict=True):
        into.copy_(resized(unit_values(chunk, value_range), shape[1:]))
    return units


def chunks(images: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """Return views of consecutive images, each of about `CHUNK_VALUES` values of ``shape``."""
    channels, height, width = shape
    return torch.split(images, max(1, CHUNK_VALUES // (channels * height * width)))


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per channel of ``[n, C, H, W]``, float64 ``[C]``."""
    _, channels, height, width = images.shape
    parts = chunks(images, (channels, height, width))
    count = images.numel() // channels
    mean = torch.stack([part.double().sum(dim=(0, 2, 3)) for part in parts]).sum(0) / count
    squares = [(part.double() - mean[:, None, None]).square().sum(dim=(0, 2, 3)) for part in parts]
    return mean, (torch.stack(squares).sum(0) / count).sqrt()


def unit_values(raw: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Return float32 values that are 0 and 1 at the ends of ``value_range``."""
    low, high = value_range
    return (raw.to(torch.float32) - low) / (high - low)


def resized(images: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize ``[n, C, H, W]`` to ``size`` = (H, W), bilinear, corners not aligned."""
    if tuple(images.shape[2:]) == tuple(size):
        return images
    return F.interpolate(images, size=list(size), mode="bilinear", align_corners=False)


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]
