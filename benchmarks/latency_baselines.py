"""What the latency model is measured against: baselines that see the same rows.

Each takes training batches (kernels of one op, one device each) with their microseconds, and
returns a function from a batch to microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tadnn.kernels import OPS
from tadnn.latency.batch import KernelBatch

Train = Sequence[tuple[KernelBatch, np.ndarray]]
Predict = Callable[[KernelBatch], np.ndarray]


def flops_linear(train: Train, seed: int) -> Predict:
    """A line through FLOPs (through bytes for ops without any), least relative errors."""
    from scipy.optimize import nnls

    design = np.concatenate([_work(batch) for batch, _ in train])
    us = np.concatenate([us for _, us in train])
    line, _ = nnls(design / us[:, None], np.ones(len(us)))
    return lambda batch: np.maximum(_work(batch) @ line, 1e-3)


def roofline(train: Train, seed: int) -> Predict:
    """The later of arithmetic and memory at nominal peaks, times the factor of least errors."""
    ratio = np.concatenate([us / _roof(batch) for batch, us in train])
    # The weighted median of ratios is where the mean absolute percentage error is least.
    order = np.argsort(ratio)
    weight = np.cumsum(1 / ratio[order])
    factor = ratio[order][np.searchsorted(weight, weight[-1] / 2)]
    return lambda batch: _roof(batch) * factor


def random_forest(train: Train, seed: int) -> Predict:
    """nn-Meter's predictor: a forest on the configuration, FLOPs and parameters."""
    from sklearn.ensemble import RandomForestRegressor

    x = np.concatenate([_configuration(batch) for batch, _ in train])
    forest = RandomForestRegressor(100, random_state=seed, n_jobs=1)
    # Of the logarithm: errors of percents are what is asked of it.
    forest.fit(x, np.log(np.concatenate([us for _, us in train])))
    return lambda batch: np.exp(forest.predict(_configuration(batch)))


def boosted_trees(train: Train, seed: int) -> Predict:
    """LightGBM, 500 trees of 63 leaves, on the same facts: no physical core, no waves."""
    import lightgbm

    x = np.concatenate([_configuration(batch) for batch, _ in train])
    y = np.log(np.concatenate([us for _, us in train]))
    settings = {"num_leaves": 63, "learning_rate": 0.05, "feature_fraction": 0.8, "seed": seed}
    quiet = {"verbosity": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True}
    booster = lightgbm.train({**settings, **quiet}, lightgbm.Dataset(x, y), num_boost_round=500)
    return lambda batch: np.exp(booster.predict(_configuration(batch), num_threads=1))


BASELINES: dict[str, Callable[[Train, int], Predict]] = {
    "FLOPs-linear": flops_linear,
    "roofline": roofline,
    "random forest": random_forest,
    "boosted trees": boosted_trees,
}


def _work(batch: KernelBatch) -> np.ndarray:
    work = batch.flops if np.any(batch.flops) else batch.bytes_moved
    return np.stack([np.ones(len(batch)), work / _peak(batch)], axis=1)


def _roof(batch: KernelBatch) -> np.ndarray:
    device = batch.device
    compute = batch.flops / (batch.peak_tflops * 1e6)
    return np.maximum(compute, batch.bytes_moved / (device.bandwidth_gbps * 1e3))


def _peak(batch: KernelBatch) -> float:
    """Return FLOPs (bytes, for ops without FLOPs) per microsecond."""
    device = batch.device
    if np.any(batch.flops):
        return batch.peak_tflops * 1e6
    return device.bandwidth_gbps * 1e3


def _configuration(batch: KernelBatch) -> np.ndarray:
    """Return sizes, FLOPs, parameters (or bytes), and the device's facts; [n, d]."""
    device = batch.device
    columns = [batch.dims[name] for name in OPS[batch.op].sizes]
    matrix = OPS[batch.op].matrix(batch.dims)
    columns.append(batch.flops)
    columns.append(matrix[0] * matrix[2] * matrix[3] if matrix else batch.bytes_moved)
    facts = (device.units, device.clock_mhz, batch.peak_tflops, device.bandwidth_gbps)
    columns += [np.full(len(batch), float(fact)) for fact in (*facts, device.l2_mb)]
    return np.stack([np.asarray(c, dtype=float) for c in columns], axis=1)
