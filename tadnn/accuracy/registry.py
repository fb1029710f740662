"""Data sets by name, and one's own by where they are."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from tadnn.accuracy.dataset import SHAPE_RULE, Dataset, RawDataset, checked_sizes, prepare
from tadnn.accuracy.digits import read_digits
from tadnn.accuracy.sources import (
    read_cifar10,
    read_cifar100,
    read_fashion_mnist,
    read_folder,
    read_mnist,
    read_npz,
    read_torch,
)
from tadnn.accuracy.sources.places import DATA_VARIABLE
from tadnn.errors import DataError, UnknownName

# A data set is added by a function that reads it, in a file of its own, and a line here.
SOURCES: dict[str, Callable[[], RawDataset]] = {
    "cifar-10": read_cifar10,
    "cifar-100": read_cifar100,
    "digits": read_digits,
    "fashion-mnist": read_fashion_mnist,
    "mnist": read_mnist,
}

# What is before the colon, and how the whole name looks.
_OWN: Mapping[str, str] = {
    "folder": "folder:PATH",
    "npz": "npz:FILE.npz",
    "torch": "torch:MODULE:CALLABLE",
}


def require_dataset(name: str) -> None:
    """Check that a name can name a data set; nothing is read.

    Raises:
        UnknownName: neither one of `SOURCES` nor ``folder:PATH``, ``npz:FILE.npz`` or
            ``torch:MODULE:CALLABLE``.
    """
    kind, _, rest = name.partition(":")
    if name not in SOURCES and not (kind in _OWN and rest):
        raise UnknownName("data set", name, [*SOURCES, *_OWN.values()])


def load_dataset(name: str, input_shape: Sequence[int] | None = None) -> Dataset:
    """Return a data set, resized and normalised; the same object when asked again.

    Args:
        name: one of `SOURCES`; or ``folder:PATH``, ``npz:FILE.npz``, ``torch:MODULE:CALLABLE``
            (**whose file is run**), where MODULE is ``package.module`` or ``file.py``.
        input_shape: (C, H, W) wanted; the data set's own when absent.

    Raises:
        UnknownName: no such data set.
        DataError: it cannot be read, or cannot have this shape.
    """
    require_dataset(name)
    # Relative paths mean something else elsewhere.
    place = (os.getcwd(), os.environ.get(DATA_VARIABLE))
    if input_shape is None:
        return _prepared(name, None, place)
    try:
        shape = tuple(operator.index(size) for size in input_shape)
    except TypeError as error:
        raise DataError(f"{SHAPE_RULE}; received {input_shape!r}") from error
    return _prepared(name, checked_sizes(shape), place)


_Place = tuple[str, str | None]


# Two: a search needs one, and a caller that compares shapes needs another. They can be large.
@lru_cache(maxsize=2)
def _prepared(name: str, input_shape: tuple[int, ...] | None, place: _Place) -> Dataset:
    kind, _, rest = name.partition(":")
    if name not in SOURCES and kind == "folder":
        # Already in this shape, so keeping it for other shapes would help nobody.
        return prepare(read_folder(rest, input_shape), input_shape)
    return prepare(_raw(name, place), input_shape)


# Stored bytes are kept as they are: a quarter of what they become.
@lru_cache(maxsize=1)
def _raw(name: str, place: _Place) -> RawDataset:
    if name in SOURCES:
        return SOURCES[name]()
    kind, _, rest = name.partition(":")
    return read_npz(rest) if kind == "npz" else read_torch(rest)
