"""Measuring kernels for a latency model: alone, or observed in networks, within a budget."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tadnn.errors import RequestError
from tadnn.kernels import Kernel, KernelRow
from tadnn.latency.fitting import FEWEST_KERNELS, fit_kernels
from tadnn.latency.model import LatencyModel
from tadnn.latency.quantization import lanes_of
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
from tadnn.progress import Advance, Progress
from tadnn.runtimes import find_runtime, lower_net

# Shares of the budget: what is spread over the pool first, and each refinement.
_ROUNDS: Final = (0.4, 0.3, 0.3)
_AT_A_TIME: Final = 64
# With a time limit, so many are measured between two looks at it, and kernels get this share.
_AT_A_TIME_LIMITED: Final = 16
TIME_OF_KERNELS: Final = 0.75
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

    def ends(self, start: float, share: float) -> float:
        """Return when a share of the minutes is over, by the clock that ``start`` was read from."""
        return math.inf if self.minutes is None else start + share * 60 * self.minutes


def measure_kernels(
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
            ends = budget.ends(start, share * TIME_OF_KERNELS)
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


def observe_kernels(
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
            ends = budget.ends(start, share * TIME_OF_KERNELS)
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
