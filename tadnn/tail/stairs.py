"""Latency against the width of one group, in its network: the stairs, and their edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.tail.cost import Pricer, WidthCosts

FREE: Final = 0.01
"""The share of a latency that nobody notices: clocks hardly repeat themselves better."""


@dataclass(frozen=True)
class Stairs:
    """What a group's kernels take at several widths, everything else kept as it is.

    Attributes:
        group: the group's index.
        widths: ascending, [n]; the present one is among them.
        latency_us: of the kernels that follow the width, launches counted, [n].
        deviation_us: of the difference between any two widths' latencies, [n, n].
        present: the index of the present width.
        efficient: which widths are efficient, [n]; see :func:`efficient_widths`.
    """

    group: int
    widths: np.ndarray
    latency_us: np.ndarray
    deviation_us: np.ndarray
    present: int
    efficient: np.ndarray

    @property
    def undominated(self) -> np.ndarray:
        """Whether every wider width is expected to be slower, however little, [n].

        Nothing else is worth choosing, whatever the price of time is.
        """
        return efficient_widths(self.latency_us, np.zeros_like(self.deviation_us))

    @property
    def std_us(self) -> np.ndarray:
        """The deviation of the difference from the present width, [n]."""
        row: np.ndarray = self.deviation_us[self.present]
        return row


def stairs(costs: WidthCosts, pricer: Pricer, group: int, widths: Sequence[int]) -> Stairs:
    """Price a group at several widths, everything else kept.

    Args:
        costs: the network's kernels.
        pricer: of kernels.
        group: the group's index.
        widths: ascending; the present one among them.
    """
    now = costs.flow.groups[group].width
    mine = [wide for wide in costs.kernels if group in wide.groups]
    table = [[wide.at({group: width - now}) for width in widths] for wide in mine]
    counts = np.array([wide.count for wide in mine])
    us = pricer.kernels_us([kernel for row in table for kernel in row])
    latency = counts @ us.reshape(len(mine), len(widths)) if mine else np.zeros(len(widths))
    present = list(widths).index(now)
    variance = np.zeros((len(widths), len(widths)))
    for count, row in zip(counts, table, strict=True):
        variance += (count * pricer.differences_us(row)) ** 2
    deviation = np.sqrt(variance)
    efficient = efficient_widths(latency, deviation)
    return Stairs(group, np.array(widths), latency, deviation, present, efficient)


def efficient_widths(latency_us: np.ndarray, deviation_us: np.ndarray) -> np.ndarray:
    """Return which widths are efficient, [n].

    From the widest down: a width is efficient where the next efficient one above is slower by more
    than the deviation of the difference, or than :data:`FREE` of the latency where that is less.
    So every efficient width above is slower, and any other width can be widened to the next
    efficient one for nothing that could be told from nothing.

    Args:
        latency_us: at ascending widths, [n].
        deviation_us: of the difference between any two, [n, n].
    """
    efficient = np.zeros(len(latency_us), dtype=bool)
    above = len(latency_us) - 1
    efficient[above] = True
    for i in range(above - 1, -1, -1):
        noise = min(deviation_us[i, above], FREE * latency_us[i])
        if latency_us[above] - latency_us[i] > noise:
            efficient[i] = True
            above = i
    return efficient
