"""A folder of images: a folder per class, optionally in a folder per split."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from tadnn.accuracy.dataset import RawDataset, Split
from tadnn.accuracy.sources.parts import OWN_DATA, completed, require_room
from tadnn.errors import DataError

_SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
}
_GREY = frozenset({"1", "L", "LA"})
# Pillow clips deeper ones to 8 bits without a word.
_EIGHT_BITS = _GREY | {"P", "RGB", "RGBA", "CMYK", "YCbCr"}
_LAYOUT = "an image folder holds CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE"


def read_folder(folder: str, input_shape: tuple[int, ...] | None) -> RawDataset:
    """Read every image below a folder; hidden files and folders are left out.

    Args:
        folder: holds a folder per class, or the folders train, test and optionally validation
            with those; see `completed` for what may be missing. Classes are numbered by name.
        input_shape: (C, H, W). Each image is cropped around its centre to this aspect ratio, as
            large as fits, then resized to (H, W), bilinear with antialiasing. Where None, all
            images must have one size, and they are grey if every one of them is.

    Raises:
        DataError: no images, one that cannot be read, or images that do not fit each other.
    """
    root = Path(folder)
    files = {split: _files_by_class(path) for split, path in _split_folders(root).items()}
    class_names = tuple(files["train"])
    for split, by_class in files.items():
        for name in by_class:
            if name not in class_names:
                raise DataError(
                    f"{root}: every class must have images to train on; {name!r} is only in "
                    f"{split}. Classes: {', '.join(class_names)}"
                )
    paths = [path for by_class in files.values() for each in by_class.values() for path in each]
    if input_shape is None:
        size, channels = None, 1 if all(_mode(path) in _GREY for path in paths) else 3
    else:
        channels, *size = input_shape
        if channels not in (1, 3):
            raise DataError(f"images of {root} can have 1 or 3 channels; received {channels}")
        require_room(str(root), (len(paths), *input_shape), 4)
    parts = {
        split: _read_split(by_class, class_names, channels, size)
        for split, by_class in files.items()
    }
    return RawDataset(
        name=f"folder:{folder}",
        class_names=class_names,
        licence=OWN_DATA,
        value_range=(0.0, 255.0),
        splits=completed(str(root), parts),
        decoding=_decoding(channels, size),
    )


def _decoding(channels: int, size: Sequence[int] | None) -> dict[str, object]:
    """Return how a file becomes a raw image, as plain JSON-able data."""
    return {
        "library": "Pillow",
        "orientation": "the EXIF orientation is applied",
        "mode": "L" if channels == 1 else "RGB",
        "alpha": "dropped",
        "crop": None
        if size is None
        else "around the centre, to the aspect ratio, as large as fits",
        "resize": None
        if size is None
        else {"size": list(size), "mode": "bilinear", "antialias": True},
    }


def _split_folders(root: Path) -> Mapping[str, Path]:
    folders = _folders(root)
    if not any(path.name == "train" for path in folders):
        return {"train": root}
    found: dict[str, Path] = {}
    for path in folders:
        split = _SPLIT_FOLDERS.get(path.name)
        if split is None or split in found:
            raise DataError(
                f"{root}: beside train there may be one of validation, valid and val, and test; "
                f"received {path.name!r}"
            )
        found[split] = path
    return {split: found[split] for split in ("train", "validation", "test") if split in found}


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise DataError(f"{_LAYOUT}; there is no folder {root}")
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    except OSError as error:
        raise DataError(f"cannot read {root}: {error}") from error


def _files_by_class(root: Path) -> dict[str, list[Path]]:
    by_class = {}
    for folder in _folders(root):
        files = sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and not any(p[0] == "." for p in path.relative_to(folder).parts)
        )
        if not files:
            raise DataError(f"{_LAYOUT}; the class folder {folder} holds no image")
        by_class[folder.name] = files
    if not by_class:
        raise DataError(f"{_LAYOUT}; {root} holds no folder")
    return by_class


def _read_split(
    by_class: Mapping[str, Sequence[Path]],
    class_names: Sequence[str],
    channels: int,
    size: Sequence[int] | None,
) -> Split:
    found = [(path, class_names.index(name)) for name, paths in by_class.items() for path in paths]
    images: npt.NDArray[Any] | None = None
    for i, (path, _) in enumerate(found):
        image = _decoded(path, "L" if channels == 1 else "RGB", size)
        if images is None:
            require_room(str(path.parent.parent), (len(found), *image.shape), 1)
            images = np.empty((len(found), *image.shape), np.uint8)
        if image.shape != images.shape[1:]:
            raise DataError(
                "images must have one size unless an input shape is given: set input_shape "
                f"(channels, height, width) to resize them; {found[0][0]} is "
                f"{images.shape[3]}x{images.shape[2]} and {path} is "
                f"{image.shape[2]}x{image.shape[1]}"
            )
        images[i] = image
    assert images is not None  # `_files_by_class` gives no empty class
    return Split(torch.from_numpy(images), torch.tensor([label for _, label in found]))


def _decoded(path: Path, mode: str, size: Sequence[int] | None) -> npt.NDArray[np.uint8]:
    """Return one image, uint8 ``[C, H, W]``."""
    with _opened(path) as opened:
        image = ImageOps.exif_transpose(opened)
        if "transparency" in image.info:
            image = image.convert("RGBA")
        image = image.convert(mode)
        if size is not None:
            image = _fitted(image, size[0], size[1])
        values = np.asarray(image)
    return values[None] if values.ndim == 2 else np.moveaxis(values, 2, 0)


def _fitted(image: Image.Image, height: int, width: int) -> Image.Image:
    if (image.height, image.width) == (height, width):
        return image
    # Cropping first: resizing first would blow a thin strip up to any size.
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
    box = (
        max(0.0, left),
        max(0.0, top),
        min(float(image.width), left + scale * width),
        min(float(image.height), top + scale * height),
    )
    return image.resize((width, height), Image.Resampling.BILINEAR, box=box)


def _mode(path: Path) -> str:
    with _opened(path) as image:
        return image.mode


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image; whatever a damaged one makes Pillow raise names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.mode not in _EIGHT_BITS:
                    raise DataError(
                        f"images must have 8 bits per channel; {path} has the mode {image.mode!r} "
                        "(an .npz holds deeper ones)"
                    )
                yield image
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise DataError(f"cannot read {path} as an image: {error}") from error
