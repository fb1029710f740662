"""Learning from kernels that are observed in whole networks."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import pytest
from latency_fakes import small_nets

from tadnn.errors import RequestError, WorkFailed
from tadnn.kernels import Kernel
from tadnn.latency import Budget, LatencyModel, NetTiming, evaluate_nets, learn
from tadnn.profiling import FakeClock, Measurement, NetRun, ProfileDatabase, kernel_pool
from tadnn.runtimes import Setting, find_runtime

SETTING = Setting("onnxruntime", threads=2)
NETS = small_nets(25, 11)
POOL = kernel_pool(NETS, 1, "fp32", find_runtime("onnxruntime"))
SMALL = Budget(kernels=60, nets=6)


class Recorded(FakeClock):
    """Writes down what it is asked to observe, and may break off or hide a kernel."""

    def __init__(self, *, breaks_after: float = math.inf, hides: str = "") -> None:
        super().__init__(SETTING)
        self.observed: list[NetRun] = []
        self.breaks_after, self.hides = breaks_after, hides

    def observe(self, subject: NetRun) -> dict[Kernel, Measurement]:
        if len(self.observed) >= self.breaks_after:
            raise KeyboardInterrupt
        self.observed.append(subject)
        seen = super().observe(subject)
        return {k: m for k, m in seen.items() if not self.hides or k.op != self.hides}


def run(clock: FakeClock, path: Path, budget: Budget = SMALL) -> LatencyModel:
    with ProfileDatabase(path / "profiles.db") as database:
        return learn("learned", NETS, 1, clock, database, path / "learned", budget=budget)


def stored(path: Path) -> set[Kernel]:
    with ProfileDatabase(path / "profiles.db") as database:
        return set(database.kernels("cpu-fake", SETTING))


def test_the_whole_loop(tmp_path: Path) -> None:
    clock = Recorded()
    model = run(clock, tmp_path)
    known = stored(tmp_path)
    assert 60 <= len(known) <= len(POOL)
    assert known <= set(POOL)
    assert model.card.data["rows"] == len(known)
    assert model.setting == SETTING
    fresh = small_nets(30, 77)
    exact = [NetTiming(net, 1, clock.true_us(NetRun(net)) / 1e3) for net in fresh]
    assert evaluate_nets(model, exact)["overall"]["mape"] < 6


def test_learning_again_observes_nothing(tmp_path: Path) -> None:
    first, again = Recorded(), Recorded()
    model = run(first, tmp_path)
    assert run(again, tmp_path).hash == model.hash
    assert first.observed
    assert not again.observed


def test_everything_is_observed_where_the_budget_allows(tmp_path: Path) -> None:
    run(Recorded(), tmp_path, Budget(10_000, 0))
    assert stored(tmp_path) == set(POOL)


def test_an_interruption_keeps_what_was_observed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Recorded(breaks_after=2), tmp_path)
    kept = stored(tmp_path)
    assert len(kept) >= 10
    resumed = Recorded()
    run(resumed, tmp_path)
    assert stored(tmp_path) > kept


def test_what_is_never_seen_is_not_waited_for(tmp_path: Path) -> None:
    run(Recorded(hides="add"), tmp_path, Budget(10_000, 0))
    assert stored(tmp_path) == {kernel for kernel in POOL if kernel.op != "add"}


def test_a_budget_of_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    class Slow(Recorded):
        def observe(self, subject: NetRun) -> dict[Kernel, Measurement]:
            now[0] += 5.0
            return super().observe(subject)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Slow()
    run(clock, tmp_path, Budget(10_000, 0, minutes=0.5))
    assert 3 <= len(clock.observed) <= 8  # of 30 s three quarters, each round to within one more


def test_where_time_is_over_what_is_known_of_others_does_not_count_for_the_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        Kernel.of("linear", m=1, n=1000 + i, k=7): Measurement(5.0, 0.1, 9) for i in range(20)
    }
    with ProfileDatabase(tmp_path / "profiles.db") as database:
        database.add_kernels("cpu-fake", SETTING, {}, others)
    ticks = itertools.count(1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    run(Recorded(), tmp_path, Budget(10_000, 0, minutes=0.001))
    assert len(stored(tmp_path) & set(POOL)) >= 10


def test_only_some_runtimes_are_observed() -> None:
    with pytest.raises(RequestError, match="torch-eager times kernels alone"):
        FakeClock(Setting()).observe(NetRun(NETS[0]))


def test_a_profile_that_fails_is_an_error(tmp_path: Path) -> None:
    class Broken(Recorded):
        def observe(self, subject: NetRun) -> dict[Kernel, Measurement]:
            raise WorkFailed("out of memory")

    with pytest.raises(WorkFailed, match="out of memory"):
        run(Broken(), tmp_path)
