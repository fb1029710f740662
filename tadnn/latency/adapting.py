"""Adapting a latency model to a device by a handful of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tadnn.errors import TableError
from tadnn.files import stable_hash
from tadnn.kernels import OPAQUE, KernelRow
from tadnn.latency.adaptation import Adaptation, features
from tadnn.latency.batch import KernelBatch
from tadnn.latency.checking import check_rows, merged_rows
from tadnn.latency.errors import calibrated_summary
from tadnn.latency.model import LatencyModel
from tadnn.latency.op_tuning import tunable, tune_op

FEWEST_TO_ADAPT: Final = 5
MOST_TO_ADAPT: Final = 2000


def adapt(
    name: str,
    model: LatencyModel,
    rows: Sequence[KernelRow],
    *,
    source: str = "",
    notes: str = "",
    seed: int = 0,
) -> LatencyModel:
    """Return a model of the device that ``model`` predicts, adapted by a few of its kernels.

    Args:
        name: the new model's name.
        model: the model to start from, on the device that was measured.
        rows: its measured kernels; 5 to 50 are a handful.
        source: where the rows are from, for the card.
        notes: for the card.
        seed: of the choice of rows, where they are more than are needed.

    Raises:
        TableError: rows are too few, of another dtype, contradict each other, or can't be.
    """
    device, setting = model.device, model.setting
    check_rows(device, rows, setting)
    measured = {k: us for k, us in merged_rows(rows).items() if k.op != OPAQUE}
    if len(measured) < FEWEST_TO_ADAPT:
        raise TableError(
            f"at least {FEWEST_TO_ADAPT} distinct kernels adapt a model; got {len(measured)}"
        )
    if len(measured) > MOST_TO_ADAPT:
        picked = np.random.default_rng(seed).permutation(len(measured))[:MOST_TO_ADAPT]
        known = list(measured)
        measured = {known[i]: measured[known[i]] for i in sorted(picked)}
    ops = sorted({kernel.op for kernel in measured})
    peers = [spec for spec in model.card.devices if spec.slug != device.slug]
    fitted = dict(model.ops)
    xs, ys, order = [], [], []
    for number, op in enumerate(ops):
        kernels = [kernel for kernel in measured if kernel.op == op]
        batch = KernelBatch.of(kernels, device, setting.threads, setting.math)
        us = np.array([measured[kernel] for kernel in kernels])
        said, predictor = model.predict_us(kernels), model.op(op)
        if tunable(predictor, batch):
            fitted[op], said = tune_op(predictor, batch, us, seed)
            predictor = fitted[op]
        columns = features(predictor, batch, said, peers)
        xs.append(np.column_stack([np.full(len(us), number), columns]))
        ys.append(np.log(us / said))
        order.append(us)
    adaptation = Adaptation.fit(
        device.slug, peers, ops, np.concatenate(xs), np.concatenate(ys), seed
    )
    adaptation = replace(adaptation, held_out=_judged(adaptation, np.concatenate(order)))
    data = {
        "source": source,
        "purpose": "",
        "rows": len(measured),
        "base": {"latency_model": model.name, "hash": model.hash, "data": dict(model.card.data)},
        "rows_hash": stable_hash([[k.key, float(f"{us:.6g}")] for k, us in measured.items()]),
    }
    text = notes or (
        f"Adapted from {model.name} by {len(measured)} kernels measured on {device.slug}. "
        f"Ops measured: {', '.join(ops)}. {model.card.notes}"
    )
    card = replace(
        model.card, name=name, devices=(device,), environment={}, data=data, notes=text.strip()
    )
    adjustments = (*model.adjustments, adaptation)
    return LatencyModel(card, fitted, model.nets, device, adjustments=adjustments)


def _judged(adaptation: Adaptation, measured: np.ndarray) -> dict[str, Any]:
    """Return errors overall and by op, rows left out one at a time."""
    mean, deviation = adaptation.left_out()
    predicted = measured * np.exp(mean - adaptation.y)
    op = adaptation.x[:, 0]
    std = predicted * deviation
    judged = {"overall": calibrated_summary(predicted, std, measured)}
    for number, name in enumerate(adaptation.ops):
        of = op == number
        judged[name] = calibrated_summary(predicted[of], std[of], measured[of])
    return judged
