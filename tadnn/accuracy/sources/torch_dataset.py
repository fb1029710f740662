"""Any `torch.utils.data.Dataset`, by import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from tadnn.accuracy.dataset import SPLITS, RawDataset, Split
from tadnn.accuracy.sources.parts import (
    OWN_DATA,
    checked_images,
    checked_labels,
    completed,
    require_room,
    value_range,
)
from tadnn.errors import DataError, UnknownName
from tadnn.user_code import import_user_code

_FORM = (
    "torch: is followed by package.module:callable or file.py:callable, which returns a "
    f"torch.utils.data.Dataset or a dict of them by split ({', '.join(SPLITS)})"
)


def read_torch(reference: str) -> RawDataset:
    """Read every item of the data set that a callable returns; **its file is run**.

    Items are pairs of an image (tensor or array ``[H, W]`` or ``[C, H, W]``, or a Pillow image)
    and an integer label. Random transforms draw from torch's generator with a fixed seed.

    Args:
        reference: ``package.module:callable`` or ``file.py:callable``.

    Raises:
        DataError: nothing usable is there, or its own code fails.
        UnknownName: the module lacks the callable.
    """
    module_name, colon, name = reference.rpartition(":")
    if not (colon and module_name and name):
        raise DataError(f"{_FORM}; received {reference!r}")
    module = import_user_code(module_name, DataError)
    made = getattr(module, name, None)
    if not callable(made):
        callables = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
        raise UnknownName(f"callable of {module_name}", name, callables)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            found = made()
        except (Exception, SystemExit) as error:  # anything may come out of a user's code
            raise DataError(f"{reference}() raised {type(error).__name__}: {error}") from error
        sets = dict(found) if isinstance(found, Mapping) else {"train": found}
        class_names = _class_names(sets.get("train"))
        parts = {
            str(split): _read_all(f"{reference}()[{split!r}]", data, class_names)
            for split, data in sets.items()
        }
    splits = completed(f"{reference}()", parts)
    if class_names is None:
        every = np.concatenate([part.labels.numpy() for part in splits.values()])
        checked_labels(f"labels of {reference}()", every, len(every), None)
        class_names = tuple(str(label) for label in np.unique(every))
    return RawDataset(
        name=f"torch:{reference}",
        class_names=class_names,
        licence=OWN_DATA,
        value_range=value_range(splits["train"].images),
        splits=splits,
    )


def _class_names(data: object) -> tuple[str, ...] | None:
    """Return what torchvision's data sets call ``classes``, where there is such a list."""
    names = getattr(data, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names):
        return tuple(names)
    return None


def _read_all(where: str, data: object, class_names: tuple[str, ...] | None) -> Split:
    if isinstance(data, IterableDataset) or not isinstance(data, Dataset):
        raise DataError(
            f"{where} must be a torch.utils.data.Dataset with a length; received "
            f"{type(data).__name__}"
        )
    try:
        count = len(cast("Any", data))
    except (Exception, SystemExit) as error:
        raise DataError(f"{where} needs __len__: {type(error).__name__}: {error}") from error
    if count < 1:
        raise DataError(f"{where} must hold images; it is empty")
    images: npt.NDArray[Any] | None = None
    labels = np.empty(count, np.int64)
    for i in range(count):
        image, labels[i] = _item(f"{where}[{i}]", data, i)
        if images is None:
            require_room(where, (count, *image.shape), image.dtype.itemsize)
            images = np.empty((count, *image.shape), image.dtype)
        if image.shape != images.shape[1:] or image.dtype != images.dtype:
            raise DataError(
                f"images of {where} must have one size and type: resize them in the data set's "
                f"transform; item 0 is {list(images.shape[1:])} {images.dtype}, item {i} is "
                f"{list(image.shape)} {image.dtype}"
            )
        images[i] = image
    assert images is not None  # count is positive
    if class_names is not None:
        labels = checked_labels(f"labels of {where}", labels, count, len(class_names))
    return Split(checked_images(f"images of {where}", images), torch.from_numpy(labels))


def _item(where: str, data: Dataset[Any], index: int) -> tuple[npt.NDArray[Any], int]:
    try:
        item = data[index]
    except (Exception, SystemExit) as error:  # anything may come out of a user's code
        raise DataError(f"{where} raised {type(error).__name__}: {error}") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where} must be a pair (image, label); received {type(item).__name__}")
    image, label = item
    if isinstance(image, torch.Tensor):
        # NumPy has no bfloat16.
        narrow = image.dtype == torch.bfloat16
        values = (image.float() if narrow else image).detach().cpu().numpy()
    else:
        if isinstance(image, Image.Image) and image.mode not in ("L", "RGB"):
            raise DataError(
                f"{where} must be grey or RGB: convert it in the data set's transform; received "
                f"a Pillow image of the mode {image.mode!r}"
            )
        values = np.asarray(image)
        if isinstance(image, Image.Image) and values.ndim == 3:
            values = np.moveaxis(values, 2, 0)
    if values.ndim not in (2, 3) or values.dtype.kind not in "buif":
        raise DataError(
            f"{where} must have an image of real numbers [H, W] or [C, H, W]; received "
            f"{values.dtype} {list(values.shape)}"
        )
    number = np.asarray(label)
    if number.size != 1 or number.dtype.kind not in "iu":
        raise DataError(f"{where} must have an integer label; received {label!r}")
    return values, int(number.item())
