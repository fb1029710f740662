"""Measuring what a learned model is about to be relied on for, and fitting it again.

Whoever chooses the best of many predictions chooses where the model is too hopeful. So what was
chosen is measured, and the model that knows it is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tadnn.latency.fitting import NetTiming, calibrate_nets, fit_kernels
from tadnn.latency.measuring import Work, rows_of
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import FEWEST_NETS
from tadnn.latency.storage import save_latency_model
from tadnn.nets import Net
from tadnn.profiling import Clock, Measurement, ProfileDatabase
from tadnn.progress import SILENT, Progress


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
    work = Work(clock, database, nets, batch, known, progress)
    _measure_kernels(work)
    timings = _timings(work, model)
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


def _measure_kernels(work: Work) -> None:
    missing = [kernel for kernel in work.pool() if kernel not in work.known]
    with work.progress.task("profiling kernels", len(missing)) as advance:
        if not work.runtime.observed:
            work.measure_kernels(missing, advance)
            return
        with work.clock.session():
            for net in work.nets:
                if not work.known.keys() >= work.launched(net):
                    work.observe_kernels(net)
        advance(len(missing))


def _timings(work: Work, model: LatencyModel) -> list[NetTiming]:
    """Measure the networks; return them with those that the model was calibrated by."""
    stored = work.measured_nets()
    new = {net.key: net for net in work.nets}
    missing = [net for key, net in new.items() if key not in stored]
    with work.progress.task("measuring networks", len(missing)) as advance:

        def keep(net: Net, measurement: Measurement) -> None:
            stored[net.key] = net.to_json(), measurement
            advance(1)

        work.measure_nets(missing, keep)
    keys = dict.fromkeys([*model.card.data.get("calibration_nets", ()), *new])
    return [
        NetTiming(new.get(key) or Net.from_json(stored[key][0]), work.batch, us / 1e3)
        for key in keys
        if key in stored
        for us in [stored[key][1].latency_us]
    ]
