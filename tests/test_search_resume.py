from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.trial import TrialState
from search_fakes import FACTS, make_evaluator, make_spec

from tadnn.search import Worker, find_study, search
from tadnn.search.owner import WORKER_ATTR

TESTS = Path(__file__).parent
CONSTRAINTS = {"latency_ms": 1.0}


def run(spec, pause_s=0.0, **kwargs):
    evaluator = make_evaluator(spec, pause_s=pause_s, **kwargs)
    setup = "search_fakes:worker_evaluator"
    return search(spec, evaluator, {"deep": "x"}, FACTS, setup=setup)


def facts(study):
    """What must not depend on interruptions."""
    return [
        (t.number, t.state, t.params, t.values, t.constraints, t.user_attrs.get("tadnn:result"))
        for t in study.get_trials(deepcopy=False)
    ]


def completed(database):
    """Count completed trials without disturbing the search."""
    if not database.exists():
        return 0
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        query = "SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'"
        return connection.execute(query).fetchone()[0]
    except sqlite3.OperationalError:  # the tables are being made
        return 0
    finally:
        connection.close()


def kill_in_the_middle(folder, at, pause_s=0.01, **changes):
    """Start a search in its own process group and SIGKILL the group after ``at`` trials."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        "TADNN_TEST_PAUSE": str(pause_s),
    }
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "search_killed.py"), str(folder), json.dumps(changes)],
        start_new_session=True,
        env=environment,
        stderr=subprocess.PIPE,
    )
    try:
        database = folder / "study" / "study.db"
        while completed(database) < at:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.01)
        children = psutil.Process(process.pid).children()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    psutil.wait_procs(children, timeout=10)
    return children


@pytest.mark.parametrize(
    ("sampler", "trials", "kills"),
    [
        ("random", 24, (3, 11)),
        ("nsga2", 62, (52,)),
        ("tpe", 26, (14,)),
        ("frontier", 26, (6, 14)),
    ],
)
def test_a_killed_one_worker_search_ends_as_an_undisturbed_one(tmp_path, sampler, trials, kills):
    changes = {"sampler": sampler, "trials": trials, "constraints": CONSTRAINTS}
    (tmp_path / "through").mkdir()
    undisturbed, _ = run(make_spec(tmp_path / "through", **changes))
    for at in kills:
        kill_in_the_middle(tmp_path, at, **changes)
    spec = make_spec(tmp_path, **changes)
    assert 0 < len(find_study(spec).get_trials(states=[TrialState.COMPLETE])) < trials
    resumed, ended = run(spec)
    assert ended.why == "done"
    assert len(facts(resumed)) == trials
    assert facts(resumed) == facts(undisturbed)


def ended_well(study, trials):
    """Every trial ended, as many as wanted completed, no architecture twice."""
    everything = study.get_trials(deepcopy=False)
    assert {t.state for t in everything} <= {TrialState.COMPLETE, TrialState.FAIL}
    done = [t for t in everything if t.state == TrialState.COMPLETE]
    assert len(done) == trials
    assert len({t.user_attrs["tadnn:result"]["key"] for t in done}) == trials
    assert all(t.params == t.user_attrs["tadnn:result"]["arch"] for t in done)


@pytest.mark.parametrize("sampler", ["nsga2"])
def test_several_killed_workers_leave_nothing_undone(tmp_path, sampler):
    changes = {"sampler": sampler, "trials": 30, "workers": 3, "constraints": CONSTRAINTS}
    children = kill_in_the_middle(tmp_path, 8, **changes)
    assert len(children) == 3
    assert not any(child.is_running() for child in children)
    spec = make_spec(tmp_path, **{**changes, "workers": 2})
    assert any(t.state == TrialState.RUNNING for t in find_study(spec).trials)
    study, ended = run(spec)
    assert ended.why == "done"
    ended_well(study, 30)
    owners = {t.user_attrs[WORKER_ATTR]["pid"] for t in study.trials}
    assert len(owners) > 3


def test_workers_die_with_a_parent_that_is_killed_alone(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        "TADNN_TEST_PAUSE": "0.05",
    }
    changes = json.dumps({"trials": 400, "workers": 2})
    parent = subprocess.Popen(
        [sys.executable, str(TESTS / "search_killed.py"), str(tmp_path), changes],
        env=environment,
    )
    try:
        while completed(tmp_path / "study" / "study.db") < 2:
            assert parent.poll() is None
            time.sleep(0.02)
        children = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert len(gone) == 2
    assert not alive


class Crash(BaseException):
    """Stands in for SIGKILL: the worker ends there and then."""


def crash_at(monkeypatch, study, write):
    """Let the storage's write of that number, counted from now, be the last one."""
    count = 0
    storage = study._storage

    def crashing(method):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count > write:
                raise Crash
            return method(*args, **kwargs)

        return call

    for name in (
        "create_new_trial",
        "set_trial_param",
        "set_trial_user_attr",
        "set_trial_system_attr",
        "set_trial_state_values",
        "set_study_system_attr",
    ):
        monkeypatch.setattr(storage, name, crashing(getattr(storage, name)))
    return lambda: count


@pytest.mark.parametrize(("sampler", "before"), [("random", 3), ("nsga2", 50), ("tpe", 12)])
def test_a_crash_after_any_write_changes_nothing(monkeypatch, sampler, before):
    """Every write of one trial is once the last one before the worker dies."""
    spec = make_spec(Path(), sampler=sampler, trials=before + 3, constraints=CONSTRAINTS)

    def worker(study, trials):
        with_trials = spec.model_copy(update={"trials": trials})
        return Worker(study, make_evaluator(with_trials), nullcontext())

    undisturbed = optuna.create_study(directions=["minimize", "maximize"])
    worker(undisturbed, before + 3).run()
    begun = optuna.create_study(directions=["minimize", "maximize"])
    worker(begun, before).run()

    write = 0
    while True:
        study = optuna.create_study(directions=["minimize", "maximize"])
        study.add_trials(begun.trials)
        with monkeypatch.context() as patch:
            count = crash_at(patch, study, write)
            try:
                worker(study, before + 1).run()
            except Crash:
                pass
        if count() <= write:
            break
        worker(study, before + 3).run()
        assert facts(study) == facts(undisturbed), f"crash after write {write}"
        write += 1
    # ask, owner, depth, kernel, a width, result, net, constraint, state
    assert write >= 9
