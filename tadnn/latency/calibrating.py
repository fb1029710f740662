"""Calibrating a latency model from timings of whole networks alone.

What is fitted, to log latencies and robustly, is one factor per kind of kernel, and how kernels
add up in the runtime (:mod:`tadnn.latency.nets`): the time of a run, the gap of a launch or the
host's share of it, weights and large outputs. Factors of kinds share what is common to the
device and to their group (products of matrices, memory alone); a Gaussian prior says how far each
may go by itself, which is as far as the model is unsure of its kernels. So three timings move the
device's scale and little else, thirty the factors of every kind that shows in them; within a
kind, kernels keep their relations to one another. Where nobody measured the device's kernels, forty
timings and more tell relations too: a factor that is smooth over kernels
(:mod:`tadnn.latency.summing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tadnn.errors import TableError
from tadnn.files import stable_hash
from tadnn.kernels import Kernel
from tadnn.latency.adjustment import Adjustment
from tadnn.latency.batch import KernelBatch
from tadnn.latency.checking import check_timings
from tadnn.latency.errors import calibrated_summary
from tadnn.latency.fitting import NetTiming
from tadnn.latency.kind_factors import KindFactors, group_of, kind_indices, kinds_of
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import NetCalibration, NetCost, overlapped
from tadnn.latency.summed_process import Cosines
from tadnn.latency.summing import best_fit, fit_sums, read_sums
from tadnn.runtimes import find_runtime

FEWEST_TIMINGS: Final = 3
FEWEST_OF_PROCESS: Final = 40
"""From so many timings on, they tell relations within kinds of kernels that nobody measured."""
_DEVICE: Final = 1.0
"""Prior log deviation of what is common to all kernels of a device."""
_GROUP: Final = 0.5
"""That of a group, and of a kind, relative to how unsure the model is of the kind's kernels."""
_LEAST_KIND, _MOST_KIND = 0.02, 0.5
_GAP_US: Final = {"gpu": 6.0, "cpu": 2.0}
_BASE_US: Final = {"gpu": 30.0, "cpu": 20.0}
_MB_US: Final = {"gpu": 2.0, "cpu": 100.0}
_NOISE: Final = 0.05
"""Log deviation of a timing at first; then that of the residuals."""
_LEAST_NOISE: Final = 0.02
_ROUNDS: Final = 3
_MOST_LEFT_OUT_ALONE: Final = 20
_PARTS: Final = 10
_LEAST_SIGMA: Final = 0.01
_ONE_SIGMA, _TWO_SIGMA = 0.683, 0.954


@dataclass(frozen=True)
class _Nets:
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

    def of(self, rows: np.ndarray) -> _Nets:
        return replace(self, us=self.us[rows], terms=self.terms[rows], variance=self.variance[rows])


@dataclass(frozen=True)
class _Fitted:
    """Log factors by kind, [kinds]; base, gap, weights, large, host, [5]; factors' covariance."""

    factors: np.ndarray
    added: np.ndarray
    covariance: np.ndarray

    def latency_us(self, nets: _Nets) -> np.ndarray:
        base, gap, weights, large, host = self.added
        device = nets.us @ np.exp(self.factors) + nets.terms @ np.array([gap, weights, large])
        if host:
            device = overlapped(device, host * nets.terms[:, 0])
        total: np.ndarray = base + device
        return total


def calibrate(
    name: str,
    model: LatencyModel,
    timings: Sequence[NetTiming],
    *,
    names: Sequence[str] = (),
    source: str = "",
    notes: str = "",
    seed: int = 0,
) -> LatencyModel:
    """Return a model of the device that ``model`` predicts, calibrated by whole networks.

    Args:
        name: the new model's name.
        model: the model to start from, on the device that was timed.
        timings: measured networks.
        names: of the networks, for messages.
        source: where the timings are from, for the card.
        notes: for the card.
        seed: of the parts that are left out in turn.

    Raises:
        TableError: timings are too few, or can't be.
    """
    if len(timings) < FEWEST_TIMINGS:
        raise TableError(
            f"at least {FEWEST_TIMINGS} timings of networks calibrate a model; got {len(timings)}"
        )
    launched = [model.launched(timing.net, timing.batch) for timing in timings]
    latency = np.array([timing.latency_ms for timing in timings])
    called = names or [f"network {i + 1}" for i in range(len(timings))]
    check_timings(model.device, launched, called, latency, model.setting.threads)
    costs: list[NetCost] = [model.cost(timing.net, timing.batch) for timing in timings]
    terms = np.array([[float(c.launches), c.weight_mb, c.large_mb] for c in costs])
    device = model.device
    profiled = any(device.slug in op.devices for op in model.ops.values()) or any(
        a.device == device.slug for a in model.adjustments
    )
    if len(timings) >= FEWEST_OF_PROCESS and not profiled:
        adjustment, nets = _by_process(model, launched, terms, latency, seed)
    else:
        adjustment, nets = _by_kinds(model, launched, terms, latency, profiled, seed)
    return _calibrated(name, model, adjustment, nets, timings, source, notes)


def _scales(model: LatencyModel) -> np.ndarray:
    """Return what base, gap, weights, large outputs and host are expected to take, [5]; or 0."""
    # Kernels alone have no gaps; a host that launches ahead is a GPU's.
    kind, gap = model.device.kind, find_runtime(model.setting.runtime).launch_gaps
    return np.array(
        [
            _BASE_US[kind] * gap,
            _GAP_US[kind] * gap * (0.2 if kind == "gpu" else 1.0),
            _MB_US[kind],
            _MB_US[kind] * (kind == "cpu"),
            _GAP_US[kind] * gap * (kind == "gpu"),
        ]
    )


def _spread(
    left_out: np.ndarray, own: np.ndarray, latency_ms: np.ndarray
) -> tuple[float, float, dict[str, Any]]:
    """Return how far kernels' own deviations count, what they don't explain, and errors.

    Args:
        left_out: microseconds said of networks by fits without them, [n].
        own: relative variance of each that kernels' own deviations make, [n].
        latency_ms: measured, [n].
    """
    error = np.abs(np.log(left_out / latency_ms / 1e3))
    total = float(np.mean(np.minimum(error**2, 9 * np.median(error**2) + _LEAST_SIGMA**2)))
    if len(error) >= FEWEST_OF_PROCESS:
        # Of some networks no calibration knows what they wait for, so errors have long tails: a
        # deviation between what holds one of three and what holds one of twenty.
        middle, tail = np.quantile(error, (_ONE_SIGMA, _TWO_SIGMA)) / (1, 2)
        total = max(_LEAST_SIGMA, (middle + tail) / 2) ** 2
    # Kernels' own deviations may explain half of what is left; networks showed how much that is.
    narrowed = min(1.0, float(np.sqrt(0.5 * total / max(float(np.mean(own)), 1e-12))))
    sigma = max(_LEAST_SIGMA, float(np.sqrt(max(0.0, total - narrowed**2 * float(np.mean(own))))))
    std = left_out * np.sqrt(sigma**2 + narrowed**2 * own)
    return narrowed, sigma, calibrated_summary(left_out / 1e3, std / 1e3, latency_ms)


def _by_process(
    model: LatencyModel,
    launched: Sequence[Counter[Kernel]],
    terms: np.ndarray,
    latency_ms: np.ndarray,
    seed: int,
) -> tuple[Adjustment, NetCalibration]:
    """Return a factor smooth over kernels, and how these add up."""
    cosines, scales = Cosines.drawn(seed), _scales(model)
    sums = read_sums(model, launched, terms, latency_ms * 1e3, cosines)
    fit = best_fit(sums, scales)
    left_out = np.empty(len(latency_ms))
    part = np.random.default_rng(seed).permutation(len(latency_ms)) % _PARTS
    for i in range(_PARTS):
        out = part == i
        without = fit_sums(sums.of(np.flatnonzero(~out)), scales, fit.sizes)
        left_out[out] = without.latency_us(sums.of(np.flatnonzero(out)))
    process = fit.process(sums, cosines, model.device.slug)
    us = sums.us * np.exp(fit.log_factors(sums)) * process.deviations[sums.kind]
    own = sums.counts.power(2) @ us**2 / left_out**2
    narrowed, sigma, held_out = _spread(left_out, own, latency_ms)
    base, gap, weights, large, host = (float(v) for v in fit.added())
    process = replace(
        process, deviations=process.deviations * narrowed, rest=max(process.rest, _MOST_KIND)
    )
    return process, NetCalibration(base, 1.0, gap, weights, large, host, sigma, held_out)


def _by_kinds(
    model: LatencyModel,
    launched: Sequence[Counter[Kernel]],
    terms: np.ndarray,
    latency_ms: np.ndarray,
    profiled: bool,
    seed: int,
) -> tuple[Adjustment, NetCalibration]:
    """Return a factor per kind of kernel, and how these add up."""
    measured, scales = latency_ms * 1e3, _scales(model)
    nets = _read(model, terms, launched)
    fitted, noise = _fit(nets, measured, scales)
    left_out = _left_out(nets, measured, scales, noise, seed)
    own = nets.variance / (nets.us.sum(axis=1) ** 2)
    narrowed, sigma, held_out = _spread(left_out, own, latency_ms)
    weight = nets.us.sum(axis=0)
    common = float(fitted.factors @ weight / weight.sum())
    # Measured kernels are what they are: what networks add to all of them is how they add up.
    shift = common if profiled else 0.0
    deviations = np.sqrt(np.maximum(np.diag(fitted.covariance), 0))
    factors = KindFactors(
        model.device.slug,
        dict(zip(nets.kinds, (fitted.factors - shift).tolist(), strict=True)),
        dict(zip(nets.kinds, deviations.tolist(), strict=True)),
        (common - shift, _MOST_KIND),
        narrowed,
    )
    base, gap, weights, large, host = (float(v) for v in fitted.added)
    scale = float(np.exp(shift))
    return factors, NetCalibration(base, scale, gap, weights, large, host, sigma, held_out)


def _calibrated(
    name: str,
    model: LatencyModel,
    adjustment: Adjustment,
    nets: NetCalibration,
    timings: Sequence[NetTiming],
    source: str,
    notes: str,
) -> LatencyModel:
    device = model.device
    keys = sorted({timing.net.key for timing in timings})
    data = {
        "source": source,
        "purpose": "",
        "rows": model.card.data.get("rows", 0),
        "timings": len(timings),
        "timings_hash": stable_hash(
            [[t.net.key, t.batch, float(f"{t.latency_ms:.6g}")] for t in timings]
        ),
        "base": {"latency_model": model.name, "hash": model.hash, "data": dict(model.card.data)},
        # Architectures that a fit has seen measured mustn't be what it is judged by later.
        "calibration_nets": keys,
    }
    text = notes or (
        f"Calibrated from {model.name} by {len(timings)} timings of networks on {device.slug}. "
        f"{model.card.notes}"
    )
    card = replace(model.card, name=name, devices=(device,), data=data, notes=text.strip())
    return LatencyModel(card, model.ops, nets, device, adjustments=(*model.adjustments, adjustment))


def _read(model: LatencyModel, terms: np.ndarray, launched: Sequence[Counter[Kernel]]) -> _Nets:
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
    return _Nets(kinds, us, terms, variance, unsure / us.sum(axis=0))


def _prior(nets: _Nets) -> np.ndarray:
    """Return a square root of the log factors' prior covariance, [kinds, kinds]."""
    groups = np.array([group_of(kind) for kind in nets.kinds])
    own = np.clip(_GROUP * nets.unsure, _LEAST_KIND, _MOST_KIND)
    covariance = _DEVICE**2 + np.outer(own, own) * (groups[:, None] == groups) + np.diag(own**2)
    root: np.ndarray = np.linalg.cholesky(covariance)
    return root


def _fit(
    nets: _Nets, measured: np.ndarray, scales: np.ndarray, noise: float | None = None
) -> tuple[_Fitted, float]:
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

    def unpacked(point: np.ndarray) -> _Fitted:
        added = np.zeros(len(scales))
        added[used] = point[kinds:] * scales[used]
        return _Fitted(root @ point[:kinds], added, np.empty((0, 0)))

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


def _left_out(
    nets: _Nets, measured: np.ndarray, scales: np.ndarray, noise: float, seed: int
) -> np.ndarray:
    """Return what is said of each network by a fit without it (and without its part), [n]."""
    count = len(measured)
    parts = count if count <= _MOST_LEFT_OUT_ALONE else _PARTS
    part = np.random.default_rng(seed).permutation(count) % parts
    said = np.empty(count)
    for i in range(parts):
        out = part == i
        fitted, _ = _fit(nets.of(~out), measured[~out], scales, noise)
        said[out] = fitted.latency_us(nets.of(out))
    return said
