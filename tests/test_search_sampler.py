from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from search_fakes import deep_space, make_evaluator, make_spec, small_space

from tadnn.search import DistinctSampler, Exhausted
from tadnn.search._genetic import ArchitectureCrossover, _dominates
from tadnn.search.ledger import Ledger
from tadnn.spaces import Categorical, Int, Space, union

SAMPLERS = ("random", "nsga2", "tpe", "gp", "frontier")
DIRECTIONS = ["minimize", "maximize"]


def ask(study, sampler):
    trial = study.ask()
    for name, distribution in sampler.distributions.items():
        if name in trial.relative_params:
            trial._suggest(name, distribution)
    return trial


def run(space, kind, n, seed=0, study=None):
    """Search with the sampler alone; two objectives over the positions of the values."""
    study = study or optuna.create_study(directions=DIRECTIONS)
    study.sampler = sampler = DistinctSampler(space, kind, seed)
    for _ in range(n):
        trial = ask(study, sampler)
        x = space.encode([trial.params])[0]
        study.tell(trial, [float(x.sum()), float((x**2).sum())])
    return study


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_space_of_64_gives_64_distinct_and_is_then_exhausted(kind):
    n = 64 if kind != "gp" else 14
    study = run(small_space(), kind, n)
    keys = {small_space().key(t.params) for t in study.trials}
    assert len(keys) == n
    if n == 64:
        with pytest.raises(Exhausted, match="64 architectures"):
            run(small_space(), kind, 1, study=study)


@pytest.mark.parametrize("kind", ["random", "nsga2", "tpe", "frontier"])
def test_parameters_are_the_architecture_and_nothing_else(kind):
    space = deep_space()
    for trial in run(space, kind, 60).trials:
        assert space.canonical(trial.params) == trial.params


@pytest.mark.parametrize("kind", ["random", "nsga2", "tpe", "frontier"])
def test_a_new_sampler_goes_on_where_the_old_one_stopped(kind):
    through = run(deep_space(), kind, 58)
    resumed = run(deep_space(), kind, 52)
    resumed = run(deep_space(), kind, 6, study=resumed)
    assert [t.params for t in resumed.trials] == [t.params for t in through.trials]
    other = run(deep_space(), kind, 58, seed=1)
    assert [t.params for t in other.trials] != [t.params for t in through.trials]


def test_random_draws_every_value_equally_often():
    space = Space("s", {"a": Int(1, 4), "b": Categorical(*range(1000))}, build=None)
    values = [t.params["a"] for t in run(space, "random", 400).trials]
    # Binomial(400, 1/4): 100 +- 4 sigma.
    assert all(65 <= values.count(v) <= 135 for v in (1, 2, 3, 4))


def test_running_and_failed_architectures_are_taken_too():
    space = small_space()
    study = optuna.create_study(directions=DIRECTIONS)
    study.sampler = sampler = DistinctSampler(space, "random", 0)
    for i in range(64):
        trial = ask(study, sampler)
        if i % 2:
            study.tell(trial, state=TrialState.FAIL)
    assert len({space.key(t.params) for t in study.trials}) == 64


def test_a_half_written_trial_keeps_its_choices_though_the_study_moved_on():
    space = deep_space()
    study = optuna.create_study(directions=DIRECTIONS)
    study.sampler = sampler = DistinctSampler(space, "random", 0)
    half = study.ask()
    for name in ("kernel", "depth"):
        half._suggest(name, sampler.distributions[name])
    kept = dict(half.params)
    study._storage.set_trial_state_values(half._trial_id, TrialState.WAITING)
    # Another seed stands for whatever changed the proposal.
    study.sampler = sampler = DistinctSampler(space, "random", 99)
    again = ask(study, sampler)
    assert again.number == half.number
    assert kept.items() <= again.params.items()
    assert space.canonical(again.params) == again.params


def test_enqueued_choices_are_honoured():
    space = deep_space()
    study = optuna.create_study(directions=DIRECTIONS)
    study.enqueue_trial({"depth": 1, "width1": 12})
    study.sampler = sampler = DistinctSampler(space, "random", 0)
    trial = ask(study, sampler)
    assert trial.params["depth"] == 1
    assert trial.params["width1"] == 12
    assert set(trial.params) == {"kernel", "depth", "width1"}


@pytest.mark.parametrize("kind", ["random", "nsga2", "tpe", "frontier"])
def test_fixed_choices_and_unions_are_searched(kind):
    fixed = deep_space().narrow({"kernel": 3, "depth": 1})
    assert {t.params["kernel"] for t in run(fixed, kind, 6).trials} == {3}
    both = union([small_space(), deep_space()])
    trials = run(both, kind, 70).trials
    assert {t.params["space"] for t in trials} == {"small", "deep"}
    assert len({both.key(t.params) for t in trials}) == 70


def test_nsga2_keeps_one_generation_per_fifty_completed():
    study = run(deep_space(), "nsga2", 120)
    generations = [t.system_attrs["NSGAIISampler:generation"] for t in study.trials]
    assert generations == [0] * 50 + [1] * 50 + [2] * 20


def crossed(parents, seed=0):
    study = optuna.create_study(directions=DIRECTIONS)
    crossover = ArchitectureCrossover(np.random.default_rng(seed))
    return crossover(study, {}, parents), crossover


def frozen(number, params, values, **constraints):
    distributions = {
        name: optuna.distributions.CategoricalDistribution((value,))
        for name, value in params.items()
    }
    return optuna.trial.create_trial(
        params=params,
        distributions=distributions,
        values=values,
        system_attrs={f"constraints:{k}": v for k, v in constraints.items()},
    )


def test_a_child_has_only_genes_of_its_parents_conditional_ones_too():
    a = frozen(0, {"depth": 1, "x": 1}, [0.0, 0.0])
    b = frozen(1, {"depth": 2, "x": 2, "deeper": 7}, [1.0, 1.0])
    b.number = 1
    _, crossover = crossed([a, b])
    rng = np.random.default_rng(0)
    children = [crossover.child(rng) for _ in range(300)]
    assert {c["x"] for c in children if "x" in c} == {1, 2}
    assert {c["deeper"] for c in children if "deeper" in c} == {7}
    # Each gene mutates, that is, goes missing, with probability 1/n.
    assert any("x" not in c for c in children)
    assert crossed([])[0] == {}


def test_the_smaller_violation_wins_then_dominance():
    directions = optuna.create_study(directions=DIRECTIONS).directions
    good = frozen(0, {"x": 1}, [1.0, 5.0], lat=-0.1)
    better = frozen(0, {"x": 1}, [1.0, 6.0], lat=-0.9)
    bad = frozen(0, {"x": 1}, [0.0, 9.0], lat=0.2)
    worse = frozen(0, {"x": 1}, [0.0, 9.9], lat=0.2, flops=0.1)
    assert _dominates(better, good, directions)
    assert not _dominates(good, better, directions)
    assert not _dominates(good, good, directions)
    assert _dominates(good, bad, directions)
    assert _dominates(bad, worse, directions)


def test_the_ledger_counts_in_steps_what_a_full_count_finds():
    space = small_space()
    study = optuna.create_study(directions=DIRECTIONS)
    study.sampler = sampler = DistinctSampler(space, "random", 0)
    ledger = Ledger(space)
    rng = np.random.default_rng(0)
    open_trials = []
    for _ in range(50):
        open_trials.append(ask(study, sampler))
        if rng.random() < 0.7:
            trial = open_trials.pop(int(rng.integers(len(open_trials))))
            if rng.random() < 0.8:
                study.tell(trial, [0.0, 0.0])
            else:
                study.tell(trial, state=TrialState.FAIL)
        ledger.refresh(study)
        fresh = Ledger(space)
        fresh.refresh(study)
        states = [t.state for t in study.trials]
        assert ledger.complete_count == fresh.complete_count == states.count(TrialState.COMPLETE)
        assert ledger.seen_count == fresh.seen_count == len(states)
        assert [t.number for t in ledger.running] == [t.number for t in fresh.running]


def test_nsga2_beats_random_on_a_conditional_space():
    """Crossover of whole architectures has to pay: more of the true front is found."""
    spec = make_spec(Path(), sampler="nsga2", trials=1)
    evaluator = make_evaluator(spec)
    space = deep_space()
    values = {space.key(a): evaluator.evaluate(a).values for a in space.enumerate()}
    from tadnn.pareto import hypervolume

    def found(kind, seed):
        study = optuna.create_study(directions=DIRECTIONS)
        study.sampler = sampler = DistinctSampler(space, kind, seed)
        for _ in range(150):
            trial = ask(study, sampler)
            study.tell(trial, values[space.key(trial.params)])
        points = [(t.values[0], -t.values[1]) for t in study.trials]
        return hypervolume(points, (3.0, 0.0))

    gains = [found("nsga2", seed) - found("random", seed) for seed in range(5)]
    assert np.mean(gains) > 0
