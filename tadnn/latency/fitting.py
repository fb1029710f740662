"""Fitting a latency model to measured kernels and networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tadnn.errors import RequestError, TableError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import OPAQUE, KernelRow
from tadnn.latency.card import Card
from tadnn.latency.checking import check_rows, merged_rows
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import FEWEST_NETS, NetCalibration, fit_nets
from tadnn.latency.op_fitting import fit_op
from tadnn.latency.op_model import OpModel
from tadnn.nets import Net
from tadnn.runtimes import Setting, find_runtime

FEWEST_KERNELS: Final = 10


@dataclass(frozen=True)
class NetTiming:
    """A measured network; milliseconds per batch."""

    net: Net
    batch: int
    latency_ms: float


def fit_kernels(
    name: str,
    tables: Sequence[tuple[DeviceSpec, Sequence[KernelRow]]],
    setting: Setting,
    *,
    environment: Mapping[str, str] | None = None,
    source: str = "",
    notes: str = "",
    purpose: str = "",
    seed: int = 0,
    quick: bool = False,
) -> LatencyModel:
    """Fit a model to kernel tables, one per device.

    Args:
        name: the model's name.
        tables: device and rows.
        setting: what all rows were measured in.
        environment: of the measurements.
        source: where the rows are from, for the card.
        notes: for the card.
        purpose: for the card: what the caller recognises the model by.
        seed: of folds and learners.
        quick: a rough fit without held-out errors, to plan measurements by.

    Raises:
        TableError: rows are too few, of another dtype than the setting's, contradict each
            other, or are faster than the device can be.
        RequestError: there is no table, a device stands twice, or GPUs beside CPUs.
    """
    slugs = [device.slug for device, _ in tables]
    if not slugs or len(set(slugs)) != len(slugs):
        raise RequestError(f"each device has one table; got {', '.join(slugs) or 'none'}")
    if len({device.kind for device, _ in tables}) > 1:
        raise RequestError(
            f"the devices of a model are all GPUs or all CPUs; got {', '.join(slugs)}"
        )
    for device, rows_of_device in tables:
        check_rows(device, rows_of_device, setting)
    merged = [(device, merged_rows(rows)) for device, rows in tables]
    for device, rows_of in merged:
        if len(rows_of) < FEWEST_KERNELS:
            raise TableError(
                f"a table has at least {FEWEST_KERNELS} distinct kernels to fit; "
                f"got {len(rows_of)} for {device.slug}"
            )
    ops: dict[str, OpModel] = {}
    # Opaque kernels are alike in nothing but their size; see LatencyModel.
    for op in sorted({k.op for _, rows_of in merged for k in rows_of} - {OPAQUE}):
        rows = []
        for device, rows_of in merged:
            kernels = [kernel for kernel in rows_of if kernel.op == op]
            if kernels:
                rows.append((device, kernels, np.array([rows_of[k] for k in kernels])))
        ops[op] = fit_op(rows, setting.threads, seed, quick=quick, math=setting.math)
    card = Card(
        name,
        tuple(device for device, _ in tables),
        setting,
        dict(environment or {}),
        {
            "source": source,
            "purpose": purpose,
            "rows": sum(len(rows_of) for _, rows_of in merged),
        },
        notes,
    )
    return LatencyModel(card, ops, NetCalibration(), tables[0][0])


def calibrate_nets(model: LatencyModel, timings: Sequence[NetTiming]) -> LatencyModel:
    """Return the model with gaps and scale fitted to whole networks.

    Raises:
        TableError: networks are too few.
    """
    if len(timings) < FEWEST_NETS:
        raise TableError(f"at least {FEWEST_NETS} networks tell the gaps; got {len(timings)}")
    costs = [model.cost(timing.net, timing.batch) for timing in timings]
    observed = find_runtime(model.setting.runtime).observed
    nets = fit_nets(costs, np.array([t.latency_ms * 1e3 for t in timings]), observed)
    # Architectures that a fit has seen measured mustn't be what it is judged by later.
    keys = sorted({timing.net.key for timing in timings})
    card = replace(model.card, data={**model.card.data, "calibration_nets": keys})
    return LatencyModel(card, model.ops, nets, model.device)
