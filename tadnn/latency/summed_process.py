"""A smooth factor over kernels, learned from sums of them.

The logarithm of what a kernel takes beyond what a model says of it is a Gaussian process: a
constant of the device, one of the kernel's kind, a smooth function of its columns
(:mod:`tadnn.latency.sum_columns`) shared by its group, and one of its kind. Smooth functions are
sums of random cosines (Rahimi & Recht, *Random Features for Large-Scale Kernel Machines*, 2007).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from tadnn.latency.adjustment import Adjustment
from tadnn.latency.batch import KernelBatch
from tadnn.latency.kind_factors import group_of
from tadnn.latency.op_model import OpModel
from tadnn.latency.sum_columns import COLUMNS, process_columns, process_kinds

GROUPS: Final = ("matrix", "memory")
COSINES: Final = 96
_REACH: Final = 1.5
"""How far, in columns, a smooth function's values are alike."""
_MOST: Final = 4.0
"""No factor is greater than e to this, nor smaller than one over it."""


@dataclass(frozen=True)
class Cosines:
    """The random cosines that smooth functions sum: frequencies [columns, d], phases [d]."""

    frequencies: np.ndarray
    phases: np.ndarray

    @classmethod
    def drawn(cls, seed: int) -> Cosines:
        """Return those of a Gaussian kernel of reach ``_REACH``."""
        rng = np.random.default_rng(seed)
        frequencies = rng.normal(size=(COLUMNS, COSINES)) / _REACH
        return cls(frequencies, rng.uniform(0, 2 * np.pi, COSINES))

    def of(self, columns: np.ndarray) -> np.ndarray:
        """Return their values, [n, d]; the mean of a function's variance is one."""
        scale = np.sqrt(2 / len(self.phases))
        values: np.ndarray = scale * np.cos(columns @ self.frequencies + self.phases)
        return values


def group_index(kind: str) -> int:
    """Return which of ``GROUPS`` a kind with its dtype is in."""
    return GROUPS.index(group_of(kind.rpartition(" ")[0]))


@dataclass(frozen=True)
class SummedProcess(Adjustment):
    """A Gaussian process over kernels, from timings of whole networks.

    Attributes:
        device: the device's slug.
        kinds: that networks had, dtypes included.
        constant: log factor of the device.
        offsets: those of kinds, [kinds].
        cosines: what smooth functions are sums of.
        shared: weights of the groups' functions, [groups, d].
        own: weights of the kinds' functions, [kinds, d].
        deviations: log deviation left, per kind, [kinds].
        rest: that of a kind that no network had.
        sizes: what the process was fitted with, for the card.
    """

    kind: ClassVar[str] = "summed-process"
    common_known: ClassVar[bool] = True

    device: str
    kinds: tuple[str, ...]
    constant: float
    offsets: np.ndarray
    cosines: Cosines
    shared: np.ndarray
    own: np.ndarray
    deviations: np.ndarray
    rest: float
    sizes: Mapping[str, float]

    def log_factor(self, op: OpModel, batch: KernelBatch, latency_us: np.ndarray) -> np.ndarray:
        """Return the logarithm of the factor, [n]."""
        cosines = self.cosines.of(process_columns(batch))
        named = process_kinds(batch)
        factor = np.full(len(batch), self.constant)
        for kind in set(named):
            at = np.array([name == kind for name in named])
            weights = self.shared[group_index(kind)]
            if kind in self.kinds:
                weights = weights + self.own[self.kinds.index(kind)]
                factor[at] += self.offsets[self.kinds.index(kind)]
            factor[at] += cosines[at] @ weights
        clipped: np.ndarray = np.clip(factor, -_MOST, _MOST)
        return clipped

    def adjust(
        self,
        op: OpModel,
        batch: KernelBatch,
        latency_us: np.ndarray,
        sigma: np.ndarray,
        inside: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return corrected microseconds and deviations; see the base class."""
        left = {kind: float(self.deviations[i]) for i, kind in enumerate(self.kinds)}
        spread = np.array([left.get(kind, self.rest) for kind in process_kinds(batch)])
        return latency_us * np.exp(self.log_factor(op, batch, latency_us)), spread

    def to_dict(self) -> dict[str, Any]:
        """Return what the card shows."""
        return {
            "kind": self.kind,
            "device": self.device,
            "kinds": list(self.kinds),
            "constant": float(self.constant),
            "rest": float(self.rest),
            "sizes": {name: float(size) for name, size in self.sizes.items()},
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the weights."""
        return {
            "offsets": self.offsets,
            "frequencies": self.cosines.frequencies,
            "phases": self.cosines.phases,
            "shared": self.shared,
            "own": self.own,
            "deviations": self.deviations,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SummedProcess:
        """Return what :meth:`to_dict` and :meth:`to_arrays` gave.

        Raises:
            KeyError, TypeError, ValueError: something is missing, of another type or size.
        """
        kinds = tuple(str(kind) for kind in data["kinds"])
        cosines = Cosines(arrays["frequencies"], arrays["phases"])
        width = len(cosines.phases)
        sized = {
            "frequencies": (COLUMNS, width),
            "offsets": (len(kinds),),
            "shared": (len(GROUPS), width),
            "own": (len(kinds), width),
            "deviations": (len(kinds),),
        }
        for name, shape in sized.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} is of shape {arrays[name].shape}, not {shape}")
        return cls(
            str(data["device"]),
            kinds,
            float(data["constant"]),
            arrays["offsets"],
            cosines,
            arrays["shared"],
            arrays["own"],
            arrays["deviations"],
            float(data["rest"]),
            {str(name): float(size) for name, size in data["sizes"].items()},
        )
