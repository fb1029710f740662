"""Learning a device: plan, measure, fit, and again where the fit is unsure."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tadnn.errors import RequestError
from tadnn.kernels import Kernel, KernelRow
from tadnn.latency.fitting import FEWEST_KERNELS, NetTiming, calibrate_nets, fit_kernels
from tadnn.latency.model import LatencyModel
from tadnn.latency.nets import FEWEST_NETS
from tadnn.latency.quantization import lanes_of
from tadnn.latency.storage import save_latency_model
from tadnn.nets import Net
from tadnn.profiling import (
    Clock,
    Measurement,
    NetRun,
    ProfileDatabase,
    Subject,
    covering_nets,
    kernel_pool,
    measure,
    next_kernels,
    reduced,
    relative_cost,
)
from tadnn.progress import SILENT, Advance, Progress
from tadnn.runtimes import find_runtime, lower_net

# Shares of the budget: what is spread over the pool first, and each refinement.
_ROUNDS: Final = (0.4, 0.3, 0.3)
_SUSPICIOUS: Final = 15.0  # percent; an undisturbed machine stays well below
_AT_A_TIME: Final = 64
# With a time limit, so many are measured between two looks at it, and kernels get this share.
_AT_A_TIME_LIMITED: Final = 16
_TIME_OF_KERNELS: Final = 0.75
# A network is run at least so often to be measured, and so many are to be measured in any time.
_RUNS_OF_A_NET: Final = 5
_MEASURED_ANYHOW: Final = 8
_LEAST_CHOICE: Final = 32
# Networks observed between two looks at the clock and at what is known.
_NETS_AT_A_TIME: Final = 4


@dataclass(frozen=True)
class Budget:
    """How much to measure: distinct kernels, networks, and minutes (None: no limit).

    A limit of time is looked at after every few measurements, and the least that a fit needs
    is measured in any case; fitting takes its own time.

    Raises:
        RequestError: kernels are too few to fit, or a number makes no sense.
    """

    kernels: int = 1200
    nets: int = 24
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.kernels < FEWEST_KERNELS or self.nets < 0:
            raise RequestError(
                f"a budget has at least {FEWEST_KERNELS} kernels and 0 networks; "
                f"got {self.kernels} and {self.nets}"
            )
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise RequestError(f"minutes are positive and finite; got {self.minutes}")


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
    observed = find_runtime(clock.setting.runtime).observed
    get_kernels = _observe_kernels if observed else _measure_kernels
    get_kernels(clock, database, nets, batch, known, budget, start, seed, progress)
    timings = _measure_nets(
        clock, database, nets, batch, known, budget, start, progress, fresh=fresh
    )
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


def _measure_kernels(
    clock: Clock,
    database: ProfileDatabase,
    nets: Sequence[Net],
    batch: int,
    known: dict[Kernel, Measurement],
    budget: Budget,
    start: float,
    seed: int,
    progress: Progress,
) -> None:
    """Measure kernels of the networks in rounds; ``known`` grows by them."""
    pool = kernel_pool(nets, batch, clock.setting.dtype, find_runtime(clock.setting.runtime))
    wanted = min(budget.kernels, len(pool))
    have = sum(kernel in known for kernel in pool)
    most = _AT_A_TIME if budget.minutes is None else _AT_A_TIME_LIMITED
    with progress.task("profiling kernels", wanted) as advance:
        advance(min(have, wanted))
        for index, share in enumerate(itertools.accumulate(_ROUNDS)):
            goal = round(share * wanted)
            ends = _ends(start, budget, share * _TIME_OF_KERNELS)
            rough = _rough(clock, known, seed) if index and have < goal else None
            while have < goal and (time.monotonic() < ends or have < FEWEST_KERNELS):
                plan = next_kernels(
                    pool,
                    known,
                    rough.relative_deviation if rough else None,
                    min(most, goal - have),
                    seed + have,
                    predict=rough.latency_us if rough else None,
                    lanes=lanes_of(clock.device, clock.setting.dtype),
                )
                if not plan:
                    break
                measure_and_store(clock, database, plan, known, advance)
                have += len(plan)


def _observe_kernels(
    clock: Clock,
    database: ProfileDatabase,
    nets: Sequence[Net],
    batch: int,
    known: dict[Kernel, Measurement],
    budget: Budget,
    start: float,
    seed: int,
    progress: Progress,
) -> None:
    """Run networks in which wanted kernels are seen, in rounds; ``known`` grows by all seen.

    The kernels wanted are those that would be measured alone.
    """
    runtime, dtype = find_runtime(clock.setting.runtime), clock.setting.dtype
    distinct = {net.key: net for net in nets}
    pool = kernel_pool(distinct.values(), batch, dtype, runtime)
    wanted = min(budget.kernels, len(pool))
    have = sum(kernel in known for kernel in pool)
    unseen: set[Kernel] = set()  # what a run that should have shown it didn't
    with progress.task("profiling kernels", wanted) as advance, clock.session():
        advance(min(have, wanted))
        for index, share in enumerate(itertools.accumulate(_ROUNDS)):
            goal = round(share * wanted)
            ends = _ends(start, budget, share * _TIME_OF_KERNELS)
            rough = _rough(clock, known, seed) if index and have < goal else None
            while have < goal and (time.monotonic() < ends or have < FEWEST_KERNELS):
                plan = next_kernels(
                    pool,
                    [*known, *unseen],
                    rough.relative_deviation if rough else None,
                    min(_AT_A_TIME, goal - have),
                    seed + have,
                    predict=rough.latency_us if rough else None,
                    lanes=lanes_of(clock.device, clock.setting.dtype),
                )
                tried = known.keys() | unseen
                few = {
                    key: reduced(net, batch, dtype, runtime, tried) for key, net in distinct.items()
                }
                launched = {
                    key: frozenset(lower_net(net, batch, dtype, runtime))
                    for key, net in few.items()
                }
                cost = {key: relative_cost(net, batch) for key, net in few.items()}
                chosen = covering_nets(plan, launched, cost, _NETS_AT_A_TIME)
                if not chosen:
                    break
                for key in chosen:
                    if time.monotonic() > ends and len(known) >= FEWEST_KERNELS:
                        break
                    observe_and_store(clock, database, NetRun(few[key], batch), known)
                    unseen |= launched[key] - known.keys()
                before, have = have, sum(kernel in known for kernel in pool)
                advance(min(have, wanted) - min(before, wanted))
        advance(wanted - min(have, wanted) if have + len(unseen) >= wanted else 0)


def observe_and_store(
    clock: Clock, database: ProfileDatabase, run: NetRun, known: dict[Kernel, Measurement]
) -> None:
    """Observe a network's kernels; one that was seen before is an average of all times."""
    seen = {
        kernel: known[kernel].combined(new) if kernel in known else new
        for kernel, new in clock.observe(run).items()
    }
    database.add_kernels(clock.device.slug, clock.setting, clock.environment(), seen)
    known.update(seen)


def _ends(start: float, budget: Budget, share: float) -> float:
    return math.inf if budget.minutes is None else start + share * 60 * budget.minutes


def measure_and_store(
    clock: Clock,
    database: ProfileDatabase,
    plan: Sequence[Kernel],
    known: dict[Kernel, Measurement],
    advance: Advance,
) -> None:
    """Measure kernels; ``known`` and the database get each as soon as it is there."""
    environment = clock.environment()

    def keep(subject: Subject, measurement: Measurement) -> None:
        assert isinstance(subject, Kernel)
        database.add_kernels(clock.device.slug, clock.setting, environment, {subject: measurement})
        known[subject] = measurement
        advance(1)

    # What a fit can't explain is several times as large: more repeats would gain nothing.
    measure(clock, plan, precision=0.015, max_repeats=40, on_result=keep)


def _measure_nets(
    clock: Clock,
    database: ProfileDatabase,
    nets: Sequence[Net],
    batch: int,
    known: Mapping[Kernel, Measurement],
    budget: Budget,
    start: float,
    progress: Progress,
    *,
    fresh: bool,
) -> list[NetTiming]:
    """Measure whole networks, from the smallest to the largest; known ones aren't repeated."""
    able = _affordable(nets, batch, known, budget)
    chosen = {net.key: net for net in _spread_by_work(able, budget.nets)}
    stored = {
        key: measurement
        for key, at_batch, _, measurement in database.nets(clock.device.slug, clock.setting)
        if at_batch == batch and not fresh
    }
    missing = [NetRun(net, batch) for key, net in chosen.items() if key not in stored]
    environment = clock.environment()
    with progress.task("measuring networks", len(chosen)) as advance:
        advance(len(chosen) - len(missing))

        def keep(subject: Subject, measurement: Measurement) -> None:
            assert isinstance(subject, NetRun)
            net = subject.net
            database.add_net(
                clock.device.slug,
                clock.setting,
                environment,
                net.key,
                batch,
                net.to_json(),
                measurement,
            )
            stored[net.key] = measurement
            advance(1)

        # Interleaved all together, or a few at a time where time may run out.
        at_a_time = len(missing) if budget.minutes is None else FEWEST_NETS
        for first in range(0, len(missing), max(1, at_a_time)):
            few = sum(key in stored for key in chosen) < FEWEST_NETS
            if few or time.monotonic() < _ends(start, budget, 1.0):
                measure(clock, missing[first : first + at_a_time], on_result=keep)
    return [
        NetTiming(net, batch, stored[key].latency_us / 1e3)
        for key, net in chosen.items()
        if key in stored
    ]


def _affordable(
    nets: Sequence[Net], batch: int, known: Mapping[Kernel, Measurement], budget: Budget
) -> list[Net]:
    """Return the networks of which several can be measured in the time given.

    Their time is estimated from FLOPs, at the rate that the known kernels ran at together.
    """
    ordered = sorted(nets, key=lambda net: (net.flops(), net.key))
    flops = sum(kernel.flops for kernel in known)
    if budget.minutes is None or not flops:
        return ordered
    rate = sum(m.latency_us for m in known.values()) / 1e6 / flops
    limit_s = (1 - _TIME_OF_KERNELS) * 60 * budget.minutes / _MEASURED_ANYHOW
    able = [n for n in ordered if _RUNS_OF_A_NET * n.flops(batch) * rate <= limit_s]
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


@dataclass(frozen=True)
class _Rough:
    """What a first fit tells the plan."""

    model: LatencyModel

    def relative_deviation(self, kernels: Sequence[Kernel]) -> list[float]:
        predicted = self.model.predict(kernels)
        return [float(v) for v in predicted.std_us / predicted.latency_us]

    def latency_us(self, kernels: Sequence[Kernel]) -> list[float]:
        return [float(v) for v in self.model.predict_us(kernels)]


def _rough(clock: Clock, known: Mapping[Kernel, Measurement], seed: int) -> _Rough | None:
    """Return a quick fit of what is known, None while that is too little."""
    if len(known) < FEWEST_KERNELS:
        return None
    table = [(clock.device, rows_of(known))]
    return _Rough(fit_kernels("rough", table, clock.setting, seed=seed, quick=True))


def rows_of(known: Mapping[Kernel, Measurement]) -> list[KernelRow]:
    """Return measurements as rows of a table, in order of the kernels' keys."""
    return [
        KernelRow(kernel, m.latency_us, m.spread_us, m.repeats)
        for kernel, m in sorted(known.items(), key=lambda item: item[0].key)
    ]
