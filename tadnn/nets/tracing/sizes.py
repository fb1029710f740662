"""Sizes in which ``-k`` is k times the batch, and arguments that are sizes."""

from __future__ import annotations

from typing import Any

from tadnn.errors import TraceError
from tadnn.nets.layers import Shape
from tadnn.nets.tracing.graph import BATCHES


def at_batch(shape: Shape, batch: int) -> Shape:
    """Return sizes at a batch; ``-k`` is k times the batch."""
    return tuple(size if size > 0 else -size * batch for size in shape)


def merged_shape(first: Shape, second: Shape) -> Shape:
    """Return the sizes of which these are what they are at ``BATCHES``."""
    small, large = BATCHES
    shape = []
    for a, b in zip(first, second, strict=True):
        if a != b and (a * large != b * small or a % small):
            raise TraceError(f"sizes are a multiple of the batch; got {first} and {second}")
        shape.append(a if a == b else -(a // small))
    return tuple(shape)


def numbers(value: Any, count: int) -> tuple[int, ...]:
    """Return an argument of one or several whole numbers as that many."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(values * count if len(values) == 1 else values)


def kept_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """Return dimensions counted from the front, in order; all where none is given."""
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(dim % rank for dim in given)) if given else tuple(range(rank))
