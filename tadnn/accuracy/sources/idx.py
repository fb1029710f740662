"""MNIST and Fashion-MNIST from their IDX files, plain or compressed with gzip.

Format: Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits": two zero
bytes, a type (8: unsigned byte), the number of dimensions, each dimension as a big-endian 32-bit
integer, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import torch

from tadnn.accuracy.dataset import RawDataset, Split
from tadnn.accuracy.sources.parts import checked_labels, completed, require_room
from tadnn.accuracy.sources.places import find_data_folder, find_file
from tadnn.errors import DataError

_UNSIGNED_BYTE = 8
_STEMS = {"train": "train", "test": "t10k"}
_FOUR_FILES = (
    "the four IDX files (train-images-idx3-ubyte, train-labels-idx1-ubyte, "
    "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; plain or .gz)"
)
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_fashion_mnist() -> RawDataset:
    """Read Fashion-MNIST: 70,000 grey pictures of clothing, 28x28.

    Raises:
        DataError: its files are missing or damaged.
    """
    folder = find_data_folder(
        "fashion-mnist",
        _FOUR_FILES,
        "install Debian's package dataset-fashion-mnist, or ",
        system=[FASHION_FOLDER],
    )
    return _read(
        "fashion-mnist",
        folder,
        class_names=_GARMENTS,
        licence=(
            "MIT; Zalando SE; H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a Novel Image "
            "Dataset for Benchmarking Machine Learning Algorithms, 2017"
        ),
        mirrors=True,
    )


def read_mnist() -> RawDataset:
    """Read MNIST: 70,000 grey handwritten digits, 28x28.

    Raises:
        DataError: its files are missing or damaged.
    """
    return _read(
        "mnist",
        find_data_folder("mnist", _FOUR_FILES, "", inner="raw"),
        class_names=tuple("0123456789"),
        licence=(
            "CC BY-SA 3.0; Y. LeCun, C. Cortes and C. Burges, "
            "The MNIST database of handwritten digits, 1998"
        ),
        mirrors=False,
    )


def _read(
    name: str, folder: Path, class_names: tuple[str, ...], licence: str, mirrors: bool
) -> RawDataset:
    parts = {}
    for split, stem in _STEMS.items():
        images_path = _find(folder, f"{stem}-images", 3)
        labels_path = _find(folder, f"{stem}-labels", 1)
        images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
        where = f"{labels_path} (with {images_path.name})"
        checked = checked_labels(where, labels, len(images), len(class_names))
        parts[split] = Split(torch.from_numpy(images)[:, None], torch.from_numpy(checked))
    return RawDataset(
        name=name,
        class_names=class_names,
        licence=licence,
        value_range=(0.0, 255.0),
        splits=completed(f"{name} in {folder}", parts),
        mirrors=mirrors,
    )


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    plain = [f"{stem}{mark}idx{dimensions}-ubyte" for mark in "-."]
    return find_file(folder, [plain[0], f"{plain[0]}.gz", plain[1], f"{plain[1]}.gz"])


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the unsigned bytes of an IDX file; a name ending in ``.gz`` is decompressed.

    Raises:
        DataError: it cannot be read, is no such file, or has not the length that it declares.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(path, cast("BinaryIO", file), dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _parse(path: Path, file: BinaryIO, dimensions: int) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    wanted = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if magic != wanted:
        raise DataError(
            f"{path} must be an IDX file of unsigned bytes with {dimensions} dimension(s), "
            f"which begins with {wanted.hex(' ')}; it begins with {magic.hex(' ') or 'nothing'}"
        )
    header = file.read(4 * dimensions)
    if len(header) != 4 * dimensions:
        raise DataError(f"{path} is truncated: it ends within its header")
    sizes = struct.unpack(f">{dimensions}I", header)
    if min(sizes) < 1:
        raise DataError(f"{path} must hold something; its header declares {_shown(sizes)}")
    require_room(str(path), sizes, 1)
    values = bytearray(math.prod(sizes))
    room, filled = memoryview(values), 0
    while filled < len(room):
        count = file.readinto(room[filled:])  # type: ignore[attr-defined]
        if not count:
            raise DataError(
                f"{path} is truncated: its header declares {_shown(sizes)} = {len(room)} bytes, "
                f"{filled} are there"
            )
        filled += count
    if file.read(1):
        raise DataError(
            f"{path} is longer than its header declares, {_shown(sizes)} = {len(room)} bytes"
        )
    return np.frombuffer(values, np.uint8).reshape(sizes)


def _shown(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
