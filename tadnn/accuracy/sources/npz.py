"""Arrays in one ``.npz`` file: ``images``, ``labels``, optionally ``splits``, ``class_names``."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tadnn.accuracy.dataset import SPLITS, RawDataset, Split
from tadnn.accuracy.sources.parts import (
    OWN_DATA,
    checked_images,
    checked_labels,
    completed,
    value_range,
)
from tadnn.errors import DataError

_REQUIRED = ("images", "labels")
_KEYS = (*_REQUIRED, "splits", "class_names")


def read_npz(file: str) -> RawDataset:
    """Read arrays that `numpy.savez` wrote; nothing pickled is loaded.

    Args:
        file: path of the ``.npz``: ``images`` ``[n, H, W]`` or ``[n, C, H, W]``, ``labels``
            ``[n]`` from 0, ``splits`` ``[n]`` texts (see `completed` for what may be missing), and
            ``class_names``.

    Raises:
        DataError: it cannot be read or breaks a rule.
    """
    path = Path(file)
    arrays = _arrays(path)
    class_names = _class_names(path, arrays.get("class_names"))
    images = checked_images(f"'images' of {path}", arrays["images"])
    labels = checked_labels(
        f"'labels' of {path}",
        arrays["labels"],
        len(images),
        None if class_names is None else len(class_names),
    )
    whole = Split(images, torch.from_numpy(labels))
    parts = _parts(path, whole, arrays.get("splits"))
    splits = completed(str(path), parts)
    return RawDataset(
        name=f"npz:{file}",
        class_names=class_names or tuple(str(label) for label in np.unique(labels)),
        licence=OWN_DATA,
        value_range=value_range(splits["train"].images),
        splits=splits,
    )


def _arrays(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    try:
        # NumPy leaves a file open that it opened and could not read.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise DataError(f"{path} must be an .npz file; it holds a single array")
            missing = [key for key in _REQUIRED if key not in loaded]
            unknown = [key for key in loaded if key not in _KEYS]
            if missing or unknown:
                raise DataError(
                    f"{path} must hold the arrays images and labels, optionally splits and "
                    f"class_names; received {', '.join(loaded) or 'none'}"
                )
            return {key: loaded[key] for key in loaded}
    except FileNotFoundError:
        raise DataError(f"no such file: {path}") from None
    # What NumPy says of object arrays (which would be pickled) is a ValueError as well.
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        raise DataError(f"cannot read {path} as an .npz file of plain arrays: {error}") from error


def _class_names(path: Path, names: npt.NDArray[Any] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1 or len(np.unique(names)) != len(names):
        raise DataError(
            f"'class_names' of {path} must be different texts, one per class; received "
            f"{names.dtype} {list(names.shape)}"
        )
    return tuple(names.tolist())


def _parts(path: Path, whole: Split, splits: npt.NDArray[Any] | None) -> dict[str, Split]:
    if splits is None:
        return {"train": whole}
    if splits.dtype.kind != "U" or splits.shape != (len(whole),):
        raise DataError(
            f"'splits' of {path} must be one text per image, {len(whole)}; received "
            f"{splits.dtype} {list(splits.shape)}"
        )
    present = np.unique(splits).tolist()
    wrong = [name for name in present if name not in SPLITS]
    if wrong:
        raise DataError(f"'splits' of {path} must be {', '.join(SPLITS)}; received {wrong[0]!r}")
    if len(present) == 1 and present == ["train"]:
        return {"train": whole}
    parts = {}
    for name in present:
        indices = torch.from_numpy(np.flatnonzero(splits == name))
        parts[name] = Split(whole.images[indices], whole.labels[indices])
    return parts
