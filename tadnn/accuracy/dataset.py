"""What a data set is: raw images, and the splits that a network learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tadnn.accuracy.preprocessing import Preprocessing, channel_statistics, unit_images
from tadnn.errors import DataError

SHAPE_RULE = "an input shape is three positive integers (channels, height, width)"
SPLITS = ("train", "validation", "test")

# Everything is held in memory, so a shape that cannot fit is refused before it is tried.
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, in a fixed order.

    Args:
        images: ``[n, C, H, W]``; float32 and normalised in a `Dataset`, raw in a `RawDataset`.
        labels: int64 ``[n]``, from 0 to classes - 1.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class RawDataset:
    """What a data source hands over: images as they were stored.

    Args:
        name: as in the registry.
        class_names: one per label.
        licence: the licence of the images and whom to credit.
        value_range: the lowest and highest value a pixel can have.
        splits: ``train``, ``validation`` and ``test``, with the same raw shape; validation is
            carved from what the source meant for training, never from its test images.
        mirrors: whether a mirrored image keeps its class, so that training may flip.
        decoding: how a stored file became a raw image, where that takes more than reading it.
    """

    name: str
    class_names: tuple[str, ...]
    licence: str
    value_range: tuple[float, float]
    splits: Mapping[str, Split]
    mirrors: bool = False
    decoding: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        """Check that the three splits are there and fit each other.

        Raises:
            DataError: they don't.
        """
        if set(self.splits) != set(SPLITS):
            raise DataError(
                f"data set {self.name!r} must have the splits {', '.join(SPLITS)}; "
                f"received {', '.join(sorted(self.splits)) or 'none'}"
            )
        for name, split in self.splits.items():
            where = f"split {name!r} of data set {self.name!r}"
            if split.images.ndim != 4 or len(split.images) != len(split) or len(split) == 0:
                raise DataError(
                    f"{where} must hold images [n, C, H, W] and n labels, n > 0; received "
                    f"{list(split.images.shape)} and {list(split.labels.shape)}"
                )
            if split.images.shape[1:] != self.splits["train"].images.shape[1:]:
                raise DataError(
                    f"{where} must have images of the shape of the train split, "
                    f"{self.raw_shape}; received {tuple(split.images.shape[1:])}"
                )
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.class_names):
                raise DataError(
                    f"labels of {where} must be 0 to {len(self.class_names) - 1}; "
                    f"received {low} to {high}"
                )
        present = torch.unique(self.splits["train"].labels)
        if len(present) < 2:
            raise DataError(
                f"data set {self.name!r} must have two classes or more to train on; received only "
                f"{self.class_names[int(present[0])]!r}"
            )

    @property
    def raw_shape(self) -> tuple[int, int, int]:
        """(C, H, W) as stored."""
        channels, height, width = self.splits["train"].images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images ready for a network; shared between callers, so never written to.

    Args:
        name: as in the registry.
        class_names: one per label.
        licence: the licence of the images and whom to credit.
        preprocessing: how raw images became these, and unseen ones are to.
        splits: ``train``, ``validation`` and ``test``, normalised; always the same for the same
            name and input shape.
        mirrors: whether a mirrored image keeps its class.
    """

    name: str
    class_names: tuple[str, ...]
    licence: str
    preprocessing: Preprocessing
    splits: Mapping[str, Split]
    mirrors: bool = False

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W), without the batch."""
        return self.preprocessing.input_shape

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of the train split's values in 0..1 after the resize."""
        return self.preprocessing.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of the train split's values in 0..1 after the resize."""
        return self.preprocessing.std

    def preprocess(self) -> dict[str, object]:
        """Return what travels with an exported network: how inputs are made, classes, licence."""
        return {
            "dataset": self.name,
            "licence": self.licence,
            **self.preprocessing.to_dict(),
            "class_names": list(self.class_names),
        }


def prepare(raw: RawDataset, input_shape: tuple[int, ...] | None = None) -> Dataset:
    """Resize and normalise a data set; mean and deviation come from the train split alone.

    Args:
        raw: the images as stored.
        input_shape: (C, H, W) wanted; the stored one when absent.

    Raises:
        DataError: no such input can be made of these images.
    """
    shape = _checked_shape(raw, raw.raw_shape if input_shape is None else input_shape)
    units = {
        name: unit_images(split.images, raw.value_range, shape)
        for name, split in raw.splits.items()
    }
    # Repeated channels would give the same again.
    mean, std = channel_statistics(units["train"][:, : raw.raw_shape[0]])
    if not bool((std > 0).all()):
        raise DataError(f"data set {raw.name!r} resized to {shape} has a channel without variation")
    repeats = shape[0] // raw.raw_shape[0]
    preprocessing = Preprocessing(
        raw_shape=raw.raw_shape,
        input_shape=shape,
        value_range=raw.value_range,
        mean=tuple(mean.tolist()) * repeats,
        std=tuple(std.tolist()) * repeats,
        decoding=raw.decoding,
    )
    splits = {
        name: Split(preprocessing.normalise_(units[name]), split.labels)
        for name, split in raw.splits.items()
    }
    return Dataset(
        raw.name, raw.class_names, raw.licence, preprocessing, splits, mirrors=raw.mirrors
    )


def checked_sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (C, H, W).

    Raises:
        DataError: these are not three positive sizes.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise DataError(f"{SHAPE_RULE}; received {shape}")
    return shape[0], shape[1], shape[2]


def _checked_shape(raw: RawDataset, shape: tuple[int, ...]) -> tuple[int, int, int]:
    channels, height, width = checked_sizes(shape)
    stored = raw.raw_shape[0]
    possible = (1, 3) if stored == 1 else (stored,)
    if channels not in possible:
        raise DataError(
            f"images of {raw.name!r} have {stored} channel(s), so an input can have "
            f"{' or '.join(map(str, possible))}; received {channels} in {shape}"
        )
    needed = 4 * channels * height * width * sum(len(split) for split in raw.splits.values())
    if needed > MAX_BYTES:
        raise DataError(
            f"data set {raw.name!r} is held in memory, in at most {MAX_BYTES / 2**30:.0f} GiB; "
            f"resized to {shape} it takes {needed / 2**30:.1f} GiB"
        )
    return channels, height, width
