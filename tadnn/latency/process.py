"""A Gaussian process on kernel features.

Rasmussen & Williams, Gaussian Processes for Machine Learning (2006): prediction
is algorithm 2.1, the Matern-5/2 covariance eq. 4.17, the likelihood's gradient eq. 5.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from tadnn.latency.learner import Learner

_ROWS_TO_TUNE: Final = 250
_AT_A_TIME: Final = 4096
_JITTER: Final = 1e-9
# What length scales are drawn to, and how hard: a feature that doesn't matter stays out.
_PRIOR_LENGTH: Final = float(np.log(8.0))
_PRIOR_VARIANCE: Final = 4.0


class GaussianProcess(Learner):
    """Matern-5/2 process with a length scale per feature."""

    kind = "process"

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)
        self._mean, self._scale = arrays["mean"], arrays["scale"]
        self._lengths, self._x, self._alpha = arrays["lengths"], arrays["x"], arrays["alpha"]
        self._amplitude, self._noise, self._offset = (float(v) for v in arrays["scalars"])

    @classmethod
    def fit(
        cls, x: np.ndarray, y: np.ndarray, seed: int, like: GaussianProcess | None = None
    ) -> GaussianProcess:
        """Fit to features [n, d] and log ratios [n].

        ``like`` lends its tuned scales, so that folds and refits cost one solve.
        """
        if like is None:
            mean, scale = x.mean(axis=0), x.std(axis=0)
            varies = scale > 1e-9
            scale[~varies] = 1.0
            # A feature that never varied mustn't speak up when it does: in_range does that.
            lengths = np.full(x.shape[1], 1e3)
            z = (x[:, varies] - mean[varies]) / scale[varies]
            lengths[varies], amplitude, noise = _tune(z, y - y.mean(), seed)
        else:
            mean, scale, lengths = like._mean, like._scale, like._lengths
            amplitude, noise = like._amplitude, like._noise
        z = (x - mean) / scale / lengths
        offset = float(y.mean())
        with threadpool_limits(1):
            alpha = np.linalg.solve(_covariance(z, amplitude, noise), y - offset)
        return cls(
            {
                "mean": mean,
                "scale": scale,
                "lengths": lengths,
                "x": z,
                "alpha": alpha,
                "scalars": np.array([amplitude, noise, offset]),
            }
        )

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the posterior mean."""
        return np.concatenate([cross @ self._alpha + self._offset for cross in self._crosses(x)])

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation, noise of a measurement included."""
        means, variances = [], []
        for cross in self._crosses(x):
            means.append(cross @ self._alpha + self._offset)
            explained = np.einsum("ij,ij->i", cross @ self._inverse, cross)
            variances.append(np.maximum(self._amplitude - explained, 0.0) + self._noise)
        return np.concatenate(means), np.sqrt(np.concatenate(variances))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays."""
        return dict(self._arrays)

    @cached_property
    def _inverse(self) -> np.ndarray:
        # Made from what is stored: as large as all else together, squared.
        with threadpool_limits(1):
            inverse = np.linalg.inv(_covariance(self._x, self._amplitude, self._noise))
        symmetric: np.ndarray = (inverse + inverse.T) / 2
        return symmetric

    def _crosses(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the covariance with the fitted rows, some thousand rows of x at a time."""
        for start in range(0, max(len(x), 1), _AT_A_TIME):
            z = (x[start : start + _AT_A_TIME] - self._mean) / self._scale / self._lengths
            yield self._amplitude * _matern(_distance(z, self._x))


def _covariance(z: np.ndarray, amplitude: float, noise: float) -> np.ndarray:
    covariance = amplitude * _matern(_distance(z, z))
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER
    return covariance


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return sqrt(5) times the Euclidean distances, [n, m]."""
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    distance: np.ndarray = np.sqrt(5 * np.maximum(squared, 0.0))
    return distance


def _matern(distance: np.ndarray) -> np.ndarray:
    correlation: np.ndarray = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return correlation


def loss(theta: np.ndarray, z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the negative log posterior of the scales, up to a constant, and its gradient.

    Written out because it is what profiling waits for: the gradient by matrix
    products takes a twentieth of scikit-learn's time with a scale per feature.

    Args:
        theta: logarithms of length scales [d], amplitude and noise variance; [d + 2].
        z: standardised features, [n, d].
        y: centred log ratios, [n].
    """
    d = z.shape[1]
    lengths, amplitude, noise = np.exp(theta[:d]), np.exp(theta[d]), np.exp(theta[d + 1])
    scaled = z / lengths
    distance = _distance(scaled, scaled)
    correlation = _matern(distance)
    covariance = amplitude * correlation
    covariance[np.diag_indices(len(z))] += noise + _JITTER
    factor = np.linalg.cholesky(covariance)
    inverse = np.linalg.inv(covariance)
    alpha = inverse @ y
    likelihood = -0.5 * y @ alpha - np.log(np.diag(factor)).sum()
    outer = np.outer(alpha, alpha) - inverse
    # d correlation / d log length_j = 5/3 (1 + distance) exp(-distance) (z_ij / length_j)^2,
    # and a weighted sum of squared differences is a difference of matrix products.
    weight = outer * (amplitude * 5 / 3 * (1 + distance) * np.exp(-distance))
    by_length = (weight.sum(axis=1) @ scaled**2) - np.einsum("ij,ij->j", scaled, weight @ scaled)
    by_amplitude = 0.5 * amplitude * np.sum(outer * correlation)
    by_noise = 0.5 * noise * np.trace(outer)
    off = theta[:d] - _PRIOR_LENGTH
    prior = 0.5 * np.sum(off**2) / _PRIOR_VARIANCE
    gradient = np.concatenate([by_length - off / _PRIOR_VARIANCE, [by_amplitude, by_noise]])
    return float(prior - likelihood), -gradient


def _tune(z: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, float, float]:
    """Return length scales [d], amplitude and noise variance of the greatest posterior."""
    from scipy.optimize import minimize

    pick = np.random.default_rng(seed).permutation(len(z))[:_ROWS_TO_TUNE]
    z, y = z[pick], y[pick]
    d = z.shape[1]
    variance = max(float(np.var(y)), 1e-6)
    start = np.concatenate([np.full(d, np.log(4.0)), np.log([variance, variance * 0.05])])
    bounds = [(np.log(0.1), np.log(1e3))] * d
    bounds += [(np.log(variance * 1e-2), np.log(variance * 1e3)), (np.log(1e-6), np.log(variance))]
    # Matrices this small gain nothing from threads, and lose much beside a busy neighbour.
    with threadpool_limits(1):
        best = minimize(
            loss,
            start,
            (z, y),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 150},
        ).x
    return np.exp(best[:d]), float(np.exp(best[d])), float(np.exp(best[d + 1]))
