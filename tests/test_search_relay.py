"""Studies of stages in their storage: promoted, stopped early, killed, resumed, by several."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext

import optuna
import pytest
from optuna.trial import TrialState
from search_fakes import FakeTime, make_evaluator, make_spec
from test_search_resume import Crash, crash_at, kill_in_the_middle, run

from tadnn.errors import WorkFailed
from tadnn.search import Worker, find_study, front_record, study_progress, trial_records
from tadnn.search.entrants import PROMOTED_ATTR, STAGE_ATTR
from tadnn.search.front import infeasible_warning
from tadnn.search.run import budget_note

STAGES = [
    {"proxy": "naswot", "keep": 0.25},
    {"train": {"epochs": 2}, "keep": 0.5},
    {"train": {"epochs": 10}},
]
CHANGES = {"accuracy": None, "stages": STAGES, "sampler": "random", "trials": 16}


def spec_of(folder, **changes):
    return make_spec(folder, **{**CHANGES, **changes})


def work(spec, study=None, **kwargs):
    if study is None:
        study = optuna.create_study(directions=["minimize", "maximize"])
    return study, Worker(study, make_evaluator(spec, **kwargs), nullcontext()).run()


def facts(study):
    """What must not depend on interruptions: everything but seconds and owners."""
    return [
        (
            t.number,
            t.state,
            t.params,
            t.values if t.state == TrialState.COMPLETE else None,
            t.user_attrs.get("tadnn:result"),
            t.user_attrs.get(PROMOTED_ATTR),
            {
                key: {k: v for k, v in record.items() if k != "seconds"}
                for key, record in t.user_attrs.items()
                if key.startswith(STAGE_ATTR)
            },
        )
        for t in study.get_trials(deepcopy=False)
    ]


def stages_of(trial):
    return {int(k.removeprefix(STAGE_ATTR)) for k in trial.user_attrs if k.startswith(STAGE_ATTR)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of stages that went through: its spec and itself."""
    spec = spec_of(tmp_path_factory.mktemp("stages"), sampler="frontier", trials=24)
    study, ended = run(spec)
    assert (ended.why, ended.complete) == ("done", 24)
    return spec, study


def test_every_stage_passes_on_its_share_and_stops_the_others_early(finished):
    _, study = finished
    through = Counter(max(stages_of(trial)) for trial in study.trials)
    assert through == {0: 18, 1: 3, 2: 3}  # 24; a quarter is 6; half of them 3
    for trial in study.trials:
        last = max(stages_of(trial)) == 2
        assert trial.state == (TrialState.COMPLETE if last else TrialState.PRUNED)
        assert (trial.values is not None) == last
        assert all(f"{STAGE_ATTR}{i}" in trial.user_attrs for i in range(max(stages_of(trial))))


def test_the_front_holds_only_trials_that_ended_the_last_stage(finished):
    _, study = finished
    record = front_record(study)
    complete = {t.number for t in study.trials if t.state == TrialState.COMPLETE}
    assert record["members"]
    assert {m["trial"] for m in record["members"]} <= complete
    assert {t.number for t in study.best_trials} == {m["trial"] for m in record["members"]}
    assert {r["trial"] for r in trial_records(study)} == complete
    for member in record["members"]:
        assert member["trained"]["epochs"] == 10
        assert member["proxy"] is None
    assert [(s.get("proxy"), s.get("epochs"), s["trials"]) for s in record["stages"]] == [
        ("naswot", None, 24), (None, 2, 6), (None, 10, 3),
    ]  # fmt: skip
    assert "budget" not in record
    assert study_progress(study)["completed"] == 24


def test_a_front_of_infeasible_trials_shows_the_nearest(tmp_path):
    study, _ = run(spec_of(tmp_path, constraints={"latency_ms": 1e-3}))
    record = front_record(study)
    assert record["members"] == []
    assert {t.state for t in study.trials} == {TrialState.PRUNED}
    assert all(stages_of(t) == {0} for t in study.trials)  # no training was spent on them
    assert "latency_ms" in infeasible_warning(record)


@pytest.mark.parametrize(("sampler", "trials"), [("random", 20), ("frontier", 40)])
def test_a_search_killed_in_a_stage_promotes_the_same(tmp_path, sampler, trials):
    changes = {**CHANGES, "sampler": sampler, "trials": trials}
    (tmp_path / "through").mkdir()
    undisturbed, _ = run(make_spec(tmp_path / "through", **changes))
    # Most of the time goes into trainings, so that is where it is killed.
    kill_in_the_middle(tmp_path, 1, pause_s=0.02, **changes)
    spec = make_spec(tmp_path, **changes)
    begun = find_study(spec)
    assert any(t.state == TrialState.WAITING for t in begun.trials)
    resumed, ended = run(spec)
    assert ended.why == "done"
    assert facts(resumed) == facts(undisturbed)


def test_a_crash_after_any_write_of_a_promoted_trial_changes_nothing(monkeypatch, tmp_path):
    spec = spec_of(tmp_path, trials=8)
    undisturbed, _ = work(spec)
    writes = 0
    while True:
        study = optuna.create_study(directions=["minimize", "maximize"])
        with monkeypatch.context() as patch:
            count = crash_at(patch, study, writes)
            try:
                work(spec, study)
            except Crash:
                pass
        if count() <= writes:
            break
        work(spec, study)
        assert facts(study) == facts(undisturbed), f"crash after write {writes}"
        writes += 1
    assert writes > 60  # eight proxies, two short trainings, one longer, and the stops


def test_ctrl_c_in_a_training_gives_the_trial_back(tmp_path):
    spec = spec_of(tmp_path, trials=8)
    undisturbed, _ = work(spec)
    study = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(KeyboardInterrupt):
        work(spec, study, later_faults={2: KeyboardInterrupt()})
    assert any(PROMOTED_ATTR in t.user_attrs for t in study.trials)
    work(spec, study)
    assert facts(study) == facts(undisturbed)


def test_a_training_that_fails_is_paid_for_and_never_on_the_front(tmp_path, clock):
    study, ended = work(spec_of(tmp_path), **clock, later_faults={1: WorkFailed("the loss is nan")})
    assert (ended.why, ended.complete) == ("done", 16)
    failed = [t for t in study.trials if t.state == TrialState.FAIL]
    assert failed
    for trial in failed:
        record = trial.user_attrs[f"{STAGE_ATTR}{trial.user_attrs[PROMOTED_ATTR]}"]
        assert record["values"] is None
        assert record["seconds"] in (2.0, 10.0)
        assert "the loss is nan" in trial.user_attrs["tadnn:error"]


@pytest.mark.parametrize("killed", [False, True])
def test_several_workers_never_train_a_trial_twice(tmp_path, monkeypatch, killed):
    log = tmp_path / "trained"
    monkeypatch.setenv("TADNN_TEST_LOG", str(log))
    monkeypatch.setenv("TADNN_TEST_PAUSE", "0.01")
    changes = {**CHANGES, "trials": 24, "workers": 2}
    if killed:
        kill_in_the_middle(tmp_path, 1, pause_s=0.01, **changes)
    study, ended = run(make_spec(tmp_path, **changes))
    assert (ended.why, ended.complete) == ("done", 24)
    trained = [tuple(line.split()) for line in log.read_text().splitlines()]
    if not killed:  # a training that was killed with its worker is done again
        assert len(trained) == len(set(trained))
    through = Counter(stage for trial in study.trials for stage in stages_of(trial))
    assert through == {0: 24, 1: 6, 2: 3}
    assert {t.state for t in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}


def spent(study):
    return sum(
        t.user_attrs[key].get("seconds", 0.0)
        for t in study.trials
        for key in t.user_attrs
        if key.startswith(STAGE_ATTR)
    )


@pytest.fixture
def clock(monkeypatch):
    """A second an epoch, for whoever is given it: 2 a short training, 10 a longer one."""
    fake = FakeTime()
    monkeypatch.setattr("tadnn.search.runner.monotonic", fake)
    return {"clock": fake, "pause_s": 1.0}


def test_a_budget_is_counted_over_resumes_and_a_larger_one_goes_on(tmp_path, clock):
    small = {"budget": {"train_minutes": 25 / 60}, "trials": 60}
    study, ended = run(spec_of(tmp_path, **small), **clock)
    assert ended.why == "budget"
    # Four short ones (8) before two of them may go on; the first (18); then the second has no
    # room, and three more short ones (24) have: one of them is the quota's, the others not.
    through = Counter(stage for trial in study.trials for stage in stages_of(trial))
    assert through[2] == 1
    assert spent(study) == 2 * through[1] + 10
    assert spent(study) <= 25
    record = front_record(study)
    assert record["budget"] == {
        "train_minutes": 25 / 60,
        "spent_minutes": round(spent(study) / 60, 3),
    }
    before = facts(study)
    again, ended = run(spec_of(tmp_path, **small), **clock)
    assert ended.why == "budget"
    assert facts(again) == before
    note = budget_note(spec_of(tmp_path, **small), study)
    assert "minutes of training is used up" in note
    assert "too small" not in note
    larger = {**small, "budget": {"train_minutes": 10.0}}
    study, ended = run(spec_of(tmp_path, **larger), **clock)
    assert (ended.why, ended.complete) == ("done", 60)
    assert not any(t.state == TrialState.WAITING for t in study.trials)
    through = Counter(stage for trial in study.trials for stage in stages_of(trial))
    assert through == {0: 60, 1: 15, 2: 8}


def test_a_budget_too_small_for_one_training_is_said_with_the_figure(tmp_path, clock):
    spec = spec_of(tmp_path, budget={"train_minutes": 6 / 60})
    study, ended = run(spec, **clock)
    assert ended.why == "budget"
    assert front_record(study)["members"] == []
    note = budget_note(spec, study)
    assert "the budget of 0.1 minutes of training is used up: " in note
    assert "It is too small: no trial ended a training of 10 epochs, so the front is empty" in note
    assert re.search(r"trial \d+, takes about 0\.\d+ minutes to get there, and 0\.0\d+ min", note)


def test_accuracy_by_training_with_a_budget(tmp_path, clock):
    changes = {
        "accuracy": {"train": {"epochs": 2}},
        "stages": None,
        "sampler": "nsga2",
        "budget": {"train_minutes": 9 / 60},
        "trials": 200,
    }
    study, ended = run(spec_of(tmp_path, **changes), **clock)
    assert ended.why == "budget"
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 4
    assert front_record(study)["stages"] == [{"epochs": 2, "trials": 4, "seconds": 8.0}]


def test_seeds_go_through_the_first_stage_first(tmp_path):
    (tmp_path / "seeds.csv").write_text("kernel,depth,width1\n3,1,12\n1,1,2\n")
    study, _ = run(spec_of(tmp_path, start_from="seeds.csv", sampler="frontier"))
    assert [t.params["width1"] for t in study.trials[:2]] == [12, 2]
    assert len(study.trials) == 16
