"""Which networks to run so that kernels of interest are seen in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.runtimes import Runtime

# A process and a session take 0.3 s, and a network is run some ten times: of an order that
# holds for CPUs of today, and it only ranks networks.
_FLOPS_OF_A_START: Final = 2e9

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


def reduced(net: Net, batch: int, dtype: str, runtime: Runtime, known: AbstractSet[Kernel]) -> Net:
    """Return a network without the blocks that would show nothing new.

    A block whose output has its input's shape can be left out; it is where all that it
    launches is known, or launched by an earlier block.
    """
    seen: set[Kernel] = set()
    kept = []
    for name, block, shape, facts in net.chain(batch):
        new = set(runtime.lower(block, shape, dtype)) - seen
        seen |= new
        if facts.output != shape or not new <= known:
            kept.append((name, block))
    return net if len(kept) == len(net.blocks) else Net(net.input_shape, tuple(kept))


def relative_cost(net: Net, batch: int) -> float:
    """Return what observing a network costs: a start, which is worth so many FLOPs, and those."""
    return 1 + net.flops(batch) / _FLOPS_OF_A_START
