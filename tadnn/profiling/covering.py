"""Which networks to run so that kernels of interest are seen in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from tadnn.kernels import Kernel

N = TypeVar("N")


def covering_nets(
    wanted: Collection[Kernel],
    kernels_of: Mapping[N, Collection[Kernel]],
    cost: Mapping[N, float],
    most: int,
) -> list[N]:
    """Choose networks that launch wanted kernels: the most per cost, one after the other.

    The greedy rule of weighted set cover (Chvatal 1979): at each step the network that shows
    the most kernels not seen yet for its cost. Earlier ones win ties.

    Args:
        wanted: kernels to be seen.
        kernels_of: what each network launches.
        cost: of running it once; positive.
        most: how many at the most.

    Returns:
        networks, best first; fewer than ``most`` once all is seen or nothing more can be.
    """
    left = set(wanted)
    shows = {net: left.intersection(kernels) for net, kernels in kernels_of.items()}
    chosen: list[N] = []
    while left and len(chosen) < most:
        best = max(shows, key=lambda net: len(shows[net]) / cost[net], default=None)
        if best is None or not shows[best]:
            break
        chosen.append(best)
        seen = shows.pop(best)
        left -= seen
        for rest in shows.values():
            rest -= seen
    return chosen


def relative_costs(flops: Sequence[int]) -> list[float]:
    """Return what running networks costs: a start, as long as the median's runs, and FLOPs."""
    middle = sorted(flops)[len(flops) // 2] or 1
    return [1 + count / middle for count in flops]
