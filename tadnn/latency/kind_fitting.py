"""Fitting a factor per kind of kernel to timings of networks (:mod:`tadnn.latency.calibrating`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tadnn.kernels import Kernel
from tadnn.latency.batch import KernelBatch
from tadnn.latency.kind_factors import group_of, kind_indices, kinds_of
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import overlapped

PARTS: Final = 10
"""So many parts of many networks are left out in turn."""
_DEVICE: Final = 1.0
"""Prior log deviation of what is common to all kernels of a device."""
_GROUP: Final = 0.5
"""That of a group, and of a kind, relative to how unsure the model is of the kind's kernels."""
_LEAST_KIND, MOST_KIND = 0.02, 0.5
_NOISE: Final = 0.05
"""Log deviation of a timing at first; then that of the residuals."""
_LEAST_NOISE: Final = 0.02
_ROUNDS: Final = 3
_MOST_LEFT_OUT_ALONE: Final = 20


@dataclass(frozen=True)
class KindSums:
    """Networks as what their latency is made of.

    Attributes:
        kinds: that occur.
        us: microseconds by kind, [n, kinds].
        terms: launches, 1e6 bytes of weights and of large outputs, [n, 3].
        variance: of the kernels' sum, by kernels' own deviations, [n]; microseconds squared.
        unsure: how unsure the model is of each kind's kernels, relative, [kinds].
    """

    kinds: tuple[str, ...]
    us: np.ndarray
    terms: np.ndarray
    variance: np.ndarray
    unsure: np.ndarray

    def of(self, rows: np.ndarray) -> KindSums:
        """Return some of the networks."""
        return replace(self, us=self.us[rows], terms=self.terms[rows], variance=self.variance[rows])


@dataclass(frozen=True)
class KindFit:
    """Log factors by kind, [kinds]; base, gap, weights, large, host, [5]; factors' covariance."""

    factors: np.ndarray
    added: np.ndarray
    covariance: np.ndarray

    def latency_us(self, nets: KindSums) -> np.ndarray:
        """Return the networks' microseconds, [n]."""
        base, gap, weights, large, host = self.added
        device = nets.us @ np.exp(self.factors) + nets.terms @ np.array([gap, weights, large])
        if host:
            device = overlapped(device, host * nets.terms[:, 0])
        total: np.ndarray = base + device
        return total


def read_kinds(
    model: LatencyModel, terms: np.ndarray, launched: Sequence[Counter[Kernel]]
) -> KindSums:
    """Predict all kernels of all networks, and add them up by kind."""
    known = model.remember(kernel for counts in launched for kernel in counts)
    kind_of: dict[Kernel, str] = {}
    by_op: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in dict.fromkeys(kernel for counts in launched for kernel in counts):
        by_op.setdefault((kernel.op, kernel.dtype), []).append(kernel)
    for (op, _), kernels in by_op.items():
        batch = KernelBatch.of(kernels, model.device, model.setting.threads)
        named = kinds_of(op)
        kind_of |= {k: named[i] for k, i in zip(kernels, kind_indices(batch).tolist(), strict=True)}
    kinds = tuple(sorted(set(kind_of.values())))
    column = {kind: i for i, kind in enumerate(kinds)}
    us, unsure = np.zeros((len(launched), len(kinds))), np.zeros(len(kinds))
    variance = np.zeros(len(launched))
    for row, counts in enumerate(launched):
        for kernel, count in counts.items():
            mean, deviation, _ = known[kernel]
            us[row, column[kind_of[kernel]]] += mean * count
            unsure[column[kind_of[kernel]]] += deviation * count
            variance[row] += (deviation * count) ** 2
    return KindSums(kinds, us, terms, variance, unsure / us.sum(axis=0))


def _prior(nets: KindSums) -> np.ndarray:
    """Return a square root of the log factors' prior covariance, [kinds, kinds]."""
    groups = np.array([group_of(kind) for kind in nets.kinds])
    own = np.clip(_GROUP * nets.unsure, _LEAST_KIND, MOST_KIND)
    covariance = _DEVICE**2 + np.outer(own, own) * (groups[:, None] == groups) + np.diag(own**2)
    root: np.ndarray = np.linalg.cholesky(covariance)
    return root


def fit_kinds(
    nets: KindSums, measured: np.ndarray, scales: np.ndarray, noise: float | None = None
) -> tuple[KindFit, float]:
    """Fit robustly; where no noise is given, find it.

    Args:
        nets: the networks.
        measured: microseconds, [n].
        scales: prior standard deviations of what is added, [5]; zero for what isn't.
        noise: log deviation of a timing.
    """
    from scipy.optimize import least_squares

    root, kinds = _prior(nets), len(nets.kinds)
    used = np.flatnonzero(scales)

    def unpacked(point: np.ndarray) -> KindFit:
        added = np.zeros(len(scales))
        added[used] = point[kinds:] * scales[used]
        return KindFit(root @ point[:kinds], added, np.empty((0, 0)))

    # The best common factor is where to begin.
    ratio = float(np.median(np.log(measured / nets.us.sum(axis=1))))
    start = np.concatenate([np.linalg.solve(root, np.full(kinds, ratio)), np.full(len(used), 0.3)])
    lowest = np.concatenate([np.full(kinds, -np.inf), np.zeros(len(used))])
    rounds, level = (_ROUNDS, _NOISE) if noise is None else (1, noise)
    for _ in range(rounds):

        def residuals(point: np.ndarray, level: float = level) -> np.ndarray:
            z = np.log(unpacked(point).latency_us(nets) / measured) / level
            # Beyond two deviations a timing pulls with its absolute error (Huber's idea, smooth).
            soft = np.sign(z) * np.sqrt(8 * (np.sqrt(1 + z**2 / 4) - 1))
            return np.concatenate([soft, point])

        found = least_squares(residuals, start, bounds=(lowest, np.inf), max_nfev=50)
        start = np.maximum(found.x, np.where(np.isfinite(lowest), 1e-6, -np.inf))
        error = np.log(unpacked(found.x).latency_us(nets) / measured)
        if noise is None:
            spread = 1.4826 * float(np.median(np.abs(error)))
            # Few timings are fitted closely whatever the noise is.
            share = len(error) / (len(error) + kinds / 2)
            level = max(_LEAST_NOISE, share * spread + (1 - share) * _NOISE)
    information = found.jac.T @ found.jac
    covariance = np.linalg.pinv(information)[:kinds, :kinds]
    fitted = unpacked(found.x)
    return replace(fitted, covariance=root @ covariance @ root.T), level


def kinds_left_out(
    nets: KindSums, measured: np.ndarray, scales: np.ndarray, noise: float, seed: int
) -> np.ndarray:
    """Return what is said of each network by a fit without it (and without its part), [n]."""
    count = len(measured)
    parts = count if count <= _MOST_LEFT_OUT_ALONE else PARTS
    part = np.random.default_rng(seed).permutation(count) % parts
    said = np.empty(count)
    for i in range(parts):
        out = part == i
        fitted, _ = fit_kinds(nets.of(~out), measured[~out], scales, noise)
        said[out] = fitted.latency_us(nets.of(out))
    return said
