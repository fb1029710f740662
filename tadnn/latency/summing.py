"""Fitting a Gaussian process over kernels to timings of networks.

A network's latency is a sum of exponentials of what is fitted. Linearised where the fit stands,
its logarithm is linear in all weights, which have a Gaussian prior: one step solves a system as
large as there are networks, and a few steps settle (Gauss-Newton; extended Kalman's idea). How
far each part of the process may go is what makes the measured timings most likely (evidence;
MacKay, *Bayesian Interpolation*, 1992).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tadnn.latency.nets import overlapped
from tadnn.latency.summed_process import GROUPS, Cosines, SummedProcess, group_index
from tadnn.latency.sums import Sums

if TYPE_CHECKING:
    pass

_STEPS: Final = 10
_MOST: Final = 4.0
_DEVICE: Final = 1.5
"""Prior log deviation of the device's constant; that of every part added is one."""
_KIND: Final = 0.5
"""That of a kind's constant."""


@dataclass(frozen=True)
class Sizes:
    """Prior log deviations of what groups and kinds have of their own, and of a timing's noise."""

    shared: float = 0.3
    own: float = 0.3
    noise: float = 0.06


_TRIED: Final = (
    ("own", (0.1, 0.2, 0.4)),
    ("shared", (0.1, 0.5)),
    ("noise", (0.03, 0.04, 0.08, 0.12)),
    ("own", (0.1, 0.2, 0.3, 0.5, 0.8)),
)


@dataclass(frozen=True)
class Fit:
    """Weights under a unit Gaussian prior, what they stand for, and how likely the timings are.

    ``weights`` are the constant, kinds' constants, groups' functions, kinds' functions, and the
    logarithms of base, gap, weights, large outputs and host over ``scales``, where those aren't 0.
    """

    sizes: Sizes
    scales: np.ndarray
    weights: np.ndarray
    evidence: float
    solved: np.ndarray

    def log_factors(self, sums: Sums) -> np.ndarray:
        """Return each kernel's log factor, [kernels]."""
        constant, offsets, shared, own = self._split(sums)
        groups = np.array([group_index(kind) for kind in sums.kinds])[sums.kind]
        weights = shared[groups] + own[sums.kind]
        factors = constant + offsets[sums.kind] + np.einsum("kd,kd->k", sums.waves, weights)
        clipped: np.ndarray = np.clip(factors, -_MOST, _MOST)
        return clipped

    def added(self) -> np.ndarray:
        """Return base, gap, weights, large and host in microseconds, [5]."""
        used = np.flatnonzero(self.scales)
        added = np.zeros(len(self.scales))
        added[used] = self.scales[used] * np.exp(self.weights[len(self.weights) - len(used) :])
        return added

    def latency_us(self, sums: Sums) -> np.ndarray:
        """Return the networks' microseconds, [n]."""
        base, gap, weights, large, host = self.added()
        device = sums.counts @ (sums.us * np.exp(self.log_factors(sums)))
        device = device + sums.terms @ np.array([gap, weights, large])
        total: np.ndarray = base + _with_host(device, host * sums.terms[:, 0])
        return total

    def process(self, sums: Sums, cosines: Cosines, device: str) -> SummedProcess:
        """Return it as an adjustment."""
        constant, offsets, shared, own = self._split(sums)
        parts = len(sums.kinds)
        # A kind's deviation: what is left of its prior, of its constant and of its functions.
        prior = np.sqrt(_KIND**2 + self.sizes.shared**2 + self.sizes.own**2)
        return SummedProcess(
            device,
            sums.kinds,
            constant,
            offsets,
            cosines,
            shared,
            own,
            self.solved[:parts],
            float(prior),
            {"shared": self.sizes.shared, "own": self.sizes.own, "noise": self.sizes.noise},
        )

    def _split(self, sums: Sums) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        kinds, width, sizes = len(sums.kinds), sums.waves.shape[1], self.sizes
        ends = np.cumsum([1, kinds, len(GROUPS) * width, kinds * width])
        first, offsets, shared, own = np.split(self.weights[: ends[-1]], ends[:-1])
        return (
            float(_DEVICE * first[0]),
            _KIND * offsets,
            sizes.shared * shared.reshape(len(GROUPS), width),
            sizes.own * own.reshape(kinds, width),
        )


def _with_host(device: np.ndarray, host: np.ndarray) -> np.ndarray:
    return overlapped(device, host) if host.any() else device


def _slopes(sums: Sums, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Return the networks' microseconds, [n], and slopes of their logarithms by weight, [n, w]."""
    base, gap, weights, large, host = fit.added()
    t = sums.us * np.exp(fit.log_factors(sums))
    device = sums.counts @ t + sums.terms @ np.array([gap, weights, large])
    waiting = host * sums.terms[:, 0]
    both = _with_host(device, waiting)
    total = base + both
    by_device, by_host = (device / both) ** 5 / total, (waiting / both) ** 5 / total
    each = sums.counts.multiply(t).tocsc()
    sizes, kinds = fit.sizes, len(sums.kinds)
    n, width = sums.counts.shape[0], sums.waves.shape[1]
    constants, own = np.empty((n, kinds)), np.empty((n, kinds, width))
    for i in range(kinds):
        at = np.flatnonzero(sums.kind == i)
        part = each[:, at]
        constants[:, i] = np.asarray(part.sum(axis=1)).ravel() * by_device
        own[:, i] = (part @ sums.waves[at]) * by_device[:, None]
    groups = np.array([group_index(kind) for kind in sums.kinds])
    shared = np.stack([own[:, groups == g].sum(axis=1) for g in range(len(GROUPS))], axis=1)
    launches, mb, large_mb = sums.terms.T
    added = np.stack(
        [
            base / total,
            gap * launches * by_device,
            weights * mb * by_device,
            large * large_mb * by_device,
            waiting * by_host,
        ],
        axis=1,
    )[:, np.flatnonzero(fit.scales)]
    slopes = [
        _DEVICE * constants.sum(axis=1, keepdims=True),
        _KIND * constants,
        sizes.shared * shared.reshape(n, -1),
        sizes.own * own.reshape(n, -1),
        added,
    ]
    return total, np.concatenate(slopes, axis=1)


def fit_sums(sums: Sums, scales: np.ndarray, sizes: Sizes, start: Fit | None = None) -> Fit:
    """Fit with given prior deviations.

    Args:
        sums: the networks.
        scales: microseconds of base, gap, weights, large and host that are expected; zero for
            what there isn't.
        sizes: prior deviations.
        start: a fit of the same networks to start from.
    """
    kinds, width = len(sums.kinds), sums.waves.shape[1]
    count = 1 + kinds + (len(GROUPS) + kinds) * width + np.count_nonzero(scales)
    fit = Fit(sizes, scales, np.zeros(count), -np.inf, np.empty(0))
    if start is None:
        ratio = float(np.median(np.log(sums.measured / fit.latency_us(sums))))
        fit.weights[0] = ratio / _DEVICE
    else:
        fit = replace(fit, weights=_rescaled(start, sizes, kinds, width))
    log_measured = np.log(sums.measured)
    for _ in range(_STEPS):
        total, slopes = _slopes(sums, fit)
        error = log_measured - np.log(total)
        # Beyond two deviations a timing pulls with its absolute error.
        variance = sizes.noise**2 * np.sqrt(1 + (error / sizes.noise / 2) ** 2)
        target = error + slopes @ fit.weights
        system = slopes @ slopes.T + np.diag(variance)
        solved = np.linalg.solve(system, target)
        moved = slopes.T @ solved - fit.weights
        # The sum is only linear nearby.
        furthest = float(np.abs(slopes @ moved).max())
        fit = replace(fit, weights=fit.weights + min(1.0, 0.5 / max(furthest, 1e-12)) * moved)
        if furthest < 1e-3:
            break
    _, logdet = np.linalg.slogdet(system)
    evidence = -0.5 * float(target @ solved + logdet)
    kinds_left = _left(slopes, system, kinds, sizes)
    return replace(fit, evidence=evidence, solved=kinds_left)


def _rescaled(start: Fit, sizes: Sizes, kinds: int, width: int) -> np.ndarray:
    """Return the weights that say the same under other prior deviations."""
    weights = start.weights.copy()
    ends = np.cumsum([1 + kinds, len(GROUPS) * width, kinds * width])
    weights[ends[0] : ends[1]] *= start.sizes.shared / sizes.shared
    weights[ends[1] : ends[2]] *= start.sizes.own / sizes.own
    return weights


def _left(slopes: np.ndarray, system: np.ndarray, kinds: int, sizes: Sizes) -> np.ndarray:
    """Return what deviation the timings leave to each kind of kernel, about, [kinds].

    That of its constant after the fit, and of its functions before: timings tell the constant
    first.
    """
    part = slopes[:, 1 : 1 + kinds]
    known = np.einsum("nk,nk->k", part, np.linalg.solve(system, part))
    constant = _KIND**2 * np.clip(1 - known, 0, 1)
    smooth = (sizes.shared**2 + sizes.own**2) * np.clip(1 - known, 0.1, 1)
    left: np.ndarray = np.sqrt(constant + smooth)
    return left


def best_fit(sums: Sums, scales: np.ndarray) -> Fit:
    """Fit with the prior deviations that make the timings most likely."""
    best = fit_sums(sums, scales, Sizes())
    for name, values in _TRIED:
        for value in values:
            if value != getattr(best.sizes, name):
                tried = fit_sums(sums, scales, replace(best.sizes, **{name: value}), best)
                if tried.evidence > best.evidence:
                    best = tried
    return best
