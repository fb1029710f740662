"""The predictor of one op: physical core, learned correction, profiled range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tadnn.kernels import OPS
from tadnn.latency.batch import KernelBatch
from tadnn.latency.core import Core
from tadnn.latency.features import feature_matrix
from tadnn.latency.learner import Learner
from tadnn.latency.learners import learner_from_arrays
from tadnn.latency.likeness import UNKNOWN, Likeness
from tadnn.latency.network_fitting import network_features
from tadnn.latency.tile_network import TileNetwork

FLOOR: Final = 0.005
"""No log deviation is smaller: a measurement isn't known better."""
UNPROFILED: Final = 0.7
"""The log deviation of an op or device that nobody measured: a factor of two either way."""
OUTSIDE: Final = 0.25
"""The least log deviation outside the profiled range."""
# Sizes that change which code runs: only profiled values are in range.
EXACT_SIZES: Final = ("r", "s", "stride", "dilation")


@dataclass(frozen=True)
class OpModel:
    """Predicts one op's kernels on the devices it was fitted on, and guesses others.

    Attributes:
        core: the physical core.
        rows: how many measurements it was fitted to.
        learner: the correction, None where rows were too few.
        sigma: log deviation of the core alone where there is no learner.
        stretch: what the learner's deviation is multiplied by to be honest on held-out rows.
        abroad: log deviation on a device that the fit never saw.
        box: least and greatest value per size, FLOPs and bytes; every value per size that
            changes which code runs.
        devices: slugs with rows of this op.
        stand_in: the model of linear, which prices what was never measured of this op where
            that is a matrix product; the core does without. See :mod:`tadnn.latency.stand_ins`.
        held_out: errors on shapes left out of the fit (error_summary, and one_sigma,
            two_sigma: percent within so many deviations); empty where rows were too few.
        likeness: how far errors of neighbours agree.
    """

    core: Core
    rows: int = 0
    learner: Learner | None = None
    sigma: float = UNPROFILED
    stretch: float = 1.0
    abroad: float = UNPROFILED
    box: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    held_out: Mapping[str, Any] = field(default_factory=dict)
    likeness: Likeness = UNKNOWN
    stand_in: OpModel | None = None

    @classmethod
    def unprofiled(cls) -> OpModel:
        """Return the model of an op without rows: the core's defaults, a factor of two."""
        return cls(Core())

    def latency_us(self, batch: KernelBatch) -> np.ndarray:
        """Return microseconds alone, [n]: what bulk scoring asks for."""
        latency = self.core.latency_us(batch)
        if self.learner is not None:
            latency = latency * np.exp(self.learner.mean(self._features(batch)))
        latency = self._guessed(batch, latency, self.profiles(batch))
        bounded: np.ndarray = np.maximum(latency, batch.least_us)
        return bounded

    def predict(self, batch: KernelBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return microseconds, their standard deviation, and whether in range, each [n]."""
        latency = self.core.latency_us(batch)
        inside, profiled = self.covers(batch), self.profiles(batch)
        stranger = batch.device.slug not in self.devices
        far: np.ndarray | float = 1.0
        if self.learner is None:
            sigma = np.full(len(latency), self.sigma)
        else:
            x = self._features(batch)
            log_ratio, deviation = self.learner.predict(x)
            latency = latency * np.exp(log_ratio)
            sigma = np.maximum(deviation * self.stretch, FLOOR)
            if stranger and isinstance(self.learner, TileNetwork):
                far = self.learner.strangeness(x)
        latency = self._guessed(batch, latency, profiled)
        latency = np.maximum(latency, batch.least_us)
        sigma = np.where(self.holds(batch), sigma, np.maximum(sigma, OUTSIDE))
        if stranger:
            sigma = np.maximum(sigma, self.abroad * far)
        sigma = np.where(profiled, sigma, UNPROFILED)
        return latency, latency * sigma, inside

    def _features(self, batch: KernelBatch) -> np.ndarray:
        if isinstance(self.learner, TileNetwork):
            return network_features(batch, self.core, self.devices)[1]
        return feature_matrix(batch, len(self.devices) > 1)[1]

    def _guessed(self, batch: KernelBatch, latency: np.ndarray, profiled: np.ndarray) -> np.ndarray:
        """Return the latencies with those of kinds that nobody measured replaced, [n].

        What was learned of 3x3 windows says nothing about 7x7 ones; the physics does.
        """
        if profiled.all():
            return latency
        guess = self.core.latency_us(batch)
        product = batch.as_linear() if self.stand_in is not None else None
        if product is not None and self.stand_in is not None:
            one_product, linear = product
            guess = np.where(one_product, self.stand_in.latency_us(linear), guess)
        return np.where(profiled, latency, guess)

    def profiles(self, batch: KernelBatch) -> np.ndarray:
        """Tell which kernels are of a kind that was measured, whatever their size, [n].

        Kinds are windows, strides, dilations and groups, which decide which code runs.
        """
        known = np.full(len(batch), self.rows > 0)
        for name in EXACT_SIZES:
            if name in self.box and name in batch.dims:
                known &= np.isin(batch.dims[name], self.box[name])
            if f"{name}_w" in batch.dims and f"{name}_w" not in self.box:
                known &= _plain(batch, f"{name}_w")
        if "groups" in self.box:
            low, high = self.box["groups"]
            known &= (batch.dims["groups"] >= low) & (batch.dims["groups"] <= high)
        return known

    def covers(self, batch: KernelBatch) -> np.ndarray:
        """Tell which kernels lie in the profiled range of a profiled device, [n]."""
        if batch.device.slug not in self.devices:
            return np.zeros(len(batch), dtype=bool)
        return self.holds(batch)

    def holds(self, batch: KernelBatch) -> np.ndarray:
        """Tell which shapes lie in the profiled range of any device, [n]."""
        if not self.box:
            return np.zeros(len(batch), dtype=bool)
        inside = np.ones(len(batch), dtype=bool)
        for name, values in ranged(batch).items():
            if name in EXACT_SIZES:
                inside &= np.isin(values, self.box[name])
            elif name in self.box:
                low, high = self.box[name]
                inside &= (values >= low) & (values <= high)
            else:
                inside &= _plain(batch, name)
        return inside

    def to_dict(self) -> dict[str, Any]:
        """Return what the card shows."""
        return {
            "rows": self.rows,
            "learner": self.learner.kind if self.learner else None,
            "core": self.core.to_dict(),
            "sigma": float(self.sigma),
            "stretch": float(self.stretch),
            "abroad": float(self.abroad),
            "devices": list(self.devices),
            "range": {name: [int(v) for v in bounds] for name, bounds in self.box.items()},
            "held_out": dict(self.held_out),
            "likeness": [self.likeness.nearest, self.likeness.length],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> OpModel:
        """Return what :meth:`to_dict` and the learner's arrays describe.

        Raises:
            KeyError, TypeError, ValueError: something is missing or of another type.
        """
        kind = data["learner"]
        return cls(
            Core.from_dict(data["core"]),
            int(data["rows"]),
            learner_from_arrays(kind, arrays) if kind else None,
            float(data["sigma"]),
            float(data["stretch"]),
            float(data["abroad"]),
            {str(name): [int(v) for v in bounds] for name, bounds in data["range"].items()},
            tuple(str(slug) for slug in data["devices"]),
            dict(data["held_out"]),
            Likeness(*(float(v) for v in data["likeness"])) if "likeness" in data else UNKNOWN,
        )


def _plain(batch: KernelBatch, name: str) -> np.ndarray:
    """Tell which kernels have the default of an optional size that no fitted row had, [n]."""
    default = OPS[batch.op].optional[name]
    plain: np.ndarray = batch.dims[name] == (
        batch.dims[default] if isinstance(default, str) else default
    )
    return plain


def ranged(batch: KernelBatch) -> dict[str, np.ndarray]:
    """Return what a profiled range bounds, [n] each: sizes (but for padding), FLOPs, bytes."""
    ranged = {name: values for name, values in batch.dims.items() if name != "pad"}
    if np.any(batch.flops):
        ranged["flops"] = batch.flops
    return ranged | {"bytes": batch.bytes_moved}
