"""A factor per kind of kernel: what whole networks can tell of a device's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from tadnn.kernels import OPS
from tadnn.latency.adjustment import Adjustment
from tadnn.latency.batch import KernelBatch
from tadnn.latency.op_model import OpModel

# Kinds of convolution run by code of their own.
_CONVOLUTIONS: Final = ("", " pointwise", " grouped", " depthwise")


def kinds_of(op: str) -> tuple[str, ...]:
    """Return the kinds that an op's kernels are of."""
    if op in ("conv2d", "conv_transpose2d"):
        return tuple(op + ending for ending in _CONVOLUTIONS)
    return (op,)


def kind_indices(batch: KernelBatch) -> np.ndarray:
    """Return which of :func:`kinds_of` each kernel is, [n]."""
    if len(kinds_of(batch.op)) == 1:
        return np.zeros(len(batch), dtype=int)
    groups, c = batch.dims["groups"], batch.dims["c"]
    pointwise = (batch.dims["r"] == 1) & (batch.dims["s"] == 1)
    return np.where(groups == 1, pointwise * 1, np.where(groups == c, 3, 2))


def group_of(kind: str) -> str:
    """Return the group that a kind shares most with: products of matrices, or memory alone."""
    op = kind.split(" ")[0]
    if kind.endswith("depthwise") or op not in OPS:
        return "memory"
    return "matrix" if op in ("conv2d", "conv_transpose2d", "linear", "bmm") else "memory"


@dataclass(frozen=True)
class KindFactors(Adjustment):
    """A factor per kind of kernel, from timings of whole networks.

    Attributes:
        device: the device's slug.
        factors: log factor per kind.
        deviations: of the log factors, per kind.
        rest: log factor and deviation of a kind that no network had.
        narrowed: what kernels' own deviations are multiplied by: networks showed that they
            are surer than they say.
    """

    kind: ClassVar[str] = "kind-factors"
    common_known: ClassVar[bool] = True

    device: str
    factors: Mapping[str, float]
    deviations: Mapping[str, float]
    rest: tuple[float, float]
    narrowed: float

    def log_factor(self, op: OpModel, batch: KernelBatch, latency_us: np.ndarray) -> np.ndarray:
        """Return the logarithm of the factor, [n]."""
        per_kind = [self.factors.get(kind, self.rest[0]) for kind in kinds_of(batch.op)]
        factor: np.ndarray = np.array(per_kind)[kind_indices(batch)]
        return factor

    def adjust(
        self,
        op: OpModel,
        batch: KernelBatch,
        latency_us: np.ndarray,
        sigma: np.ndarray,
        inside: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return corrected microseconds and deviations; see the base class."""
        at, kinds = kind_indices(batch), kinds_of(batch.op)
        known = np.array([kind in self.factors for kind in kinds])[at]
        spread = np.array([self.deviations.get(kind, self.rest[1]) for kind in kinds])[at]
        own = np.where(known, sigma * self.narrowed, sigma)
        latency = latency_us * np.exp(self.log_factor(op, batch, latency_us))
        return latency, np.sqrt(own**2 + spread**2)

    def to_dict(self) -> dict[str, Any]:
        """Return what the card shows."""
        return {
            "kind": self.kind,
            "device": self.device,
            "factors": {k: float(v) for k, v in self.factors.items()},
            "deviations": {k: float(v) for k, v in self.deviations.items()},
            "rest": [float(v) for v in self.rest],
            "narrowed": float(self.narrowed),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KindFactors:
        """Return what :meth:`to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: something is missing or of another type.
        """
        factor, deviation = data["rest"]
        return cls(
            str(data["device"]),
            {str(k): float(v) for k, v in data["factors"].items()},
            {str(k): float(v) for k, v in data["deviations"].items()},
            (float(factor), float(deviation)),
            float(data["narrowed"]),
        )
