"""Measuring what a learned model is about to be relied on for, and fitting it again.

Whoever chooses the best of many predictions chooses where the model is too hopeful. So what was
chosen is measured, and the model that knows it is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tadnn.kernels import Kernel
from tadnn.latency.fitting import NetTiming, calibrate_nets, fit_kernels
from tadnn.latency.measuring import measure_and_store, observe_and_store, rows_of
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import FEWEST_NETS
from tadnn.latency.storage import save_latency_model
from tadnn.nets import Net
from tadnn.profiling import (
    Clock,
    Measurement,
    NetRun,
    ProfileDatabase,
    Subject,
    kernel_pool,
    measure,
)
from tadnn.progress import SILENT, Progress
from tadnn.runtimes import find_runtime, lower_net


def extend(
    model: LatencyModel,
    nets: Sequence[Net],
    batch: int,
    clock: Clock,
    database: ProfileDatabase,
    folder: Path,
    *,
    seed: int = 0,
    progress: Progress = SILENT,
) -> LatencyModel:
    """Measure some networks and all of their kernels, and fit a learned model again.

    Args:
        model: what :func:`learn` gave; its calibration's networks stay in the calibration.
        nets: the networks.
        batch: the batch size.
        clock: device and setting, those of the model.
        database: where measurements are kept; what stands there isn't measured again.
        folder: where the model is written.
        seed: of the fit.
        progress: told about measuring and fitting.

    Raises:
        Unwritable: model or database cannot be written.
    """
    known = database.kernels(clock.device.slug, clock.setting)
    _measure_kernels(clock, database, nets, batch, known, progress)
    timings = _timings(clock, database, nets, batch, model, progress)
    with progress.task("fitting the latency model", None):
        fitted = fit_kernels(
            model.card.name,
            [(clock.device, rows_of(known))],
            clock.setting,
            environment=clock.environment(),
            source=str(model.card.data.get("source", "")),
            purpose=str(model.card.data.get("purpose", "")),
            seed=seed,
        )
        if len(timings) >= FEWEST_NETS:
            fitted = calibrate_nets(fitted, timings)
        return save_latency_model(fitted, folder, rows_of(known))


def _measure_kernels(
    clock: Clock,
    database: ProfileDatabase,
    nets: Sequence[Net],
    batch: int,
    known: dict[Kernel, Measurement],
    progress: Progress,
) -> None:
    runtime, dtype = find_runtime(clock.setting.runtime), clock.setting.dtype
    missing = [k for k in kernel_pool(nets, batch, dtype, runtime) if k not in known]
    with progress.task("profiling kernels", len(missing)) as advance:
        if not runtime.observed:
            measure_and_store(clock, database, missing, known, advance)
            return
        with clock.session():
            for net in nets:
                if not known.keys() >= set(lower_net(net, batch, dtype, runtime)):
                    observe_and_store(clock, database, NetRun(net, batch), known)
        advance(len(missing))


def _timings(
    clock: Clock,
    database: ProfileDatabase,
    nets: Sequence[Net],
    batch: int,
    model: LatencyModel,
    progress: Progress,
) -> list[NetTiming]:
    """Measure the networks; return them with those that the model was calibrated by."""
    stored = {
        key: (record, measurement)
        for key, at_batch, record, measurement in database.nets(clock.device.slug, clock.setting)
        if at_batch == batch
    }
    new = {net.key: net for net in nets}
    environment = clock.environment()

    def keep(subject: Subject, measurement: Measurement) -> None:
        assert isinstance(subject, NetRun)
        net = subject.net
        record = net.to_json()
        database.add_net(
            clock.device.slug, clock.setting, environment, net.key, batch, record, measurement
        )
        stored[net.key] = record, measurement

    runs = [NetRun(net, batch) for key, net in new.items() if key not in stored]
    measure(clock, runs, progress=progress, on_result=keep)
    keys = dict.fromkeys([*model.card.data.get("calibration_nets", ()), *new])
    return [
        NetTiming(new.get(key) or Net.from_json(stored[key][0]), batch, us / 1e3)
        for key in keys
        if key in stored
        for us in [stored[key][1].latency_us]
    ]
