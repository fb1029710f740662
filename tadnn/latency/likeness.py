"""How far two kernels' errors agree, by the distance between their sizes.

A difference of predictions is known better than either where their errors agree: the deviation
of a difference is sqrt(a^2 + b^2 - 2 r a b). The correlation r is measured on rows that a fit
left out together, so neither could lean on the other, as two widths that nobody measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.kernels import Kernel

_FARTHEST: Final = 2.0
_FEWEST_PAIRS: Final = 100
_MOST_ROWS: Final = 500
_MOST_Z: Final = 3.0
_MOST_ALIKE: Final = 0.98
_LENGTHS: Final = 2.0 ** np.arange(-3, 4.5, 0.5)


@dataclass(frozen=True)
class Likeness:
    """The correlation of two errors: ``nearest * exp(-distance / length)``.

    Attributes:
        nearest: of the nearest kernels, 0 to 1; what is left is noise and what no feature tells.
        length: in octaves of the size that differs most.
    """

    nearest: float = 0.5
    length: float = 2.0

    def difference(self, a: Kernel, b: Kernel, a_std: float, b_std: float) -> float:
        """Return the deviation of the difference between two kernels of one op."""
        return float(self.differences([a, b], np.array([a_std, b_std]))[0, 1])

    def differences(self, kernels: Sequence[Kernel], std: np.ndarray) -> np.ndarray:
        """Return the deviation of the difference between any two kernels of one op, [n, n].

        Args:
            kernels: of one op.
            std: of each, [n].
        """
        octaves = _octaves(np.array([kernel.sizes for kernel in kernels]))
        apart = np.zeros((len(kernels), len(kernels)))
        for column in octaves.T:
            if np.any(column != column[0]):
                np.maximum(apart, np.abs(column[:, None] - column), out=apart)
        alike = self.nearest * np.exp(-apart / self.length)
        variance = std[:, None] ** 2 + std**2 - 2 * alike * np.multiply.outer(std, std)
        np.fill_diagonal(variance, 0.0)
        deviation: np.ndarray = np.sqrt(np.maximum(variance, 0.0))
        return deviation


UNKNOWN: Final = Likeness()
"""What is assumed where rows are too few: a difference is known as well as one of both."""


def fit_likeness(sizes: np.ndarray, z: np.ndarray, together: np.ndarray) -> Likeness:
    """Fit the correlation of errors to held-out rows, by least squares.

    Args:
        sizes: of kernels of one op, [n, s].
        z: their errors in shares of the deviation, [n].
        together: rows of the same number were left out of the same fit, on one device, [n].
    """
    octaves = _octaves(sizes)
    z = np.clip(z, -_MOST_Z, _MOST_Z)
    spread = float(np.mean(z**2))
    distances, products = [], []
    for number in np.unique(together):
        rows = np.nonzero(together == number)[0][:_MOST_ROWS]
        i, j = np.triu_indices(len(rows), k=1)
        apart = np.zeros(len(i))
        for column in octaves[rows].T:
            np.maximum(apart, np.abs(column[i] - column[j]), out=apart)
        near = apart <= _FARTHEST
        distances.append(apart[near])
        products.append((z[rows][i] * z[rows][j])[near])
    distance, product = np.concatenate(distances), np.concatenate(products)
    if len(distance) < _FEWEST_PAIRS or spread == 0:
        return UNKNOWN
    product /= spread
    fits = []
    for length in _LENGTHS:
        shape = np.exp(-distance / length)
        nearest = float(np.clip(product @ shape / (shape @ shape), 0.0, _MOST_ALIKE))
        fits.append((float(np.sum((product - nearest * shape) ** 2)), nearest, float(length)))
    _, nearest, length = min(fits)
    return Likeness(round(nearest, 4), round(length, 4))


def _octaves(sizes: np.ndarray) -> np.ndarray:
    octaves: np.ndarray = np.log2(np.maximum(sizes, 0.5))
    return octaves
