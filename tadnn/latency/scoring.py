"""Scoring thousands of architectures a second by predicted latency."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from tadnn.latency.memory import Memory
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import NetCost
from tadnn.nets import Block, Net, Shape, block_facts
from tadnn.runtimes import MIXED, find_runtime
from tadnn.spaces import Space

_MOST_BLOCKS: Final = 50_000
# Few enough to die young: what lives through collections makes the collector walk all memory.
_CHUNK: Final = 128

Placed = tuple[Block, Shape]
"""A block and the shape it takes, batch included."""


class BlockCost(NamedTuple):
    """What a block adds to a network's cost; see :class:`NetCost`."""

    kernels_us: float
    launches: int
    weight_mb: float
    large_mb: float


class BlockScorer:
    """Latency of networks by remembered blocks: a network of known blocks is a few look-ups.

    What it remembers is bounded; it belongs to one thread, as its model does.

    Args:
        model: the latency model.
        batch: the batch size.
    """

    def __init__(self, model: LatencyModel, batch: int = 1) -> None:
        self.model, self.batch = model, batch
        self._runtime = find_runtime(model.setting.runtime)
        self._blocks: Memory[Placed, BlockCost] = Memory(_MOST_BLOCKS)

    def latency_ms(self, nets: Sequence[Net]) -> np.ndarray:
        """Return the networks' latencies in milliseconds, [n].

        Raises:
            ShapeError: shapes don't fit; block and layer are named.
        """
        parts = []
        for i in range(0, len(nets), _CHUNK):
            with _collector_paused():
                parts.append(self._chunk(nets[i : i + _CHUNK]))
        return np.concatenate(parts) if parts else np.empty(0)

    def _chunk(self, nets: Sequence[Net]) -> np.ndarray:
        if self.model.setting.dtype == MIXED:  # a block's kernels depend on what stands before it
            costs = [self.model.cost(net, self.batch) for net in nets]
            return np.array([self.model.nets.latency_us(cost) for cost in costs]) / 1e3
        placed = [[(block, shape) for _, block, shape, _ in net.chain(self.batch)] for net in nets]
        known = self._blocks.get((block for net in placed for block in net), self._costs)
        total = self.model.nets.latency_us
        scored = np.empty(len(nets))
        for i, net in enumerate(placed):
            us, launches, mb, large = 0.0, 0, 0.0, 0.0
            for block in net:
                cost = known[block]
                us += cost[0]
                launches += cost[1]
                mb += cost[2]
                large += cost[3]
            scored[i] = total(NetCost(us, launches, mb, large))
        return scored / 1e3

    def _costs(self, blocks: Sequence[Placed]) -> list[BlockCost]:
        """Predict the kernels of blocks not seen before, all in one go."""
        dtype, size = self.model.setting.dtype, self.model.setting.weight_bytes
        launched = [self._runtime.lower(block, shape, dtype) for block, shape in blocks]
        memory = self.model.remember_costs(kernel for kernels in launched for kernel in kernels)
        costs = []
        for (block, shape), kernels in zip(blocks, launched, strict=True):
            us = large = 0.0
            for kernel in kernels:
                kernel_us, kernel_large = memory[kernel]
                us += kernel_us
                large += kernel_large
            weight_mb = block_facts(block, shape).parameters * size / 1e6
            costs.append(BlockCost(us, len(kernels), weight_mb, large))
        return costs


def score(
    space: Space,
    archs: Sequence[Mapping[str, Any]],
    latency_model: LatencyModel,
    batch: int = 1,
    input_shape: Shape | None = None,
    *,
    classes: int | None = None,
    phase: str | None = None,
) -> np.ndarray:
    """Return the predicted latency of architectures in milliseconds, [n].

    The model remembers their blocks for the next call.

    Args:
        space: the architectures' space.
        archs: points of it.
        latency_model: the model.
        batch: the batch size.
        input_shape: (C, H, W); the space's default when None.
        classes: outputs; the space's default when None.
        phase: one of the space's phases; the network itself when None.

    Raises:
        UnknownName: the space has no such phase.
        ArchitectureError: an architecture isn't a point of the space.
        ShapeError: shapes don't fit; block and layer are named.
    """
    scorer = latency_model.scorers.get(batch)
    if scorer is None:
        scorer = latency_model.scorers[batch] = BlockScorer(latency_model, batch)
    parts = []
    # Built a chunk at a time: a million networks needn't be in memory together.
    for i in range(0, len(archs), _CHUNK):
        chunk = archs[i : i + _CHUNK]
        with _collector_paused():
            nets = [space.build(arch, input_shape, classes, phase) for arch in chunk]
            parts.append(scorer.latency_ms(nets))
    return np.concatenate(parts) if parts else np.empty(0)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the collector from walking all memory again and again while much is made to stay.

    Nothing of it is garbage in cycles, which is what the collector looks for: its passes are a
    quarter of the time of scoring networks that share few blocks.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
