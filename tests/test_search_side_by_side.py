"""Networks measured beside some that were measured before."""

from __future__ import annotations

import pytest
from search_fakes import FACTS, make_evaluator, make_spec
from studies_examples import Recorder

from tadnn.files import LATENCY_MODELS
from tadnn.nets import Net
from tadnn.profiling import FAKE_DEVICE, FakeClock, Measurement, NetRun, ProfileDatabase
from tadnn.runtimes import Setting
from tadnn.search import front_record, prediction_check, search, study_space
from tadnn.search.finalists import run_finalists
from tadnn.search.learned import PROFILES
from tadnn.search.side_by_side import drift_note, measure_nets, touchstones
from tadnn.search.spec_parts import FinalistsSpec

SETTING = Setting(threads=1)

pytestmark = pytest.mark.usefixtures("in_tmp_path")


class Paced(FakeClock):
    """A machine whose pace changes from one session of measuring to the next."""

    def __init__(self, *paces):
        super().__init__(SETTING, noise=0.0)
        self._paces = iter(paces)
        self._pace = 1.0

    def session(self):
        self._pace = next(self._paces)
        return super().session()

    def true_us(self, subject):
        return self._pace * super().true_us(subject)


@pytest.fixture
def nets(tmp_path) -> list[Net]:
    """Eight networks from the smallest to the largest."""
    spec = make_spec(tmp_path, input_shape=[1, 8, 8])
    space, _ = study_space(spec)
    built = {net.key: net for arch in space.sample(40, 0) for net in [space.build(arch, (1, 8, 8))]}
    ordered = sorted(built.values(), key=lambda net: net.flops())
    return ordered[:: len(ordered) // 8][:8]


def learn(nets, batch=1):
    """Store how long networks take on the fake device, as learning it does."""
    LATENCY_MODELS.local.mkdir(parents=True, exist_ok=True)
    database = ProfileDatabase(LATENCY_MODELS.local / PROFILES)
    clock = FakeClock(SETTING, noise=0.0)
    for net in nets:
        took = Measurement(clock.true_us(NetRun(net, batch)), 0.0, 9)
        database.add_net(FAKE_DEVICE.slug, SETTING, {}, net.key, batch, net.to_json(), took)


def test_touchstones_are_others_of_about_the_same_work(nets):
    clock = FakeClock(SETTING)
    assert touchstones(clock, nets, 1) == []  # nothing was learned here
    learn(nets)
    asked = [nets[2], nets[5]]
    chosen = [timing.net.key for timing in touchstones(clock, asked, 1)]
    assert len(set(chosen)) == 3
    assert not {net.key for net in asked} & set(chosen)
    assert set(chosen) <= {nets[i].key for i in (1, 3, 4, 6)}
    # What was measured at another batch, or in another setting, says nothing.
    assert touchstones(clock, asked, 2) == []
    assert touchstones(FakeClock(Setting(threads=2)), asked, 1) == []
    assert touchstones(clock, [], 1) == []


def no_pause(seconds):
    pytest.fail(f"waited {seconds} s")


def test_a_machine_that_is_what_it_was_is_measured_once(nets):
    learn(nets)
    done = measure_nets(Paced(1.04), nets[:2], 1, "measuring", pause=no_pause)
    assert done.drift == pytest.approx(4.0)
    assert (len(done.records), done.against_itself) == (2, 0.0)
    assert done.check() == {"against_itself": 0.0, "drift": 4.0}


def test_where_nothing_is_known_nothing_is_said_of_the_machine(nets):
    done = measure_nets(Paced(3.0), nets[:2], 1, "measuring", pause=no_pause)
    assert done.drift is None
    assert done.check() == {"against_itself": 0.0}


def test_a_machine_that_comes_to_rest_is_waited_for(nets):
    learn(nets)
    pauses, recorder = [], Recorder()
    done = measure_nets(Paced(0.5, 0.98), nets[:2], 1, "measuring", recorder, pauses.append)
    assert done.drift == pytest.approx(-2.0)
    assert len(pauses) == 1
    assert recorder.steps["measuring"] == 2 * (2 * 2 + 3)
    fresh = measure_nets(Paced(0.98), nets[:2], 1, "measuring")
    assert done.records == fresh.records


def test_of_a_machine_that_stays_busy_the_quietest_attempt_counts(nets):
    learn(nets)
    pauses = []
    done = measure_nets(Paced(2.0, 1.3, 1.7), nets[:2], 1, "measuring", pause=pauses.append)
    assert done.drift == pytest.approx(30.0)
    assert len(pauses) == 2
    assert "take 30 % more time now" in drift_note(done.drift)
    assert "take 40 % less time now" in drift_note(-40.0)
    assert drift_note(10.0) is None
    assert drift_note(None) is None


def test_finalists_of_another_machine_than_was_learned_are_measured_again(
    tmp_path, nets, monkeypatch
):
    monkeypatch.setattr("tadnn.search.side_by_side._PAUSE_S", 0.0)
    spec = make_spec(tmp_path, trials=10, input_shape=[1, 8, 8])
    study, _ = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    wanted = FinalistsSpec(count=2, measure=True)
    spec = spec.model_copy(update={"finalists": wanted}).at(spec.path)
    learn(nets)

    (note,) = run_finalists(spec, study, Paced(1.5, 1.5, 1.5))
    assert "take 50 % more time" in note
    assert prediction_check(front_record(study), study)["drift"] == pytest.approx(50.0)
    busy = [m["measured"] for m in front_record(study)["members"] if m["measured"]]

    assert run_finalists(spec, study, Paced(1.0)) == []
    assert prediction_check(front_record(study), study)["drift"] == pytest.approx(0.0)
    quiet = [m["measured"] for m in front_record(study)["members"] if m["measured"]]
    for before, after in zip(busy, quiet, strict=True):
        assert before["latency_ms"] == pytest.approx(1.5 * after["latency_ms"])

    recorder = Recorder()
    assert run_finalists(spec, study, Paced(), (), recorder) == []  # once more, nothing happens
    assert recorder.steps == {}
