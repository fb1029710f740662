"""One more device for the predictor of an op, by a few of its kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tadnn.latency.batch import KernelBatch
from tadnn.latency.network_fitting import network_features
from tadnn.latency.op_model import OpModel
from tadnn.latency.tile_network import TileNetwork
from tadnn.latency.tile_tuning import FEWEST_ROWS_TO_TUNE, tune


def tunable(op: OpModel, batch: KernelBatch) -> bool:
    """Tell whether these kernels tell the traits of their device: a stranger, and enough rows."""
    known = batch.device.slug in op.devices
    several = isinstance(op.learner, TileNetwork) and op.learner.tunable
    return several and not known and len(batch) >= FEWEST_ROWS_TO_TUNE


def tune_op(
    op: OpModel, batch: KernelBatch, measured_us: np.ndarray, seed: int
) -> tuple[OpModel, np.ndarray]:
    """Return the op knowing the kernels' device, and what it says of each kernel unseen.

    Args:
        op: what predicts the op; a :func:`tunable` one.
        batch: kernels of the device.
        measured_us: theirs, [n].
        seed: of the choice of rows.

    Returns:
        The op, and microseconds by fits that didn't see the kernel, [n].
    """
    assert isinstance(op.learner, TileNetwork)
    core = op.core.latency_us(batch)
    _, x = network_features(batch, op.core, op.devices)
    learner, unseen = tune(op.learner, x, np.log(measured_us / core), seed)
    known = replace(op, learner=learner, devices=(*op.devices, batch.device.slug), stand_in=None)
    return known, core * np.exp(unseen)
