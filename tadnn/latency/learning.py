"""Learning a device: plan, measure, fit, and again where the fit is unsure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tadnn.errors import RequestError
from tadnn.latency.fitting import NetTiming, calibrate_nets, fit_kernels
from tadnn.latency.measuring import (
    TIME_OF_KERNELS,
    Budget,
    Work,
    measure_planned,
    observe_planned,
    rows_of,
)
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import FEWEST_NETS
from tadnn.latency.storage import save_latency_model
from tadnn.nets import Net
from tadnn.profiling import Clock, Measurement, ProfileDatabase
from tadnn.progress import SILENT, Progress

_SUSPICIOUS: Final = 15.0  # percent; an undisturbed machine stays well below
# A network is run at least so often to be measured, and so many are to be measured in any time.
_RUNS_OF_A_NET: Final = 5
_MEASURED_ANYHOW: Final = 8
_LEAST_CHOICE: Final = 32


def learn(
    name: str,
    nets: Sequence[Net],
    batch: int,
    clock: Clock,
    database: ProfileDatabase,
    folder: Path,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    purpose: str = "",
    fresh: bool = False,
    progress: Progress = SILENT,
) -> LatencyModel:
    """Learn how long the kernels of some networks take on a clock's device.

    Every measurement is stored as soon as it is made; called again, it measures
    only what is missing.

    Args:
        name: the model's name.
        nets: a sample of the networks to be predicted; some of them are measured whole.
        batch: the batch size.
        clock: device and setting.
        database: where measurements are kept.
        folder: where the model is written.
        budget: how much to measure.
        seed: of plans and fits.
        purpose: kept on the card, so that the caller recognises the model.
        fresh: measure everything again, whatever is stored: the machine was busy then.
        progress: told about measuring and fitting, and when the machine seems to be busy.

    Raises:
        Unwritable: model or database cannot be written.
        RequestError: there are no networks.
        TableError: the networks launch too few kernels to fit.
    """
    if not nets:
        raise RequestError("learning a device takes at least one network; got none")
    budget = budget or Budget()
    start = time.monotonic()
    known = {} if fresh else database.kernels(clock.device.slug, clock.setting)
    work = Work(clock, database, nets, batch, known, progress)
    get_kernels = observe_planned if work.runtime.observed else measure_planned
    get_kernels(work, budget, start, seed)
    timings = _measure_nets(work, budget, start, fresh=fresh)
    with progress.task("fitting the latency model", None):
        model = fit_kernels(
            name,
            [(clock.device, rows_of(known))],
            clock.setting,
            environment=clock.environment(),
            source="measured by tadnn",
            purpose=purpose,
            seed=seed,
        )
        if len(timings) >= FEWEST_NETS:
            model = calibrate_nets(model, timings)
        model = save_latency_model(model, folder, rows_of(known))
    error = model.nets.held_out.get("mape", 0.0)
    if error > _SUSPICIOUS:
        progress.note(
            f"networks left out of the fit are predicted with an error of {error:.0f} %; was the "
            f"machine busy while it was profiled? --fresh measures again"
        )
    return model


def _measure_nets(work: Work, budget: Budget, start: float, *, fresh: bool) -> list[NetTiming]:
    """Measure whole networks, from the smallest to the largest; known ones aren't repeated."""
    chosen = {net.key: net for net in _spread_by_work(_affordable(work, budget), budget.nets)}
    stored = {} if fresh else {key: took for key, (_, took) in work.measured_nets().items()}
    missing = [net for key, net in chosen.items() if key not in stored]
    with work.progress.task("measuring networks", len(chosen)) as advance:
        advance(len(chosen) - len(missing))

        def keep(net: Net, measurement: Measurement) -> None:
            stored[net.key] = measurement
            advance(1)

        # Interleaved all together, or a few at a time where time may run out.
        at_a_time = len(missing) if budget.minutes is None else FEWEST_NETS
        for first in range(0, len(missing), max(1, at_a_time)):
            few = sum(key in stored for key in chosen) < FEWEST_NETS
            if few or time.monotonic() < budget.ends(start, 1.0):
                work.measure_nets(missing[first : first + at_a_time], keep)
    return [
        NetTiming(net, work.batch, stored[key].latency_us / 1e3)
        for key, net in chosen.items()
        if key in stored
    ]


def _affordable(work: Work, budget: Budget) -> list[Net]:
    """Return the networks of which several can be measured in the time given.

    Their time is estimated from FLOPs, at the rate that the known kernels ran at together.
    """
    ordered = sorted(work.nets, key=lambda net: (net.flops(), net.key))
    flops = sum(kernel.flops for kernel in work.known)
    if budget.minutes is None or not flops:
        return ordered
    rate = sum(m.latency_us for m in work.known.values()) / 1e6 / flops
    limit_s = (1 - TIME_OF_KERNELS) * 60 * budget.minutes / _MEASURED_ANYHOW
    able = [n for n in ordered if _RUNS_OF_A_NET * n.flops(work.batch) * rate <= limit_s]
    return able if len({net.key for net in able}) >= _MEASURED_ANYHOW else ordered[:_LEAST_CHOICE]


def _spread_by_work(nets: Sequence[Net], count: int) -> list[Net]:
    """Return distinct networks spread over FLOPs, any first few of them spread as well."""
    distinct = {net.key: net for net in nets}
    ordered = sorted(distinct.values(), key=lambda net: (net.flops(), net.key))
    count = min(count, len(ordered))
    at = np.linspace(0, len(ordered) - 1, count).round().astype(int)
    picks = [ordered[i] for i in at]
    order: dict[int, None] = {}
    # The ends, the middle, the quarters, and so on.
    pieces = 1
    while len(order) < count:
        order |= dict.fromkeys(round(i * (count - 1) / pieces) for i in range(pieces + 1))
        pieces *= 2
    return [picks[i] for i in order]
