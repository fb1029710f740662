from __future__ import annotations

import pytest
import torch
from search_fakes import FACTS, make_evaluator, make_spec
from studies_examples import Recorder

from tadnn.hardware import detect_cpu
from tadnn.nets import save_weights
from tadnn.profiling import FAKE_DEVICE, FakeClock
from tadnn.runtimes import Setting
from tadnn.search import front_record, prediction_check, search, trained_module
from tadnn.search.finalists import choose, finalists_clock, run_finalists, weights_path
from tadnn.search.spec import FinalistsSpec
from tadnn.search.target import resolve_trial

SETTING = Setting(threads=1)

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def members(*costs):
    return [{"trial": 10 + i, "net_key": f"net{i}", "cost": c} for i, c in enumerate(costs)]


def test_the_chosen_spread_over_the_logarithm_of_latency_with_both_ends():
    # Goals at 1, 10, 100, 1000.
    chosen = choose(members(1, 2, 3, 9, 11.5, 50, 100, 900, 1000), 4, set())
    assert chosen == [10, 13, 16, 18]


def test_two_are_the_ends_and_one_is_the_fastest():
    assert choose(members(1, 5, 9, 20), 2, set()) == [10, 13]
    assert choose(members(1, 5, 9, 20), 1, set()) == [10]


def test_a_few_are_all_chosen():
    assert choose(members(1, 5, 9), 3, set()) == [10, 11, 12]
    assert choose(members(1, 5, 9), 9, set()) == [10, 11, 12]
    assert choose([], 3, set()) == []


def test_nobody_is_chosen_twice_where_members_crowd():
    chosen = choose(members(1, 1.001, 1.002, 1.003, 1000), 4, set())
    assert len(set(chosen)) == 4
    assert {10, 14} <= set(chosen)


def test_equal_latencies_are_told_apart():
    assert choose(members(2, 2, 2), 2, set()) == [10, 11]


def test_what_the_model_was_fitted_on_is_left_out():
    skipped = {"net0", "net3", "net8"}
    chosen = choose(members(1, 2, 3, 9, 11.5, 50, 100, 900, 1000), 3, skipped)
    # Goals at 2, sqrt(2 * 900) = 42, 900.
    assert chosen == [11, 15, 17]
    assert choose(members(1, 2), 1, {"net0", "net1"}) == []


def record_of(*pairs):
    return {
        "members": [
            {
                "trial": i,
                "predicted": None if p is None else {"latency_ms": p},
                "measured": None if m is None else {"latency_ms": m},
            }
            for i, (p, m) in enumerate(pairs)
        ]
    }


class Study:
    user_attrs = {"tadnn:check": {"against_itself": 1.25, "drift": -3.0}}  # noqa: RUF012


def test_the_check_by_hand():
    # Errors: +10 %, -20 %, 0; the first member was not measured.
    record = record_of((9.0, None), (1.1, 1.0), (1.6, 2.0), (1.05, 1.05))
    check = prediction_check(record, Study)
    assert check == {
        "n": 3,
        "mape": 10.0,
        "bias": pytest.approx(-3.333),
        # 1.0 and 1.05 are too close to tell; the pairs with 2.0 are in order.
        "pairs_ordered": 100.0,
        "span": 2.0,
        "against_itself": 1.25,
        "drift": -3.0,
    }


def test_the_check_counts_pairs_in_the_wrong_order():
    # Of the pairs (1, 2), (1, 3), (2, 3) the last is wrong.
    check = prediction_check(record_of((1.0, 1.0), (2.5, 2.0), (2.4, 3.0)), Study)
    assert check["pairs_ordered"] == pytest.approx(200 / 3, abs=1e-3)


def test_there_is_no_check_without_measurements():
    assert prediction_check(record_of((1.0, None)), Study) is None
    assert prediction_check(record_of(), Study) is None


def test_one_measurement_has_no_pairs():
    check = prediction_check(record_of((1.0, 1.0)), Study)
    assert (check["n"], check["pairs_ordered"], check["span"]) == (1, None, 1.0)


class Model:
    """What finalists ask of a latency model."""

    def __init__(self, device, setting=SETTING):
        self.device, self.setting = device, setting


def test_the_clock_is_that_of_the_models_device(tmp_path, monkeypatch):
    measured = make_spec(tmp_path, finalists={"count": 2, "measure": True})
    clock = finalists_clock(measured, Model(FAKE_DEVICE), "fake")
    assert isinstance(clock, FakeClock)
    assert clock.setting == SETTING
    # The model's device is not the one here: whichever of the two is the fake.
    assert finalists_clock(measured, Model(FAKE_DEVICE), "cpu") is None
    cpu = detect_cpu()
    assert finalists_clock(measured, Model(cpu), "fake") is None
    assert finalists_clock(measured, Model(cpu), "cpu").device == cpu
    assert finalists_clock(measured, None, "fake") is None
    for finalists in (None, {"count": 2}):
        spec = make_spec(tmp_path, finalists=finalists)
        assert finalists_clock(spec, Model(FAKE_DEVICE), "fake") is None


@pytest.fixture
def searched(tmp_path):
    """A study of ten trials, and of its front."""
    spec = make_spec(tmp_path, trials=10, input_shape=[1, 8, 8])
    study, _ = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    return spec, study


def wanting(spec, **finalists):
    return spec.model_copy(update={"finalists": FinalistsSpec(**finalists)}).at(spec.path)


def test_finalists_are_measured_together_each_twice(searched):
    spec, study = searched
    spec = wanting(spec, count=2, measure=True)
    recorder = Recorder()
    assert run_finalists(spec, study, FakeClock(SETTING), (), recorder) == []
    assert recorder.steps == {"re-measuring finalists": 4}
    assert study.user_attrs["tadnn:check"] == {"against_itself": 0.0}
    measured = {m["trial"]: m["measured"] for m in front_record(study)["members"]}
    assert sum(facts is not None for facts in measured.values()) == 2
    # Once more, nothing happens.
    again = Recorder()
    run_finalists(spec, study, FakeClock(SETTING), (), again)
    assert again.steps == {}
    # A third finalist is compared with the others, so all are measured at one time.
    run_finalists(wanting(spec, count=3, measure=True), study, FakeClock(SETTING), (), again)
    assert again.steps == {"re-measuring finalists": 6}


class Drifting(FakeClock):
    """Slows down by 10 % whenever it prepares a subject: a machine that gets busy."""

    slowness = 1.0

    def true_us(self, subject):
        self.slowness *= 1.1
        return super().true_us(subject) * self.slowness


def test_a_network_against_itself_shows_the_machines_noise(searched):
    spec, study = searched
    run_finalists(wanting(spec, count=2, measure=True), study, Drifting(SETTING, noise=0.0))
    assert study.user_attrs["tadnn:check"]["against_itself"] == pytest.approx(10.0)


def test_what_the_model_was_fitted_on_is_not_measured(searched):
    spec, study = searched
    fastest = front_record(study)["members"][0]["trial"]
    key = resolve_trial(spec, fastest).net.key
    run_finalists(wanting(spec, count=2, measure=True), study, FakeClock(SETTING), [key])
    measured = {m["trial"] for m in front_record(study)["members"] if m["measured"]}
    assert len(measured) == 2
    assert fastest not in measured


def test_without_the_device_a_note_says_that_nothing_is_measured(searched):
    spec, study = searched
    (note,) = run_finalists(wanting(spec, count=2, measure=True), study, None)
    assert "predicted, not measured" in note
    assert not any(m["measured"] for m in front_record(study)["members"])


def test_no_finalists_are_wanted(searched):
    spec, study = searched
    recorder = Recorder()
    assert run_finalists(spec, study, FakeClock(SETTING), (), recorder) == []
    assert recorder.steps == {}


def test_training_is_done_once_and_again_where_weights_or_epochs_miss(searched):
    spec, study = searched
    spec = wanting(spec, count=1, epochs=1)
    recorder = Recorder()
    run_finalists(spec, study, None, (), recorder)
    ((label, epochs),) = recorder.steps.items()
    assert epochs == 1
    number = int(label.removeprefix("training finalist #"))
    facts = study.user_attrs[f"tadnn:finalist:{number}"]["trained"]
    assert (facts["epochs"], facts["split"]) == (1, "test")
    run_finalists(spec, study, None, (), Recorder(label))  # would be interrupted

    weights_path(spec, number).unlink()
    with pytest.raises(KeyboardInterrupt):
        run_finalists(spec, study, None, (), Recorder(label))
    run_finalists(spec, study, None)
    assert study.user_attrs[f"tadnn:finalist:{number}"]["trained"] == facts
    with pytest.raises(KeyboardInterrupt):
        run_finalists(wanting(spec, count=1, epochs=2), study, None, (), Recorder(label))


def test_the_trained_module_has_the_weights_that_were_kept(searched):
    spec, _ = searched
    net = resolve_trial(spec, 0).net
    assert trained_module(spec, 0, net) is None
    module = net.to_module(5)
    save_weights(module, weights_path(spec, 0))
    loaded = trained_module(spec, 0, net)
    assert not loaded.training
    inputs = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(loaded(inputs), module.eval()(inputs))
