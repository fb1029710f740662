"""Comparing a latency model with measurements it wasn't fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tadnn.kernels import KernelRow
from tadnn.latency.checking import contradictions
from tadnn.latency.errors import calibrated_summary
from tadnn.latency.fitting import NetTiming
from tadnn.latency.model import LatencyModel


def evaluate_kernels(model: LatencyModel, rows: Sequence[KernelRow]) -> dict[str, Any]:
    """Compare a model with a kernel table: what ``tadnn evaluate --json`` prints.

    ``contradictions`` are kernels whose rows are too far apart for noise, with their spread;
    every row counts as it stands.
    """
    kernels = [row.kernel for row in rows]
    measured = np.array([row.latency_us for row in rows])
    predicted = model.predict(kernels)
    ops = np.array([kernel.op for kernel in kernels])
    everything = np.ones(len(ops), dtype=bool)

    def judged(of: np.ndarray) -> dict[str, Any]:
        summary = calibrated_summary(predicted.latency_us[of], predicted.std_us[of], measured[of])
        return summary | {"out_of_range": int(np.sum(~predicted.in_range[of]))}

    overall = judged(everything)
    return {
        "overall": overall,
        "by_op": {str(op): judged(ops == op) for op in np.unique(ops)},
        "out_of_range": overall["out_of_range"],
        "contradictions": contradictions(rows),
    }


def evaluate_nets(model: LatencyModel, timings: Sequence[NetTiming]) -> dict[str, Any]:
    """Compare a model with measured networks: what ``tadnn evaluate --json`` prints."""
    predicted = [model.predict_net(timing.net, timing.batch) for timing in timings]
    measured = np.array([timing.latency_ms for timing in timings])
    latency = np.array([p.latency_ms for p in predicted])
    std = np.array([p.std_ms for p in predicted])
    outside = sum(not p.in_range for p in predicted)
    return {
        "overall": calibrated_summary(latency, std, measured) | {"out_of_range": outside},
        "by_op": {},
        "out_of_range": outside,
        "contradictions": [],
    }
