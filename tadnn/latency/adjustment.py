"""What corrects a latency model for one device that it wasn't fitted on.

An adjustment multiplies predicted latencies and says how sure it is of its factors. Kept in the
model's folder beside the predictors of the ops, it needs nothing of the model that it came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from tadnn.latency.batch import KernelBatch
from tadnn.latency.op_model import OpModel


class Adjustment(ABC):
    """A factor per kernel on one device; immutable once fitted.

    Attributes:
        device: the slug of the device it is for; it says nothing about others.
    """

    kind: ClassVar[str]
    common_known: ClassVar[bool] = False
    """Whether what kernels that nobody measured have in common was found, in whole networks."""
    device: str

    @abstractmethod
    def log_factor(self, op: OpModel, batch: KernelBatch, latency_us: np.ndarray) -> np.ndarray:
        """Return the logarithm of the factor, [n]: what bulk scoring asks for.

        Args:
            op: what predicts the op.
            batch: kernels of one op.
            latency_us: what is to be corrected, [n].
        """

    @abstractmethod
    def adjust(
        self,
        op: OpModel,
        batch: KernelBatch,
        latency_us: np.ndarray,
        sigma: np.ndarray,
        inside: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return corrected microseconds and relative deviations, [n] each.

        Args:
            op: what predicts the op.
            batch: kernels of one op.
            latency_us: predicted, [n].
            sigma: their relative standard deviation, [n].
            inside: whether the shape lies in the range that some device was profiled in, [n].
        """

    def measured(self, op: str) -> bool:
        """Tell whether kernels of the op were measured on the device."""
        return False

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return what the card shows: ``kind``, ``device`` and plain data."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return what doesn't belong on a card."""
        return {}
