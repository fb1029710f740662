"""CIFAR-10 and CIFAR-100 from their published binary batches.

Format: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, binary
version. A record is the label (CIFAR-100: coarse label, then fine label), one byte each, then
32x32 red, 32x32 green and 32x32 blue bytes, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tadnn.accuracy.dataset import RawDataset, Split
from tadnn.accuracy.sources.parts import checked_labels, completed, require_room
from tadnn.accuracy.sources.places import find_data_folder, find_file
from tadnn.errors import DataError

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_LICENCE = (
    "none stated by its authors; A. Krizhevsky, "
    "Learning Multiple Layers of Features from Tiny Images, 2009"
)


def read_cifar10() -> RawDataset:
    """Read CIFAR-10: 60,000 colour pictures of ten classes, 32x32.

    Raises:
        DataError: its files are missing or damaged.
    """
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    what = (
        "the binary version's files (data_batch_1.bin to data_batch_5.bin, test_batch.bin, "
        "batches.meta.txt)"
    )
    folder = find_data_folder("cifar-10", what, "", inner="cifar-10-batches-bin")
    return _read("cifar-10", folder, "batches.meta.txt", 10, 1, batches, "test_batch.bin")


def read_cifar100() -> RawDataset:
    """Read CIFAR-100: 60,000 colour pictures of a hundred classes (the fine labels), 32x32.

    Raises:
        DataError: its files are missing or damaged.
    """
    what = "the binary version's files (train.bin, test.bin, fine_label_names.txt)"
    folder = find_data_folder("cifar-100", what, "", inner="cifar-100-binary")
    return _read("cifar-100", folder, "fine_label_names.txt", 100, 2, ["train.bin"], "test.bin")


def _read(
    name: str,
    folder: Path,
    names_file: str,
    classes: int,
    label_bytes: int,
    train: Sequence[str],
    test: str,
) -> RawDataset:
    class_names = _class_names(find_file(folder, [names_file]), classes)
    parts = {
        split: _batches([find_file(folder, [file]) for file in files], label_bytes, classes)
        for split, files in (("train", train), ("test", [test]))
    }
    return RawDataset(
        name=name,
        class_names=class_names,
        licence=_LICENCE,
        value_range=(0.0, 255.0),
        splits=completed(f"{name} in {folder}", parts),
        mirrors=True,
    )


def _class_names(path: Path, classes: int) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != classes or len(set(names)) != classes:
        raise DataError(
            f"{path} must hold {classes} different class names, one a line; received "
            f"{len(set(names))} different ones in {len(names)} lines"
        )
    return names


def _batches(paths: Sequence[Path], label_bytes: int, classes: int) -> Split:
    record = label_bytes + _PIXELS
    counts = [_count(path, record) for path in paths]
    for path, count in zip(paths, counts, strict=True):
        if count != counts[0]:
            raise DataError(
                f"all batches must be of one length; {paths[0]} has {counts[0]} images and "
                f"{path} has {count}"
            )
    require_room(str(paths[0].parent), (sum(counts), *_SHAPE), 1)
    images = np.empty((sum(counts), *_SHAPE), np.uint8)
    labels, begin = [], 0
    for path, count in zip(paths, counts, strict=True):
        try:
            records = np.fromfile(path, np.uint8, count * record).reshape(count, record)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {path}: {error}") from error
        images[begin : begin + count] = records[:, label_bytes:].reshape(count, *_SHAPE)
        labels.append(checked_labels(str(path), records[:, label_bytes - 1], count, classes))
        begin += count
    return Split(torch.from_numpy(images), torch.from_numpy(np.concatenate(labels)))


def _count(path: Path, record: int) -> int:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if size == 0 or size % record:
        raise DataError(
            f"{path} must hold records of {record} bytes; its {size} bytes are "
            f"{size // record} records and {size % record} bytes: it is truncated or another file"
        )
    return size // record
