"""A latency model without stairs, fitted to the same measurements: the control."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tadnn.kernels import Kernel, KernelRow
from tadnn.latency import KernelPredictions, LatencyModel

_RIDGE = 1e-3
_FEWEST = 12


class SmoothModel(LatencyModel):
    """Log latency as a quadratic function of log sizes, FLOPs and bytes, per op.

    It knows how latency grows with every size and how sizes play together, but no vector, tile
    or wave. Ops with too few rows are left to the model that it stands beside.
    """

    _beside: LatencyModel
    _fits: dict[str, np.ndarray]

    @classmethod
    def of(cls, model: LatencyModel, rows: Sequence[KernelRow]) -> SmoothModel:
        """Return the smooth model of the measurements that a latency model was fitted to."""
        smooth = cls(model.card, model.ops, model.nets, model.device, model.hash)
        by_op: dict[str, list[KernelRow]] = {}
        for row in rows:
            by_op.setdefault(row.kernel.op, []).append(row)
        smooth._beside = model
        smooth._fits = {op: _fit(mine) for op, mine in by_op.items() if len(mine) >= _FEWEST}
        return smooth

    def predict(self, kernels: Sequence[Kernel]) -> KernelPredictions:
        """Predict smoothly; deviations are those of the model beside."""
        beside = self._beside.predict(kernels)
        return KernelPredictions(self.predict_us(kernels), beside.std_us, beside.in_range)

    def predict_us(self, kernels: Sequence[Kernel]) -> np.ndarray:
        """Predict microseconds alone, [n]."""
        latency = self._beside.predict_us(kernels)
        for op, weights in self._fits.items():
            at = [i for i, kernel in enumerate(kernels) if kernel.op == op]
            if at:
                latency[at] = np.exp(_features([kernels[i] for i in at]) @ weights)
        return latency


def _features(kernels: Sequence[Kernel]) -> np.ndarray:
    """Return constant, logarithms and their products, [n, d]."""
    logs = np.log(
        [[*(max(size, 0.5) for size in k.sizes), max(k.flops, 1), k.bytes_moved] for k in kernels]
    )
    first, second = np.triu_indices(logs.shape[1])
    # Scaled so that the ridge treats terms alike.
    return np.concatenate(
        [np.ones((len(logs), 1)), logs / 4, logs[:, first] * logs[:, second] / 64], axis=1
    )


def _fit(rows: Sequence[KernelRow]) -> np.ndarray:
    x = _features([row.kernel for row in rows])
    y = np.log([row.latency_us for row in rows])
    weights: np.ndarray = np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ y)
    return weights
