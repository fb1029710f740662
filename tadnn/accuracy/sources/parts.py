"""What every source has in common: checks of arrays, and splits that are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tadnn.accuracy.dataset import MAX_BYTES, SPLITS, Split
from tadnn.accuracy.splitting import stratified_split
from tadnn.errors import DataError

# Changing these changes every accuracy ever reported on a data set that is divided here.
SPLIT_SEED = 0
WHOLE = {"train": 0.6, "validation": 0.2, "test": 0.2}
TRAIN_AND_TEST = {"train": 0.9, "validation": 0.1}

OWN_DATA = "not stated: the user's own data"


def completed(name: str, parts: Mapping[str, Split]) -> dict[str, Split]:
    """Return all three splits, those that are missing carved from train, by class.

    With train and test, a tenth of train becomes validation; train alone is divided 60/20/20.

    Args:
        name: what messages call the data set.
        parts: train; train and test; or train, validation and test.

    Raises:
        DataError: other splits, an empty one, or too few images to carve from.
    """
    for split, part in parts.items():
        if len(part) == 0:
            raise DataError(f"split {split!r} of {name} must hold images; it is empty")
    if set(parts) == set(SPLITS):
        return {split: parts[split] for split in SPLITS}
    if set(parts) not in ({"train"}, {"train", "test"}):
        raise DataError(
            f"{name} must have the splits train, or train and test, or train, validation and test; "
            f"received {', '.join(sorted(parts)) or 'none'} (validation images without a test "
            "split: call them test, and validation is carved from train)"
        )
    whole = parts["train"]
    shares = TRAIN_AND_TEST if "test" in parts else WHOLE
    carved = dict(parts)
    for split, found in stratified_split(whole.labels.numpy(), shares, SPLIT_SEED).items():
        if len(found) == 0:
            raise DataError(
                f"{name} has too few images per class to carve {split} "
                f"({shares[split]:.0%} of each class) from the {len(whole)} of train; "
                "add images, or give that split yourself"
            )
        indices = torch.from_numpy(found)
        carved[split] = Split(whole.images[indices], whole.labels[indices])
    return {split: carved[split] for split in SPLITS}


def require_room(what: str, sizes: Sequence[int], item_bytes: int) -> None:
    """Refuse images that cannot be held in memory, before they are read.

    Raises:
        DataError: they take more than `MAX_BYTES`.
    """
    needed = math.prod(int(size) for size in sizes) * item_bytes
    if needed > MAX_BYTES:
        raise DataError(
            f"a data set is held in memory, in at most {MAX_BYTES / 2**30:.0f} GiB; {what} would "
            f"take {needed / 2**30:.1f} GiB ({' x '.join(map(str, sizes))})"
        )


def checked_images(where: str, images: npt.NDArray[Any]) -> Tensor:
    """Return ``[n, C, H, W]``: uint8 as it is, any other real type as float32.

    Args:
        where: what messages call the array.
        images: ``[n, H, W]`` or ``[n, C, H, W]``.

    Raises:
        DataError: another shape or type, or values that are not finite.
    """
    if images.dtype.kind not in "buif":
        raise DataError(f"{where} must hold real numbers; received {images.dtype}")
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(
            f"{where} must have the shape [n, H, W] or [n, C, H, W], nothing empty; "
            f"received {list(images.shape)}"
        )
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[1] not in (1, 3) and images.shape[3] in (1, 3, 4):
        raise DataError(
            f"{where} must have the shape [n, C, H, W], channels before height and width; "
            f"{list(images.shape)} looks like [n, H, W, C]: turn it with np.moveaxis(images, -1, 1)"
        )
    if images.dtype.kind == "f":
        require_finite(where, images)
    stored = np.uint8 if images.dtype.kind == "b" else images.dtype
    wanted = np.uint8 if stored == np.uint8 else np.float32
    return torch.from_numpy(np.require(images, wanted, ["C", "W"]))


def require_finite(where: str, images: npt.NDArray[Any]) -> None:
    """Refuse NaN, infinity, and what float32 cannot hold.

    Raises:
        DataError: with the index of the first such image.
    """
    highest = np.finfo(np.float32).max
    for index, image in enumerate(images):
        # One image at a time: an array of truth values would be another copy.
        if not (np.abs(image) <= highest).all():
            raise DataError(
                f"{where} must be finite; image {index} holds NaN, infinity or more than float32 "
                "can"
            )


def checked_labels(
    where: str, labels: npt.NDArray[Any], count: int, classes: int | None
) -> npt.NDArray[np.int64]:
    """Return int64 labels ``[count]``.

    Args:
        where: what messages call the array.
        labels: integers.
        count: the number of images.
        classes: labels lie below it; where None, below the number of distinct labels.

    Raises:
        DataError: a rule is broken; the message has the first such label.
    """
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            f"{where} must be integers of the shape [n]; received {labels.dtype} "
            f"{list(labels.shape)}"
        )
    if len(labels) != count:
        raise DataError(
            f"{where} must have one label per image; received {len(labels)} labels for {count} "
            "images"
        )
    limit = len(np.unique(labels)) if classes is None else classes
    wrong = np.flatnonzero((labels < 0) | (labels >= limit))
    if len(wrong):
        rule = (
            f"must be 0 to {limit - 1}"
            if classes is not None
            else f"of {limit} different classes must be 0 to {limit - 1} without gaps"
        )
        raise DataError(f"{where} {rule}; label {wrong[0]} (counted from 0) is {labels[wrong[0]]}")
    return labels.astype(np.int64)


def value_range(images: Tensor) -> tuple[float, float]:
    """Return the raw values that become 0 and 1: a byte's, or the lowest and highest there are."""
    if images.dtype == torch.uint8:
        return 0.0, 255.0
    return float(images.min()), float(images.max())
