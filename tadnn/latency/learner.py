"""What a learned correction is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np


class Learner(ABC):
    """Predicts a log ratio with its standard deviation; immutable once fitted."""

    kind: ClassVar[str]

    @abstractmethod
    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the mean alone, [n], of features [n, d]: what bulk scoring asks for."""

    @abstractmethod
    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation, both [n], of features [n, d]."""

    @abstractmethod
    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return everything that makes the same learner again: numbers and text."""
