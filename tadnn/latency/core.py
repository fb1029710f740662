"""The physical core: launch, arithmetic and memory, fitted per op.

latency = launch + a * compute + b * memory, with compute and memory the
microseconds of :attr:`KernelBatch.roofline` and coefficients that can't be
negative. It is what a learned part corrects, and what carries a prediction
beyond the profiled range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tadnn.latency.batch import KernelBatch

# What is assumed where nothing was measured: a launch, and a third of peak and bandwidth reached.
DEFAULT_LAUNCH_US = 5.0
DEFAULT_FACTOR = 3.0


@dataclass(frozen=True)
class Core:
    """Coefficients of one op: microseconds per launch, multiples of the roofline's times."""

    launch_us: float = DEFAULT_LAUNCH_US
    compute: float = DEFAULT_FACTOR
    memory: float = DEFAULT_FACTOR

    def latency_us(self, batch: KernelBatch) -> np.ndarray:
        """Return microseconds, [n]."""
        compute, memory = batch.roofline
        return self.launch_us + self.compute * compute + self.memory * memory

    @property
    def coefficients(self) -> np.ndarray:
        """Launch, compute and memory, [3]."""
        return np.array([self.launch_us, self.compute, self.memory])

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return {"launch_us": self.launch_us, "compute": self.compute, "memory": self.memory}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Core:
        """Return what :meth:`to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: something is missing or of another type.
        """
        return cls(float(data["launch_us"]), float(data["compute"]), float(data["memory"]))


def fit_core(batches: Sequence[tuple[KernelBatch, np.ndarray]]) -> Core:
    """Fit the coefficients to measured microseconds, minimising relative errors.

    Args:
        batches: kernels of one op with their latencies [n]; one entry per device.
    """
    return _solve(*_design(batches))


def held_out_core(batches: Sequence[tuple[KernelBatch, np.ndarray]]) -> np.ndarray:
    """Return what the core says about each row, fitted without it; microseconds, [n]."""
    design, latency = _design(batches)
    return np.array(
        [
            _solve(np.delete(design, i, axis=0), np.delete(latency, i)).coefficients @ design[i]
            for i in range(len(latency))
        ]
    )


def _design(
    batches: Sequence[tuple[KernelBatch, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the coefficients multiply, [n, 3], and the latencies, [n]."""
    rows = [np.stack([np.ones(len(b)), *b.roofline], axis=1) for b, _ in batches]
    return np.concatenate(rows), np.concatenate([us for _, us in batches])


def _solve(design: np.ndarray, latency_us: np.ndarray) -> Core:
    from scipy.optimize import nnls

    relative = design / latency_us[:, None]
    # A faint pull towards the defaults decides where the data doesn't (one size, all alike).
    faint = 1e-3 * np.maximum(relative.max(axis=0), 1e-12)
    target = np.concatenate([np.ones(len(relative)), faint * Core().coefficients])
    solution, _ = nnls(np.concatenate([relative, np.diag(faint)]), target)
    launch, compute, memory = (float(x) for x in solution)
    # A core that is zero somewhere has no logarithm.
    return Core(max(launch, 1e-3), compute, max(memory, 1e-6))
