"""Data sets by name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache

from tadnn.accuracy.dataset import SHAPE_RULE, Dataset, RawDataset, prepare
from tadnn.accuracy.digits import read_digits
from tadnn.errors import DataError, UnknownName

# A data set is added by a function that reads it, in a file of its own, and a line here.
SOURCES: dict[str, Callable[[], RawDataset]] = {"digits": read_digits}


def load_dataset(name: str, input_shape: Sequence[int] | None = None) -> Dataset:
    """Return a data set, resized and normalised; the same object when asked again.

    Args:
        name: one of `SOURCES`.
        input_shape: (C, H, W) wanted; the data set's own when absent.

    Raises:
        UnknownName: no such data set.
        DataError: it cannot be read, or cannot have this shape.
    """
    if name not in SOURCES:
        raise UnknownName("data set", name, SOURCES)
    if input_shape is None:
        return _prepared(name, None)
    try:
        shape = tuple(operator.index(size) for size in input_shape)
    except TypeError as error:
        raise DataError(f"{SHAPE_RULE}; received {input_shape!r}") from error
    return _prepared(name, shape)


# Two: a search needs one, and a caller that compares shapes needs another. They can be large.
@lru_cache(maxsize=2)
def _prepared(name: str, input_shape: tuple[int, ...] | None) -> Dataset:
    return prepare(_raw(name), input_shape)


@lru_cache(maxsize=2)
def _raw(name: str) -> RawDataset:
    return SOURCES[name]()
