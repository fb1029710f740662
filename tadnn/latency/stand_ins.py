"""What prices a kernel that nobody measured: the physics of its likes.

An op without rows gets the physical core that the model's other ops have on average, matrix
products that of matrix products, everything else that of what only moves memory. Convolutions
and batched products without rows (of their kind) are priced as the linear of their implicit GEMM
where linear was measured. All of it is a factor of two either way, never in range, and counted
in ``NetPrediction.unprofiled_share``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tadnn.kernels import OPAQUE, OPS, Op
from tadnn.latency.core import Core
from tadnn.latency.op_model import OpModel


def with_stand_ins(ops: Mapping[str, OpModel]) -> dict[str, OpModel]:
    """Return a model for every op of the vocabulary: the fitted ones, stand-ins for the others."""
    linear = ops.get("linear")
    complete = {}
    for op in OPS:
        fitted = ops.get(op) or OpModel(_core_of_likes(op, ops))
        other = _is_product(op) and op != "linear"
        complete[op] = replace(fitted, stand_in=linear) if other else fitted
    # What was measured for one unknown operator says nothing about another.
    return complete | {OPAQUE: OpModel.unprofiled()}


def _is_product(op: str) -> bool:
    return type(OPS[op]).flops is not Op.flops


def _core_of_likes(op: str, ops: Mapping[str, OpModel]) -> Core:
    """Return the geometric mean of the cores of profiled ops of the same sort; else the default."""
    likes = [
        fitted.core.coefficients
        for name, fitted in sorted(ops.items())
        if fitted.rows and _is_product(name) == _is_product(op)
    ]
    if not likes:
        return Core()
    # A coefficient may be zero: the least that counts as one. No guess beats the device's peak.
    launch, compute, memory = np.exp(np.mean(np.log(np.maximum(likes, 1e-3)), axis=0))
    return Core(float(launch), max(float(compute), 1.0), float(memory))
