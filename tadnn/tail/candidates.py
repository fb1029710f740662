"""Which widths of a group are looked at."""

from __future__ import annotations

import math
from typing import Final

from tadnn.tail.flow import Group

NARROWEST: Final = 0.5
WIDEST: Final = 2.0
"""How far widths may go from where they are, as a rule: capacity alone would starve some layers
and swell others, which no measure of capacity sees."""
_FINEST: Final = 4
_MOST_WIDTHS: Final = 72


def candidate_widths(
    group: Group, narrowest: float = NARROWEST, widest: float = WIDEST, step: int | None = None
) -> list[int]:
    """Return widths from ``narrowest`` to ``widest`` times the present one, that one among them.

    Steps are doubled until their number is small. Edges lie at multiples of vectors and tiles,
    which the steps divide.

    Args:
        group: what is to have them.
        narrowest: the least share of the present width.
        widest: the greatest multiple of it.
        step: the least distance, a multiple of the grain; :func:`finest_step` when None.
    """
    most = max(group.width, int(widest * group.width))
    step = step or finest_step(group)
    while most // step > _MOST_WIDTHS:
        step *= 2
    least = max(step, math.ceil(narrowest * group.width / step) * step)
    return sorted({*range(least, most + 1, step), group.width})


def finest_step(group: Group) -> int:
    """Return the least distance of widths that are looked at: a multiple of the grain of 4 or more.

    Narrow groups, such as heads, have every multiple of the grain.
    """
    step = group.grain
    if group.width >= 4 * _FINEST:
        while step < _FINEST:
            step *= 2
    return step


def coarse_step(group: Group, vector: int) -> int:
    """Return the least distance of a group's widths that fill vectors; the grain for heads.

    Args:
        group: what is to have the widths.
        vector: channels to a vector.
    """
    if any(name == "heads" for _, name in group.setters):
        return group.grain
    return math.lcm(group.grain, vector)
