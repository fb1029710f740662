"""Fitting the predictor of one op, and judging it on shapes left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel
from tadnn.latency.batch import KernelBatch
from tadnn.latency.core import Core, fit_core, held_out_core
from tadnn.latency.errors import error_summary
from tadnn.latency.features import feature_matrix
from tadnn.latency.learner import Learner
from tadnn.latency.learners import fit_learner
from tadnn.latency.likeness import Likeness, fit_likeness
from tadnn.latency.network_fitting import FEWEST_ROWS_OF_NETWORK, PARTS, fit_network
from tadnn.latency.op_model import EXACT_SIZES, FLOOR, OUTSIDE, UNPROFILED, OpModel, ranged
from tadnn.latency.process import GaussianProcess

FEWEST_ROWS_TO_LEARN: Final = 12
"""Below this an op has its physical core alone."""
_FEWEST_ROWS_TO_JUDGE: Final = 4
"""Below this the core's three coefficients fit anything."""
_FOLDS: Final = 5
_QUICK_ROWS: Final = 1000
_CORE_FLOOR: Final = 0.1
"""No log deviation of a core alone is smaller: it knows no stairs."""

Rows = Sequence[tuple[DeviceSpec, Sequence[Kernel], np.ndarray]]
"""Per device: the kernels of one op and their microseconds, [n]."""


def fit_op(
    rows: Rows, threads: int, seed: int, *, quick: bool = False, math: str = "ieee"
) -> OpModel:
    """Fit one op.

    Shapes are split into five parts; each is predicted by a fit on the other four,
    and these errors are what the model reports and calibrates itself by. Where rows
    are too few to learn from, each row is predicted by a core fitted without it. A
    quick fit leaves that out, and the trees.
    """
    batches = [(KernelBatch.of(kernels, device, threads, math), us) for device, kernels, us in rows]
    latency = np.concatenate([us for _, us in batches])
    box = _box([batch for batch, _ in batches])
    devices = tuple(device.slug for device, _, _ in rows)
    core = fit_core(batches)
    known = OpModel(core, len(latency), box=box, devices=devices)
    # One shape measured on several devices is one shape: it must not stand on both sides.
    shapes = [k.key for _, kernels, _ in rows for k in kernels]
    if len(latency) < FEWEST_ROWS_TO_LEARN or len(set(shapes)) < _FOLDS:
        return _core_alone(known, batches, latency)
    several = len(batches) > 1
    log_ratio = _log_ratio(core, batches)
    if batches[0][0].device.kind == "gpu" and len(latency) >= FEWEST_ROWS_OF_NETWORK and not quick:
        return _network(known, batches, log_ratio, shapes, seed)
    x = np.concatenate([feature_matrix(batch, several)[1] for batch, _ in batches])
    if quick:
        pick = np.random.default_rng(seed).permutation(len(x))[:_QUICK_ROWS]
        return replace(known, learner=GaussianProcess.fit(x[pick], log_ratio[pick], seed))
    learner = fit_learner(x, log_ratio, seed)
    fold = _folds(shapes, seed)
    mean, deviation = _held_out(learner, x, log_ratio, fold, seed)
    z = np.abs(mean - log_ratio) / np.maximum(deviation, FLOOR)
    stretch = float(np.clip(np.quantile(z, 0.68), 0.3, 5.0))
    return replace(
        known,
        learner=learner,
        stretch=stretch,
        abroad=_abroad(learner, x, batches, seed) if several else UNPROFILED,
        held_out=_judged(latency * np.exp(mean - log_ratio), latency, z / stretch),
        likeness=_likeness(batches, np.sign(mean - log_ratio) * z / stretch, fold),
    )


def _network(
    known: OpModel,
    batches: list[tuple[KernelBatch, np.ndarray]],
    log_ratio: np.ndarray,
    shapes: list[str],
    seed: int,
) -> OpModel:
    fold = _folds(shapes, seed, PARTS)
    fitted = fit_network([batch for batch, _ in batches], known.core, log_ratio, fold, seed)
    error = fitted.mean - log_ratio
    judged = ~np.isnan(error)
    z = np.abs(error[judged]) / np.maximum(fitted.deviation[judged], FLOOR)
    # Few rows are learned by heart: what members expect of them is far too little then.
    stretch = float(np.clip(np.quantile(z, 0.68), 0.3, 20.0))
    latency = np.concatenate([us for _, us in batches])[judged]
    abroad = UNPROFILED
    if fitted.abroad is not None:
        # Sixty-eight in a hundred inside one deviation, ninety-five inside two.
        one, two = np.quantile(np.abs(fitted.abroad), [0.68, 0.95])
        abroad = max(OUTSIDE, float(one), float(two) / 2) * _of_few(min(len(batches), 5))
    return replace(
        known,
        # Not as the model's own stretch: how far members disagree is as it is.
        learner=fitted.learner.stretched(stretch),
        abroad=abroad,
        held_out=_judged(latency * np.exp(error[judged]), latency, z / stretch),
        likeness=_likeness(batches, np.sign(error[judged]) * z / stretch, fold, judged),
    )


def _of_few(devices: int) -> float:
    """Return what widens a deviation that so many devices told: Student's t for one more."""
    from scipy.stats import t

    return float(t.ppf(0.84, devices - 1) / t.ppf(0.84, 1e9) * math.sqrt(1 + 1 / devices))


def _likeness(
    batches: list[tuple[KernelBatch, np.ndarray]],
    z: np.ndarray,
    fold: np.ndarray,
    judged: np.ndarray | slice = slice(None),
) -> Likeness:
    sizes = np.concatenate([np.stack([*batch.dims.values()], axis=1) for batch, _ in batches])
    device = np.concatenate([np.full(len(us), i) for i, (_, us) in enumerate(batches)])
    together = fold * len(batches) + device
    return fit_likeness(sizes[judged], z, together[judged])


def _core_alone(
    known: OpModel, batches: list[tuple[KernelBatch, np.ndarray]], latency: np.ndarray
) -> OpModel:
    if len(latency) < _FEWEST_ROWS_TO_JUDGE:
        return replace(known, sigma=OUTSIDE)
    held_out = held_out_core(batches)
    error = np.abs(np.log(held_out / latency))
    sigma = max(float(np.sqrt(np.mean(error**2))), _CORE_FLOOR)
    return replace(known, sigma=sigma, held_out=_judged(held_out, latency, error / sigma))


def _judged(predicted: np.ndarray, measured: np.ndarray, z: np.ndarray) -> dict[str, Any]:
    """Return the errors, and how many lie within one and two deviations."""
    return error_summary(predicted, measured) | {
        "one_sigma": round(100 * float(np.mean(z <= 1)), 2),
        "two_sigma": round(100 * float(np.mean(z <= 2)), 2),
    }


def _folds(shapes: list[str], seed: int, count: int = _FOLDS) -> np.ndarray:
    distinct = sorted(set(shapes))
    order = np.random.default_rng(seed).permutation(len(distinct))
    fold = {shape: int(order[i]) % count for i, shape in enumerate(distinct)}
    return np.array([fold[shape] for shape in shapes])


def _held_out(
    learner: Learner, x: np.ndarray, y: np.ndarray, fold: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation = np.empty(len(y)), np.empty(len(y))
    for part in np.unique(fold):
        out = fold == part
        mean[out], deviation[out] = fit_learner(x[~out], y[~out], seed, learner).predict(x[out])
    return mean, deviation


def _abroad(
    learner: Learner,
    x: np.ndarray,
    batches: list[tuple[KernelBatch, np.ndarray]],
    seed: int,
) -> float:
    """Return the root mean square log error on devices left out of the fit in turn.

    An unseen device is never better known than a kernel outside the profiled range.
    """
    device = np.concatenate([np.full(len(batch), i) for i, (batch, _) in enumerate(batches)])
    errors = []
    for i, (batch, latency) in enumerate(batches):
        rest = batches[:i] + batches[i + 1 :]
        core = fit_core(rest)
        fitted = fit_learner(x[device != i], _log_ratio(core, rest), seed, learner)
        errors.append(fitted.mean(x[device == i]) - _log_ratio(core, [(batch, latency)]))
    return max(OUTSIDE, float(np.sqrt(np.mean(np.concatenate(errors) ** 2))))


def _log_ratio(core: Core, batches: list[tuple[KernelBatch, np.ndarray]]) -> np.ndarray:
    """Return log(latency / core), [n]: what is learned."""
    return np.concatenate([np.log(us / core.latency_us(batch)) for batch, us in batches])


def _box(batches: list[KernelBatch]) -> dict[str, list[int]]:
    box: dict[str, list[int]] = {}
    merged = [ranged(batch) for batch in batches]
    for name in merged[0]:
        values = np.concatenate([ranged[name] for ranged in merged])
        if name in EXACT_SIZES:
            box[name] = sorted({int(v) for v in values})
        else:
            box[name] = [math.floor(values.min()), math.ceil(values.max())]
    return box
