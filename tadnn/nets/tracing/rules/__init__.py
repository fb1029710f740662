"""What every operator of torch is in the vocabulary, as a table: ``RULES``.

A rule takes the lowering and a call and returns the value that the call gives (several for
several outputs), or None where the vocabulary doesn't go that far; then the operator stays
opaque. Names are the operators' without overload and without the ``_`` of in-place ones.
"""

from __future__ import annotations

from typing import Final

from tadnn.nets.tracing.lowering import Rule
from tadnn.nets.tracing.rules import arithmetic, images, products, reductions, shapes, weighted

RULES: Final[dict[str, Rule]] = {
    f"aten.{name}": rule
    for table in (
        arithmetic.TABLE,
        images.TABLE,
        products.TABLE,
        reductions.TABLE,
        shapes.TABLE,
        weighted.TABLE,
    )
    for name, rule in table.items()
}

CREATES: Final = frozenset(
    f"aten.{name}"
    for name in (
        "empty_like",
        "full_like",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "zeros_like",
    )
)
"""Operators that take a tensor for its size alone."""

__all__ = ["CREATES", "RULES"]
