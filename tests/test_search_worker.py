from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.trial import TrialState
from search_fakes import FACTS, FormulaJudge, FormulaPredictor, make_evaluator, make_spec

from tadnn.errors import DataError, ShapeError, WorkFailed
from tadnn.nets import Net
from tadnn.search import Evaluator, Worker, pack_net, search, unpack_net
from tadnn.search.objective import ERROR_ATTR, NET_ATTR, RESULT_ATTR
from tadnn.search.owner import WORKER_ATTR, Owner
from tadnn.search.runner import MAX_FAILURES_IN_A_ROW
from tadnn.search.taking import MAX_TAKEN
from tadnn.search.workers import Job, run_workers
from tadnn.spaces import Space


def new_study():
    return optuna.create_study(directions=["minimize", "maximize"])


def work(spec, study=None, **kwargs):
    study = study or new_study()
    return study, Worker(study, make_evaluator(spec, **kwargs), nullcontext()).run()


def spec_of(**changes):
    return make_spec(Path(), **changes)


def test_a_trial_stores_what_was_found_and_its_network():
    spec = spec_of(trials=3, constraints={"latency_ms": 0.5, "parameters": 1000.0})
    evaluator = make_evaluator(spec)
    study, ended = work(spec)
    assert (ended.why, ended.complete) == ("done", 3)
    for trial in study.trials:
        result = trial.user_attrs[RESULT_ATTR]
        net = evaluator.space.build(trial.params)
        assert result["key"] == evaluator.space.key(trial.params)
        assert result["arch"] == trial.params
        assert result["space"] == "deep"
        assert result["parameters"] == net.parameters
        assert result["flops"] == net.flops()
        assert result["memory_bytes"] == net.memory_bytes()
        assert result["trained"] is None
        latency = result["predicted"]["latency_ms"]
        assert trial.values == [latency, result["proxy"]["value"]]
        assert trial.constraints["latency_ms"] == pytest.approx(latency / 0.5 - 1)
        assert trial.constraints["parameters"] == pytest.approx(net.parameters / 1000 - 1)
        assert unpack_net(trial.user_attrs[NET_ATTR]) == net
        owner = Owner.of(trial.user_attrs)
        assert owner is not None
        assert owner.is_same(Owner.current())
        assert set(trial.user_attrs) == {WORKER_ATTR, RESULT_ATTR, NET_ATTR}


def test_objectives_are_what_they_say():
    spec = spec_of(objectives=["memory", "flops", "parameters"], trials=1)
    outcome = make_evaluator(spec).evaluate({"kernel": 3, "depth": 1, "width1": 4})
    net = make_evaluator(spec).space.build({"kernel": 3, "depth": 1, "width1": 4})
    assert outcome.values == (net.memory_bytes(), net.flops(), net.parameters)
    assert outcome.result["proxy"] is None
    assert isinstance(Net.from_json(net.to_json()), Net)
    assert pack_net(net) == pack_net(outcome.net)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_objective_that_is_not_finite_fails_the_trial_with_the_reason(value):
    study, ended = work(spec_of(trials=4), faults={2: value})
    assert ended.complete == 4
    assert [t.state for t in study.trials].count(TrialState.FAIL) == 1
    failed = study.trials[1]
    assert failed.state == TrialState.FAIL
    assert failed.user_attrs[ERROR_ATTR] == f"WorkFailed: accuracy must be finite; it is {value}"
    assert failed.number not in {t.number for t in study.best_trials}


def test_a_latency_that_is_not_finite_costs_no_accuracy():
    class Broken(FormulaPredictor):
        def predict_net(self, net, batch=1):
            prediction = super().predict_net(net, batch)
            return type(prediction)(float("nan"))

    spec = spec_of(trials=1)
    judge = FormulaJudge()
    with pytest.raises(WorkFailed, match="latency must be finite; it is nan"):
        Evaluator(spec, make_evaluator(spec).space, Broken(), judge).evaluate(
            {"kernel": 3, "depth": 1, "width1": 4}
        )
    assert judge.seen == []


def test_a_space_that_raises_for_some_architectures_fails_those_with_the_reason():
    good = make_evaluator(spec_of()).space

    def build(arch, input_shape, classes):
        if arch["depth"] == 2:
            raise ZeroDivisionError("no network of two layers")
        return good.build(arch, input_shape, classes)

    space = Space("deep", good.choices, build, good.default_input, good.default_classes)
    study = new_study()
    evaluator = Evaluator(spec_of(trials=20), space, FormulaPredictor(), FormulaJudge())
    Worker(study, evaluator, nullcontext()).run()
    failed = [t for t in study.trials if t.state == TrialState.FAIL]
    assert failed
    assert all(t.params["depth"] == 2 for t in failed)
    assert "ZeroDivisionError: no network of two layers" in failed[0].user_attrs[ERROR_ATTR]


def test_many_failures_in_a_row_end_the_search_with_the_last_reason():
    faults = {i: ShapeError(f"no fit {i}") for i in range(4, 99)}
    study = new_study()
    with pytest.raises(WorkFailed, match=r"20 architectures failed.*ShapeError: no fit 23"):
        work(spec_of(trials=50), study, faults=faults)
    states = [t.state for t in study.trials]
    assert states == [TrialState.COMPLETE] * 3 + [TrialState.FAIL] * MAX_FAILURES_IN_A_ROW


def test_what_is_no_architectures_fault_ends_the_search_and_fails_no_trial():
    study = new_study()
    with pytest.raises(DataError, match="unplugged"):
        work(spec_of(trials=9), study, faults={3: DataError("unplugged")})
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 2 + [TrialState.WAITING]


def test_ctrl_c_keeps_what_was_finished_and_gives_the_rest_back():
    study, through = new_study(), new_study()
    with pytest.raises(KeyboardInterrupt):
        work(spec_of(trials=6), study, faults={4: KeyboardInterrupt()})
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 3 + [TrialState.WAITING]
    work(spec_of(trials=6), study)
    work(spec_of(trials=6), through)
    assert [(t.params, t.values) for t in study.trials] == [
        (t.params, t.values) for t in through.trials
    ]


def test_an_exhausted_space_ends_the_search_without_an_error():
    study, ended = work(spec_of(trials=100), space="small")
    assert (ended.why, ended.complete) == ("exhausted", 64)
    assert len(study.trials) == 64
    assert work(spec_of(trials=100), study, space="small")[1] == ended


def test_more_trials_go_on_and_fewer_are_enough():
    study, _ = work(spec_of(trials=5))
    assert work(spec_of(trials=3), study)[1].complete == 5
    assert work(spec_of(trials=8), study)[1].complete == 8
    assert len(study.trials) == 8


def test_reports_follow_the_completed_trials():
    heard = []
    evaluator = make_evaluator(spec_of(trials=4))
    Worker(new_study(), evaluator, nullcontext(), on_change=heard.append).run()
    assert heard == [0, 1, 2, 3, 4]


def owned(study, owner, **params):
    """Leave a running trial behind as a worker of that owner would."""
    trial = study.ask()
    if owner is not None:
        trial.set_user_attr(WORKER_ATTR, owner.to_dict())
    return trial


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(process.pid).create_time()
    process.wait()
    return Owner(platform.node(), process.pid, started)


def reused_pid():
    """A living process, but not the one that took the trial: it started later."""
    parent = psutil.Process().parent()
    assert parent is not None
    return Owner(platform.node(), parent.pid, parent.create_time() - 1000)


@pytest.mark.parametrize("owner", [dead_process, reused_pid, lambda: None, Owner.current])
def test_a_dead_workers_trial_is_taken_up_under_its_own_number(owner):
    study = new_study()
    left = owned(study, owner())
    _, ended = work(spec_of(trials=3), study)
    assert ended.complete == 3
    assert [t.number for t in study.trials] == [0, 1, 2]
    taken = Owner.of(study.trials[left.number].user_attrs)
    assert taken is not None
    assert taken.is_same(Owner.current())


def test_a_living_workers_trial_is_left_alone():
    parent = psutil.Process().parent()
    assert parent is not None
    study = new_study()
    owned(study, Owner(platform.node(), parent.pid, parent.create_time()))
    worker = Worker(study, make_evaluator(spec_of(trials=1)), nullcontext())
    # One is wanted and one is running: there is nothing to take, but it may yet fail.
    assert worker._taker.take() is None
    assert study.trials[0].state == TrialState.RUNNING


def test_a_trial_of_another_machine_is_left_to_it():
    study = new_study()
    owned(study, Owner("another-machine", 1, 0.0))
    _, ended = work(spec_of(trials=2), study)
    assert (ended.why, ended.complete) == ("elsewhere", 1)
    assert study.trials[0].state == TrialState.RUNNING


def test_a_trial_that_kills_every_worker_is_given_up():
    study = new_study()
    owner = dead_process()
    owned(study, Owner(owner.host, owner.pid, owner.started, taken=MAX_TAKEN))
    work(spec_of(trials=2), study)
    assert study.trials[0].state == TrialState.FAIL
    assert study.trials[0].user_attrs[ERROR_ATTR] == f"its worker died {MAX_TAKEN} times"
    assert len(study.trials) == 3


def test_the_younger_of_two_equal_trials_fails_where_the_lock_does_not_reach():
    evaluator = make_evaluator(spec_of(trials=2))
    study = new_study()
    # What would be trial 1 here has been taken on another machine as trial 0.
    twin = new_study()
    Worker(twin, evaluator, nullcontext()).run()
    other = twin.trials[1]
    foreign = optuna.trial.create_trial(
        state=TrialState.RUNNING,
        params=other.params,
        distributions=other.distributions,
        user_attrs={WORKER_ATTR: Owner("another-machine", 1, 0.0).to_dict()},
    )
    study.add_trial(foreign)
    worker = Worker(study, evaluator, nullcontext(), shared=True)
    worker._taker.ledger.taken = lambda key, by_other_than: False
    ended = worker.run()
    assert ended.why == "elsewhere"
    duplicates = [t for t in study.trials if t.state == TrialState.FAIL]
    assert [t.user_attrs[ERROR_ATTR] for t in duplicates] == ["duplicate of trial 0"]
    assert duplicates[0].params == other.params


def test_two_workers_take_turns_and_never_take_the_same(tmp_path):
    changes = {"sampler": "nsga2", "trials": 16, "workers": 2}
    spec = make_spec(tmp_path, **changes)
    heard = []

    class Counting:
        def task(self, label, total):
            from contextlib import contextmanager

            @contextmanager
            def enter():
                assert (label, total) == ("search", 16)
                yield heard.append

            return enter()

    study, ended = search(
        spec,
        make_evaluator(spec),
        {"deep": "x"},
        FACTS,
        Counting(),
        "search_fakes:worker_evaluator",
    )
    assert (ended.why, ended.complete) == ("done", 16)
    assert sum(heard) == 16
    trials = study.trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 16
    assert len({t.user_attrs[RESULT_ATTR]["key"] for t in trials}) == 16
    assert len({t.user_attrs[WORKER_ATTR]["pid"] for t in trials}) == 2


def test_what_stops_a_worker_process_is_raised_as_what_it_was(tmp_path):
    spec = make_spec(tmp_path, trials=3, workers=2)
    job = Job.of(spec, None, "search_fakes:failing_evaluator")
    with pytest.raises(DataError, match="no such disc"):
        run_workers(job, 2, new_study(), make_evaluator(spec).space)
    job = Job.of(spec, None, "search_fakes:no_such_function")
    with pytest.raises(WorkFailed, match=r"all workers died; exit code 1: (?s:.*)no_such_function"):
        run_workers(job, 1, new_study(), make_evaluator(spec).space)


def test_a_space_of_one_architecture_gives_one_trial():
    deep = make_evaluator(spec_of()).space
    space = deep.narrow({"kernel": 3, "depth": 1, "width1": 4})
    study = new_study()
    evaluator = Evaluator(spec_of(trials=5), space, FormulaPredictor(), FormulaJudge())
    ended = Worker(study, evaluator, nullcontext()).run()
    assert (ended.why, ended.complete) == ("exhausted", 1)
    assert study.trials[0].params == {"kernel": 3, "depth": 1, "width1": 4}
