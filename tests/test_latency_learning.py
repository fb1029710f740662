from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from latency_fakes import SETTING, conv, pool, small_nets

from tadnn.errors import RequestError, TableError, Unwritable
from tadnn.kernels import Kernel, KernelRow, read_kernel_table
from tadnn.latency import (
    Budget,
    LatencyModel,
    NetTiming,
    evaluate_kernels,
    evaluate_nets,
    extend,
    learn,
    learning,
    load_latency_model,
    measuring,
)
from tadnn.nets import BlockBuilder, Net, ReLU, block
from tadnn.profiling import FakeClock, NetRun, ProfileDatabase, Subject, Timed
from tadnn.progress import Advance, Progress

NETS = small_nets(25, 11)
POOL = pool(NETS)
SMALL = Budget(kernels=60, nets=6)


class Recorded(FakeClock):
    """Writes down what it is asked to measure, and may break off."""

    def __init__(self, *, breaks_after: float = math.inf, tick: Callable[[], None] | None = None):
        super().__init__(SETTING)
        self.kernels: list[Kernel] = []
        self.nets: list[Net] = []
        self.breaks_after, self.tick = breaks_after, tick

    def prepare(self, subject: Subject) -> Timed:
        if len(self.kernels) + len(self.nets) >= self.breaks_after:
            raise KeyboardInterrupt
        if self.tick is not None:
            self.tick()
        if isinstance(subject, Kernel):
            self.kernels.append(subject)
        else:
            self.nets.append(subject.net)
        return super().prepare(subject)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[ProfileDatabase]:
    with ProfileDatabase(tmp_path / "profiles.db") as opened:
        yield opened


def run(
    clock: FakeClock, database: ProfileDatabase, budget: Budget = SMALL, **more: object
) -> LatencyModel:
    folder = database.path.parent / "latency_models" / "learned"
    return learn("learned", NETS, 1, clock, database, folder, budget=budget, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[LatencyModel, Recorded, Path]:
    folder = tmp_path_factory.mktemp("learned")
    clock = Recorded()
    with ProfileDatabase(folder / "profiles.db") as database:
        return run(clock, database, purpose="a test"), clock, folder


def test_the_whole_loop(
    learned: tuple[LatencyModel, Recorded, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, clock, folder = learned
    assert len(clock.kernels) == len(set(clock.kernels)) == 60
    assert set(clock.kernels) <= set(POOL)
    assert len(clock.nets) == 6
    monkeypatch.chdir(folder)
    loaded = load_latency_model("learned")
    assert loaded.hash == model.hash
    assert loaded.card.environment == clock.environment()
    assert loaded.card.data["source"] == "measured by tadnn"
    assert loaded.card.data["purpose"] == "a test"
    assert loaded.card.data["rows"] == 60
    assert loaded.card.data["calibration_nets"] == sorted(net.key for net in clock.nets)
    assert loaded.nets.held_out["n"] == 6
    table = read_kernel_table(folder / "latency_models" / "learned" / "kernels.csv.gz")
    assert {row.kernel for row in table} == set(clock.kernels)
    assert [row.kernel.key for row in table] == sorted(row.kernel.key for row in table)


def test_what_was_learned_holds_for_other_networks(
    learned: tuple[LatencyModel, Recorded, Path],
) -> None:
    model, clock, _ = learned
    fresh = small_nets(30, 77)
    exact = [NetTiming(net, 1, clock.true_us(NetRun(net)) / 1e3) for net in fresh]
    assert evaluate_nets(model, exact)["overall"]["mape"] < 5
    judged = evaluate_kernels(model, [KernelRow(k, clock.kernel_us(k)) for k in pool(fresh)])
    assert judged["overall"]["mape"] < 10
    assert judged["by_op"]["conv2d"]["spearman"] > 0.97


def test_networks_measured_span_the_smallest_to_the_largest(
    learned: tuple[LatencyModel, Recorded, Path],
) -> None:
    _, clock, _ = learned
    flops = sorted(net.flops() for net in NETS)
    measured = [net.flops() for net in clock.nets]
    assert measured[:2] == [flops[0], flops[-1]], "and the ends first"
    assert len(set(measured)) == 6


def test_learning_again_measures_nothing(
    database: ProfileDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = Recorded(), Recorded()
    model = run(first, database)
    assert run(again, database).hash == model.hash
    assert (again.kernels, again.nets) == ([], [])


class Busy(Recorded):
    """A machine with a neighbour: networks take up to three times as long, at random."""

    def true_us(self, subject: Subject) -> float:
        exact = super().true_us(subject)
        if isinstance(subject, Kernel):
            return exact
        return exact * (1 + int(subject.net.key, 16) % 3)


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_busy_machine_is_suspected_and_measured_afresh(database: ProfileDatabase) -> None:
    heard, quiet, again = Notes(), Notes(), Recorded()
    busy = run(Busy(), database, progress=heard)
    assert len(heard.notes) == 1
    assert "busy while it was profiled? --fresh measures again" in heard.notes[0]
    model = run(again, database, fresh=True, progress=quiet)
    assert (len(again.kernels), len(again.nets)) == (60, 6)
    assert quiet.notes == []
    assert model.nets.sigma < 0.2 * busy.nets.sigma
    kept = Recorded()
    assert run(kept, database).hash == model.hash, "the latest measurements count"
    assert (kept.kernels, kept.nets) == ([], [])


def test_a_larger_budget_measures_only_what_is_missing(database: ProfileDatabase) -> None:
    first, more = Recorded(), Recorded()
    run(first, database, Budget(20, 4))
    model = run(more, database, Budget(45, 4))
    assert len(more.kernels) == 25
    assert not set(more.kernels) & set(first.kernels)
    assert more.nets == []
    assert model.card.data["rows"] == 45


def test_a_budget_beyond_the_pool_measures_the_pool(database: ProfileDatabase) -> None:
    clock = Recorded()
    run(clock, database, Budget(10_000, 0))
    assert sorted(k.key for k in clock.kernels) == sorted(k.key for k in POOL)
    assert clock.nets == []


@pytest.mark.parametrize("kernels", [10, 11, 13])
def test_the_smallest_budgets_learn_something(database: ProfileDatabase, kernels: int) -> None:
    clock = Recorded()
    model = run(clock, database, Budget(kernels, 4))
    assert len(clock.kernels) == kernels
    assert model.nets.held_out["n"] == 4


def test_without_enough_networks_there_is_no_calibration(database: ProfileDatabase) -> None:
    model = run(Recorded(), database, Budget(15, 3))
    assert "calibration_nets" not in model.card.data
    assert (model.nets.gap_us, model.nets.scale) == (0.0, 1.0)


def test_an_interruption_keeps_what_was_finished(database: ProfileDatabase) -> None:
    killed = Recorded(breaks_after=40)
    with pytest.raises(KeyboardInterrupt):
        run(killed, database)
    assert not (database.path.parent / "latency_models").exists(), "no half of a model"
    kept = database.kernels("cpu-fake", SETTING)
    # Sixteen candidates take turns, so whole groups were finished.
    assert 32 <= len(kept) < 48
    resumed = Recorded()
    model = run(resumed, database)
    assert not set(resumed.kernels) & set(kept)
    assert len(kept) + len(resumed.kernels) == model.card.data["rows"] == 60


def test_an_interruption_among_the_networks_keeps_kernels_and_networks(
    database: ProfileDatabase,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Recorded(breaks_after=60 + 3), database)
    assert len(database.kernels("cpu-fake", SETTING)) == 60
    resumed = Recorded()
    run(resumed, database)
    assert (len(resumed.kernels), len(resumed.nets)) == (0, 6)


def test_the_database_may_know_kernels_of_other_spaces(database: ProfileDatabase) -> None:
    clock = Recorded()
    others = [conv(k, 7, 9) for k in range(8, 24)]
    measuring.measure(
        clock,
        others,
        on_result=lambda k, m: database.add_kernels("cpu-fake", SETTING, {}, {k: m}),  # type: ignore[dict-item]
    )
    clock.kernels.clear()
    model = run(clock, database, Budget(20, 0))
    assert len(clock.kernels) == 20
    assert model.card.data["rows"] == 36
    assert model.predict(others[:1]).in_range[0]


# Time


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make a second pass whenever the clock is asked for something, and none otherwise."""
    now = [1000.0]

    def tick() -> None:
        now[0] += 1.0

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return tick


def test_a_budget_of_time_is_kept(database: ProfileDatabase, ticking: Callable[[], None]) -> None:
    clock = Recorded(tick=ticking)
    run(clock, database, Budget(100_000, 24, minutes=1.5))
    # Three quarters of 90 seconds are the kernels', to within a group of sixteen.
    assert 67.5 <= len(clock.kernels) < 67.5 + 16
    # What is left over is the networks', to within a group of four.
    assert 90 <= len(clock.kernels) + len(clock.nets) < 94


def test_the_rounds_share_the_time(
    database: ProfileDatabase, ticking: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    plan = measuring.next_kernels

    def planned(*args, **more):  # type: ignore[no-untyped-def]
        seen.append((len(args[1]), args[2] is not None))
        return plan(*args, **more)

    monkeypatch.setattr(measuring, "next_kernels", planned)
    run(Recorded(tick=ticking), database, Budget(100_000, 0, minutes=2))
    spread = [known for known, unsure in seen if not unsure]
    refined = [known for known, unsure in seen if unsure]
    assert spread == [0, 16, 32], "two fifths of 90 kernels without a model"
    assert refined
    assert min(refined) == 48, "then where the model is unsure"


def test_the_least_that_a_fit_needs_is_measured_in_any_case(
    database: ProfileDatabase, ticking: Callable[[], None]
) -> None:
    clock = Recorded(tick=ticking)
    model = run(clock, database, Budget(1000, 10, minutes=0.01))
    assert (len(clock.kernels), len(clock.nets)) == (16, 4)
    assert model.nets.held_out["n"] == 4


@pytest.mark.parametrize(
    ("kernels", "nets", "minutes"),
    [
        (9, 4, None),
        (10, -1, None),
        (10, 4, 0.0),
        (10, 4, -1.0),
        (10, 4, math.nan),
        (10, 4, math.inf),
    ],
)
def test_budgets_that_make_no_sense(kernels: int, nets: int, minutes: float | None) -> None:
    with pytest.raises(RequestError, match=r"at least 10 kernels|minutes are positive"):
        Budget(kernels, nets, minutes)


# Bad input


def test_no_networks(database: ProfileDatabase) -> None:
    with pytest.raises(RequestError, match="at least one network"):
        learn("x", [], 1, Recorded(), database, database.path.parent / "x")


def test_networks_that_launch_too_little(database: ProfileDatabase) -> None:
    @block
    def little(b: BlockBuilder) -> None:
        b.add(ReLU(), b.input)

    nets = [Net((1, 4, 4), (("only", little()),))]
    with pytest.raises(TableError, match="at least 10 distinct kernels"):
        learn("x", nets, 1, Recorded(), database, database.path.parent / "x")


def test_a_folder_that_cannot_be_written_loses_no_measurement(database: ProfileDatabase) -> None:
    (database.path.parent / "latency_models").write_text("in the way", encoding="utf-8")
    with pytest.raises(Unwritable):
        run(Recorded(), database)
    assert len(database.kernels("cpu-fake", SETTING)) == 60


# Progress


class Told(Progress):
    def __init__(self) -> None:
        self.tasks: dict[str, list[float | None]] = {}

    @contextmanager
    def task(self, label: str, total: int | None) -> Iterator[Advance]:
        state: list[float | None] = [total, 0]
        self.tasks[label] = state

        def advance(steps: int) -> None:
            state[1] = (state[1] or 0) + steps

        yield advance


def test_progress_counts_to_its_total(database: ProfileDatabase) -> None:
    for _ in range(2):
        told = Told()
        run(Recorded(), database, progress=told)
        assert told.tasks == {
            "profiling kernels": [60, 60],
            "measuring networks": [6, 6],
            "fitting the latency model": [None, 0],
        }


def test_any_first_few_networks_are_spread() -> None:
    nets = sorted(small_nets(33, 3), key=lambda net: (net.flops(), net.key))
    order = [nets.index(net) for net in learning._spread_by_work(nets[::-1], 33)]
    assert order[:5] == [0, 32, 16, 8, 24]
    assert sorted(order) == list(range(33))
    for count in (0, 1, 2, 3, 10, 100):
        picked = learning._spread_by_work(nets, count)
        assert len({net.key for net in picked}) == len(picked) == min(count, 33)


def test_the_same_seed_learns_the_same(tmp_path: Path) -> None:
    hashes, asked = [], []
    for i in range(2):
        with ProfileDatabase(tmp_path / str(i) / "profiles.db") as database:
            clock = Recorded()
            hashes.append(run(clock, database, Budget(30, 4)).hash)
            asked.append(clock.kernels)
    assert asked[0] == asked[1]
    assert hashes[0] == hashes[1]
    assert np.unique(hashes).size == 1


def test_extending_measures_what_is_asked_for_and_nothing_else(
    learned: tuple[LatencyModel, Recorded, Path],
) -> None:
    model, _, place = learned
    new = next(net for net in small_nets(30, 99) if not set(pool([net])) <= set(POOL))
    clock = Recorded()
    with ProfileDatabase(place / "profiles.db") as database:
        before = set(database.kernels(clock.device.slug, clock.setting))
        folder = place / "latency_models" / "extended"
        found = extend(model, [new, new], 1, clock, database, folder)
        after = set(database.kernels(clock.device.slug, clock.setting))
    assert set(clock.kernels) == after - before == set(pool([new])) - before
    assert clock.nets == [new]
    assert found.card.data["rows"] == len(after)
    nets = {*model.card.data["calibration_nets"], new.key}
    assert set(found.card.data["calibration_nets"]) == nets
    assert {row.kernel for row in read_kernel_table(folder / "kernels.csv.gz")} == after
    truth = clock.true_us(NetRun(new)) / 1e3
    assert found.predict_net(new).latency_ms == pytest.approx(truth, rel=0.05)
