from __future__ import annotations

import logging
import math

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from search_fakes import FACTS, deep_space, make_evaluator, make_spec, small_space

from tadnn.errors import RequestError
from tadnn.pareto import hypervolume
from tadnn.search import Exhausted, FrontierSampler, search

optuna.logging.set_verbosity(optuna.logging.ERROR)
TWO = ["minimize", "minimize"]


def wavy(trial):
    x, n = trial.suggest_float("x", 0, 5), trial.suggest_int("n", 1, 4)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    if kind == "b":
        trial.suggest_float("only_b", 1e-3, 1, log=True)
    return 4 * x * x + n, (x - 5) ** 2 + (kind == "b")


def run(objective, n, directions=TWO, study=None, catch=(), **options):
    study = study or optuna.create_study(directions=directions)
    study.sampler = FrontierSampler(**options)
    study.optimize(objective, n, catch=catch)
    return study


def grid():
    return [{"a": a, "b": b} for a in range(5) for b in range(4)]


def on_grid(trial):
    a, b = trial.suggest_int("a", 0, 4), trial.suggest_categorical("b", [0, 1, 2, 3])
    return a + 0.1 * b, -a * b


def test_a_resumed_study_goes_through_the_trials_of_an_undisturbed_one():
    through = run(wavy, 16, seed=3)
    resumed = run(wavy, 7, seed=3)
    resumed = run(wavy, 9, study=resumed, seed=3)
    assert [t.params for t in resumed.trials] == [t.params for t in through.trials]
    assert [t.params for t in run(wavy, 16, seed=4).trials] != [t.params for t in through.trials]


def test_it_finds_more_of_the_front_than_random_search():
    def found(study):
        return hypervolume([t.values for t in study.trials], [100.0, 30.0])

    for seed in range(2):
        random = optuna.create_study(directions=TWO, sampler=optuna.samplers.RandomSampler(seed))
        random.optimize(wavy, 25)
        assert found(run(wavy, 25, seed=seed)) > found(random)


def test_one_objective_is_minimised_or_maximised():
    def bowl(trial):
        return (trial.suggest_float("x", -3, 3) - 1.5) ** 2

    assert run(bowl, 22, ["minimize"]).best_params["x"] == pytest.approx(1.5, abs=0.1)
    upside = run(lambda trial: -bowl(trial), 22, ["maximize"])
    assert upside.best_params["x"] == pytest.approx(1.5, abs=0.1)


def test_a_pool_is_gone_through_once_then_the_study_stops_and_says_so(caplog):
    study = run(on_grid, 50, pool=grid())
    assert len({tuple(sorted(t.params.items())) for t in study.trials}) == 20
    assert len(study.trials) == 20
    assert "every point was taken up" in caplog.text
    with pytest.raises(Exhausted, match="20 points"):
        study.ask().suggest_int("a", 0, 4)


def test_a_space_of_one_and_a_small_space_stop_too():
    assert len(run(lambda t: t.suggest_int("a", 4, 4), 9, ["minimize"]).trials) == 1
    study = run(lambda t: (t.suggest_int("a", 0, 4) - 2) ** 2, 99, ["minimize"])
    assert sorted(t.params["a"] for t in study.trials) == [0, 1, 2, 3, 4]


def test_known_objectives_and_constraints_are_asked_before_anything_is_spent():
    asked = []

    def known(points):
        asked.append(len(points))
        return [p["a"] + 0.1 * p["b"] for p in points]

    study = run(
        on_grid,
        12,
        pool=grid(),
        known={0: known},
        constraints=[lambda points: [p["a"] + p["b"] - 4 for p in points]],
    )
    # 10 + 4 points meet a + b <= 4; all 12 trials are among them.
    assert all(t.params["a"] + t.params["b"] <= 4 for t in study.trials)
    assert asked == [20]  # once for all, in one batch


def test_a_maximised_known_objective_keeps_its_direction():
    study = run(
        lambda t: (t.suggest_int("a", 0, 30), t.suggest_int("b", 0, 30)),
        20,
        ["maximize", "minimize"],
        known={
            0: lambda points: [p["a"] for p in points],
            1: lambda points: [p["b"] for p in points],
        },
        startup=2,
    )
    # Both objectives are known: after the start, the best point there is comes next.
    assert {"a": 30, "b": 0} in [t.params for t in study.trials]


def test_where_nothing_is_feasible_it_says_so_and_goes_towards_feasibility(caplog):
    study = run(on_grid, 3, pool=grid(), constraints=[lambda ps: [p["a"] + 1.0 for p in ps]])
    assert [t.params["a"] for t in study.trials] == [0, 0, 0]
    assert "no candidate meets the constraints" in caplog.text


def test_running_trials_send_others_elsewhere():
    study = run(wavy, 12)
    study.sampler = FrontierSampler()
    batch = [study.ask() for _ in range(4)]
    xs = sorted(trial.suggest_float("x", 0, 5) for trial in batch)
    assert min(np.diff(xs)) > 0.1


def awkward(trial):
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    if y < 0.2:
        return math.nan, 1.0
    if y < 0.3:
        return math.inf, 1.0
    if y < 0.4:
        return 1.0
    if y < 0.5:
        raise ValueError("no")
    return x, (1 - x) ** 2 + y


def test_failures_of_every_kind_are_learned_from():
    trials = run(awkward, 40, catch=(ValueError,)).trials
    good = [t.state == TrialState.COMPLETE and all(map(math.isfinite, t.values)) for t in trials]
    assert len({tuple(t.params.values()) for t in trials}) == 40
    # The best values lie right beside what fails; still, most of what follows works.
    assert sum(good[20:]) >= 6


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (lambda t: (0.0 * t.suggest_float("x", 0, 1), 1.0), "constant"),
        (lambda t: (math.inf + t.suggest_float("x", 0, 1), 1.0), "too few to learn from"),
    ],
)
def test_what_cannot_be_learned_is_said_and_the_space_filled(objective, words, caplog):
    with caplog.at_level(logging.WARNING):
        study = run(objective, 12)
    assert caplog.text.count(words) == 1
    xs = sorted(t.params["x"] for t in study.trials)
    assert max(np.diff([0.0, *xs, 1.0])) < 0.4


def test_bad_requests():
    with pytest.raises(RequestError, match="pool or a space"):
        FrontierSampler(pool=grid(), space=small_space())
    with pytest.raises(RequestError, match="at least one point"):
        FrontierSampler(pool=[])
    with pytest.raises(RequestError, match="1 of 21 are repeated"):
        FrontierSampler(pool=[*grid(), grid()[0]])
    with pytest.raises(RequestError, match="startup"):
        FrontierSampler(startup=0)
    with pytest.raises(RequestError, match="seed"):
        FrontierSampler(seed=-1)
    with pytest.raises(RequestError, match="numbered from 0 to 1; got 2"):
        run(on_grid, 1, pool=grid(), known={2: len})
    with pytest.raises(RequestError, match="no parameter 'c'"):
        run(lambda t: t.suggest_float("c", 0, 1), 1, ["minimize"], pool=grid())


def test_a_tadnn_space_gives_whole_architectures():
    space = deep_space()

    def objective(trial):
        kernel, depth = (
            trial.suggest_categorical("kernel", [1, 3]),
            trial.suggest_int("depth", 1, 3),
        )
        widths = [trial.suggest_int(f"width{i}", 2, 12, step=2) for i in range(1, depth + 1)]
        return sum(widths), -kernel * sum(widths)

    for trial in run(objective, 14, space=space).trials:
        assert space.canonical(trial.params) == trial.params


def test_in_a_study_latency_is_known_and_constraints_are_kept(tmp_path):
    limits = {"latency_ms": 1.0, "parameters": 900}
    spec = make_spec(tmp_path, sampler="frontier", trials=14, constraints=limits)
    study, ended = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    assert ended.complete == 14
    assert all(v <= 0 for t in study.trials for v in t.constraints.values())


def test_workers_share_a_study(tmp_path, monkeypatch):
    spec = make_spec(tmp_path, sampler="frontier", trials=14, workers=2)
    setup = "search_fakes:worker_evaluator"
    study, ended = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS, setup=setup)
    assert ended.complete >= 14
    keys = [t.user_attrs["tadnn:result"]["key"] for t in study.trials if t.values]
    assert len(set(keys)) == len(keys)
