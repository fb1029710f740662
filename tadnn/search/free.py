"""What costs nothing to know of an architecture: sizes, and latency by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tadnn.errors import TadnnError
from tadnn.search.spec_parts import LATENCY, LATENCY_MS

if TYPE_CHECKING:
    from tadnn.nets import Net
    from tadnn.search.frontier import Measure
    from tadnn.search.objective import Predictor
    from tadnn.spaces import Space

#: What `FreeMeasures` tells, beside ``PHASE_latency`` and ``PHASE_latency_ms``; ``memory`` is
#: another name of ``memory_bytes``, and so is ``latency`` of ``latency_ms``.
FREE: Final = ("latency", "latency_ms", "parameters", "flops", "memory", "memory_bytes")

_CHUNK: Final = 64


class FreeMeasures:
    """Sizes and predicted latency of many architectures, in memory.

    Args:
        space: the architectures' space.
        predictor: the latency model; None: latency is not known.
        batch: inputs per run.
        dtype: of weights and activations.
        input_shape: of one input; the space's default when None.
        classes: outputs; the space's default when None.
    """

    def __init__(
        self,
        space: Space,
        predictor: Predictor | None,
        batch: int = 1,
        dtype: str = "fp32",
        input_shape: tuple[int, ...] | None = None,
        classes: int | None = None,
    ) -> None:
        self._space, self._predictor = space, predictor
        self._batch, self._dtype = batch, dtype
        self._input_shape, self._classes = input_shape, classes
        self._scorer: Any = None

    def columns(
        self, archs: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return the measures ``names``, each [n]; NaN where a network cannot be built."""
        found = {name: np.full(len(archs), np.nan) for name in names}
        for start in range(0, len(archs), _CHUNK):
            chunk = archs[start : start + _CHUNK]
            try:
                self._fill(found, start, chunk)
            except TadnnError:
                # One of them cannot be built: as a trial it would fail with the reason.
                for row, arch in enumerate(chunk, start):
                    with suppress(TadnnError):
                        self._fill(found, row, [arch])
        return found

    def _fill(
        self, found: Mapping[str, np.ndarray], start: int, archs: Sequence[Mapping[str, Any]]
    ) -> None:
        nets = self._nets(archs, None)
        columns = {
            name: self._measured(nets, name)
            if (phase := _phase_of(name)) is None
            else self._latency(self._nets(archs, phase))
            for name in found
        }
        for name, column in columns.items():
            found[name][start : start + len(archs)] = column

    def _nets(self, archs: Sequence[Mapping[str, Any]], phase: str | None) -> list[Net]:
        return [self._space.build(arch, self._input_shape, self._classes, phase) for arch in archs]

    def _measured(self, nets: Sequence[Net], name: str) -> Sequence[float] | np.ndarray:
        if name in ("latency", "latency_ms"):
            return self._latency(nets)
        if name == "parameters":
            return [net.parameters for net in nets]
        if name == "flops":
            return [net.flops() for net in nets]
        return [net.memory_bytes(self._batch, self._dtype) for net in nets]

    def _latency(self, nets: Sequence[Net]) -> Sequence[float] | np.ndarray:
        from tadnn.latency import BlockScorer, LatencyModel

        predictor = self._predictor
        if isinstance(predictor, LatencyModel):
            if self._scorer is None:
                self._scorer = BlockScorer(predictor, self._batch)
            scored: np.ndarray = self._scorer.latency_ms(nets)
            return scored
        assert predictor is not None
        return [predictor.predict_net(net, self._batch).latency_ms for net in nets]


def _phase_of(name: str) -> str | None:
    """Return the phase whose latency a name is, such as ``decode`` of ``decode_latency_ms``."""
    for ending in (LATENCY, LATENCY_MS):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return None


def _is_free(name: str) -> bool:
    return name in FREE or _phase_of(name) is not None


class _Columns:
    """One pass over the networks for all that is asked of the same list of architectures."""

    def __init__(self, free: FreeMeasures, names: Sequence[str]) -> None:
        self._free, self._names = free, list(dict.fromkeys(names))
        self._archs: Sequence[Mapping[str, Any]] | None = None
        self._found: dict[str, np.ndarray] = {}

    def get(self, name: str, archs: Sequence[Mapping[str, Any]]) -> np.ndarray:
        if archs is not self._archs:
            self._archs, self._found = archs, self._free.columns(archs, self._names)
        return self._found[name]

    def excess(self, name: str, bound: float, archs: Sequence[Mapping[str, Any]]) -> np.ndarray:
        excess: np.ndarray = self.get(name, archs) / bound - 1.0
        return excess


def free_objectives(
    free: FreeMeasures, objectives: Sequence[str], bounds: Mapping[str, float]
) -> tuple[dict[int, Measure], list[Measure]]:
    """Return the objectives of a study that are free, by index, and its constraints.

    Both as functions of a list of architectures; constraints are at most 0 where feasible, in
    shares of the bound.
    """
    names = [name for name in objectives if _is_free(name)]
    columns = _Columns(free, [*names, *bounds])
    known: dict[int, Measure] = {
        index: partial(columns.get, name) for index, name in enumerate(objectives) if _is_free(name)
    }
    constraints: list[Measure] = [
        partial(columns.excess, name, bound) for name, bound in bounds.items()
    ]
    return known, constraints
