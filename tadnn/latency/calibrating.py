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
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tadnn.errors import TableError
from tadnn.files import stable_hash
from tadnn.kernels import Kernel
from tadnn.latency.adjustment import Adjustment
from tadnn.latency.checking import check_timings
from tadnn.latency.errors import calibrated_summary
from tadnn.latency.fitting import NetTiming
from tadnn.latency.kind_factors import KindFactors
from tadnn.latency.kind_fitting import MOST_KIND, PARTS, fit_kinds, kinds_left_out, read_kinds
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import NetCalibration, NetCost
from tadnn.latency.summed_process import Cosines
from tadnn.latency.summing import best_fit, fit_sums
from tadnn.latency.sums import read_sums
from tadnn.runtimes import find_runtime

FEWEST_TIMINGS: Final = 3
FEWEST_OF_PROCESS: Final = 40
"""From so many timings on, they tell relations within kinds of kernels that nobody measured."""
_GAP_US: Final = {"gpu": 6.0, "cpu": 2.0}
_BASE_US: Final = {"gpu": 30.0, "cpu": 20.0}
_MB_US: Final = {"gpu": 2.0, "cpu": 100.0}
_LEAST_SIGMA: Final = 0.01
_ONE_SIGMA, _TWO_SIGMA = 0.683, 0.954


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
    part = np.random.default_rng(seed).permutation(len(latency_ms)) % PARTS
    for i in range(PARTS):
        out = part == i
        without = fit_sums(sums.of(np.flatnonzero(~out)), scales, fit.sizes)
        left_out[out] = without.latency_us(sums.of(np.flatnonzero(out)))
    process = fit.process(sums, cosines, model.device.slug)
    us = sums.us * np.exp(fit.log_factors(sums)) * process.deviations[sums.kind]
    own = sums.counts.power(2) @ us**2 / left_out**2
    narrowed, sigma, held_out = _spread(left_out, own, latency_ms)
    base, gap, weights, large, host = (float(v) for v in fit.added())
    process = replace(
        process, deviations=process.deviations * narrowed, rest=max(process.rest, MOST_KIND)
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
    nets = read_kinds(model, terms, launched)
    fitted, noise = fit_kinds(nets, measured, scales)
    left_out = kinds_left_out(nets, measured, scales, noise, seed)
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
        (common - shift, MOST_KIND),
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
