"""Measuring kernels for a latency model: alone, or observed in networks, within a budget."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from tadnn.runtimes import Runtime, find_runtime, lower_net

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


@dataclass(frozen=True)
class Work:
    """What is measured, by which clock, and where it is kept.

    Args:
        clock: what measures, in its setting.
        database: gets every measurement as soon as it is there.
        nets: the networks.
        batch: the batch size.
        known: measured kernels; grows.
        progress: told of every measurement.
    """

    clock: Clock
    database: ProfileDatabase
    nets: Sequence[Net]
    batch: int
    known: dict[Kernel, Measurement]
    progress: Progress

    @property
    def runtime(self) -> Runtime:
        """The setting's runtime."""
        return find_runtime(self.clock.setting.runtime)

    def launched(self, net: Net) -> frozenset[Kernel]:
        """Return the kernels that a network launches here."""
        return frozenset(lower_net(net, self.batch, self.clock.setting.dtype, self.runtime))

    def count(self, pool: Collection[Kernel]) -> int:
        """Return how many of some kernels are known."""
        return sum(kernel in self.known for kernel in pool)

    def pool(self) -> dict[Kernel, int]:
        """Return the distinct kernels of all networks, and how many networks launch each."""
        return kernel_pool(self.nets, self.batch, self.clock.setting.dtype, self.runtime)

    def measured_nets(self) -> dict[str, tuple[dict[str, Any], Measurement]]:
        """Return the networks measured whole before: by key their JSON, and how long they took."""
        return {
            key: (record, measurement)
            for key, batch, record, measurement in self.database.nets(
                self.clock.device.slug, self.clock.setting
            )
            if batch == self.batch
        }

    def measure_kernels(self, plan: Sequence[Kernel], advance: Advance) -> None:
        """Measure kernels alone."""
        environment = self.clock.environment()

        def keep(subject: Subject, measurement: Measurement) -> None:
            assert isinstance(subject, Kernel)
            self._keep(environment, {subject: measurement})
            advance(1)

        # What a fit can't explain is several times as large: more repeats would gain nothing.
        measure(self.clock, plan, precision=0.015, max_repeats=40, on_result=keep)

    def observe_kernels(self, net: Net) -> None:
        """Observe a network's kernels; one that was seen before is an average of all times."""
        seen = {
            kernel: self.known[kernel].combined(new) if kernel in self.known else new
            for kernel, new in self.clock.observe(NetRun(net, self.batch)).items()
        }
        self._keep(self.clock.environment(), seen)

    def measure_nets(self, nets: Sequence[Net], keep: Callable[[Net, Measurement], None]) -> None:
        """Measure whole networks in turns; ``keep`` hears of each as it is stored."""
        environment = self.clock.environment()
        slug, setting = self.clock.device.slug, self.clock.setting

        def store(subject: Subject, measurement: Measurement) -> None:
            assert isinstance(subject, NetRun)
            net = subject.net
            self.database.add_net(
                slug, setting, environment, net.key, self.batch, net.to_json(), measurement
            )
            keep(net, measurement)

        measure(self.clock, [NetRun(net, self.batch) for net in nets], on_result=store)

    def _keep(self, environment: Mapping[str, str], new: Mapping[Kernel, Measurement]) -> None:
        self.database.add_kernels(self.clock.device.slug, self.clock.setting, environment, new)
        self.known.update(new)


def measure_planned(work: Work, budget: Budget, start: float, seed: int) -> None:
    """Measure kernels of the networks in rounds, those first that tell most.

    Args:
        work: what is measured.
        budget: how much.
        start: when its minutes began, by ``time.monotonic``.
        seed: of the plan and of the rough fits that it looks at.
    """
    most = _AT_A_TIME if budget.minutes is None else _AT_A_TIME_LIMITED
    pool = work.pool()
    wanted = min(budget.kernels, len(pool))
    with work.progress.task("profiling kernels", wanted) as advance:
        advance(min(work.count(pool), wanted))
        for plan, _ in _plans(work, pool, budget, start, seed, most):
            work.measure_kernels(plan, advance)


def observe_planned(work: Work, budget: Budget, start: float, seed: int) -> None:
    """Run networks in which wanted kernels are seen, in rounds.

    The kernels wanted are those that would be measured alone; see :func:`measure_planned`.
    """
    distinct = {net.key: net for net in work.nets}
    pool = work.pool()
    wanted = min(budget.kernels, len(pool))
    unseen: set[Kernel] = set()  # what a run that should have shown it didn't
    with work.progress.task("profiling kernels", wanted) as advance, work.clock.session():
        have = work.count(pool)
        advance(min(have, wanted))
        for plan, ends in _plans(work, pool, budget, start, seed, _AT_A_TIME, unseen):
            tried = work.known.keys() | unseen
            few = {
                key: reduced(net, work.batch, work.clock.setting.dtype, work.runtime, tried)
                for key, net in distinct.items()
            }
            launched = {key: work.launched(net) for key, net in few.items()}
            cost = {key: relative_cost(net, work.batch) for key, net in few.items()}
            chosen = covering_nets(plan, launched, cost, _NETS_AT_A_TIME)
            if not chosen:
                unseen.update(plan)  # no network shows them
            for key in chosen:
                if time.monotonic() > ends and work.count(pool) >= FEWEST_KERNELS:
                    break
                work.observe_kernels(few[key])
                unseen |= launched[key] - work.known.keys()
            before, have = have, work.count(pool)
            advance(min(have, wanted) - min(before, wanted))
        advance(wanted - min(have, wanted) if have + len(unseen) >= wanted else 0)


def _plans(
    work: Work,
    pool: Mapping[Kernel, int],
    budget: Budget,
    start: float,
    seed: int,
    most: int,
    unseen: Collection[Kernel] = (),
) -> Iterator[tuple[list[Kernel], float]]:
    """Yield kernels to measure next, and when their round ends; none of them known or ``unseen``.

    The first round spreads over the pool, the others look where a rough fit is unsure.
    """
    wanted = min(budget.kernels, len(pool))
    for index, share in enumerate(itertools.accumulate(_ROUNDS)):
        goal = round(share * wanted)
        ends = budget.ends(start, share * TIME_OF_KERNELS)
        rough = _rough(work, seed) if index and work.count(pool) < goal else None
        while (have := work.count(pool)) < goal and (
            time.monotonic() < ends or have < FEWEST_KERNELS
        ):
            plan = next_kernels(
                pool,
                [*work.known, *unseen],
                rough.relative_deviation if rough else None,
                min(most, goal - have),
                seed + have,
                predict=rough.latency_us if rough else None,
                lanes=lanes_of(work.clock.device, work.clock.setting.dtype),
            )
            if not plan:
                break
            yield plan, ends


@dataclass(frozen=True)
class _Rough:
    """What a first fit tells the plan."""

    model: LatencyModel

    def relative_deviation(self, kernels: Sequence[Kernel]) -> list[float]:
        predicted = self.model.predict(kernels)
        return [float(v) for v in predicted.std_us / predicted.latency_us]

    def latency_us(self, kernels: Sequence[Kernel]) -> list[float]:
        return [float(v) for v in self.model.predict_us(kernels)]


def _rough(work: Work, seed: int) -> _Rough | None:
    """Return a quick fit of what is known, None while that is too little."""
    if len(work.known) < FEWEST_KERNELS:
        return None
    table = [(work.clock.device, rows_of(work.known))]
    return _Rough(fit_kernels("rough", table, work.clock.setting, seed=seed, quick=True))


def rows_of(known: Mapping[Kernel, Measurement]) -> list[KernelRow]:
    """Return measurements as rows of a table, in order of the kernels' keys."""
    return [
        KernelRow(kernel, m.latency_us, m.spread_us, m.repeats)
        for kernel, m in sorted(known.items(), key=lambda item: item[0].key)
    ]
