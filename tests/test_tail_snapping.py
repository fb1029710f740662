from __future__ import annotations

import functools
import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import optuna
import pytest
from latency_fakes import SETTING, rows
from search_fakes import deep_space, make_evaluator, make_spec, small_space

from tadnn.errors import ShapeError
from tadnn.latency import LatencyModel, fit_kernels, score
from tadnn.profiling import FAKE_DEVICE, FakeClock, kernel_pool
from tadnn.runtimes import find_runtime
from tadnn.search import DistinctSampler, Exhausted, front_record
from tadnn.search.runner import Worker
from tadnn.spaces import Categorical, Int, Space, load_space
from tadnn.tail import Snapper
from tadnn.tail.snapping import snapped

INPUT = (1, 16, 16)


def space() -> Space:
    narrowed = {"width": {"low": 8, "high": 64}, "depth": {"low": 1, "high": 2}, "block": "basic"}
    return load_space("resnet").narrow(narrowed)


@functools.cache
def model() -> LatencyModel:
    """A model of a device whose stairs are 16 channels long, known well."""
    clock = FakeClock(SETTING, replace(FAKE_DEVICE, bandwidth_gbps=1e5), noise=0.002)
    nets = [space().build(arch, INPUT, 10) for arch in space().sample(24, 3)]
    kernels = list(kernel_pool(nets, 1, "fp32", find_runtime("torch-eager")))
    return fit_kernels("stairs", [(clock.device, rows(clock, kernels))], SETTING)


def snapper(**changes) -> Snapper:
    return Snapper(space(), model(), input_shape=INPUT, classes=10, **changes)


def ms(arch) -> float:
    return float(score(space(), [arch], model(), 1, INPUT, classes=10)[0])


def test_snapping_leaves_points_of_the_space_and_moves_nothing_but_widths():
    snap = snapper().snap
    for arch in space().sample(6, 1):
        there = snap(arch)
        space().check(there)
        moved = {name for name in arch if arch[name] != there[name]}
        assert all(name.startswith("width") for name in moved)
        assert all(arch[name] / 2 <= there[name] <= 2 * arch[name] for name in moved)


def test_snapping_what_was_snapped_changes_nothing_and_is_deterministic():
    for arch in space().sample(4, 2):
        there = snapper().snap(arch)
        assert snapper().snap(arch) == there
        assert snapper().snap(there) == there


def test_what_is_wider_costs_no_more_than_the_noise():
    """A choice by itself: narrower saves time, wider is free."""
    for arch in space().sample(12, 3):
        keep = [name for name in arch if name != "width4"]
        there = snapper().snap(arch, keep)
        if there["width4"] > arch["width4"]:
            assert ms(there) <= 1.01 * ms(arch)
        elif there["width4"] < arch["width4"]:
            assert ms(there) < ms(arch)


class Blurred(Snapper):
    """Knows no difference better than to 5 us; a stair rises by 16, and 3 along a stair."""

    def _deviations_us(self, nets):
        return np.full((len(nets), len(nets)), 5.0)


def test_values_on_one_stair_move_to_its_end_or_to_the_one_below():
    arch = {**space().sample(1, 5)[0], "depth4": 1, "kernel4_1": 3, "width3": 64}
    arch = space().canonical({name: v for name, v in arch.items() if name != "kernel4_2"})
    keep = [name for name in arch if name != "width4"]
    blurred = Blurred(space(), model(), input_shape=INPUT, classes=10)
    ends = {v: blurred.snap({**arch, "width4": v}, keep)["width4"] for v in (24, 32, 40, 48, 56)}
    assert ends == {24: 32, 32: 32, 40: 48, 48: 48, 56: 64}, "two steps are more than nothing"


@pytest.mark.parametrize(
    ("latency", "noise", "at", "to"),
    [
        ([10, 10, 10, 14, 14, 14], 1, 0, 2),  # free, to the end of the stair
        ([10, 10, 10, 14, 14, 14], 1, 2, 2),  # an edge
        ([10, 10, 10, 14, 14, 14], 1, 3, 2),  # the edge below is nearer than the one above
        ([10, 10, 10, 14, 14, 14], 1, 4, 5),
        ([10, 11, 12, 13, 14, 15], 2.5, 2, 2),  # a slope: nothing is free
        ([10, 12, 11, 13, 14, 15], 2.5, 1, 2),  # wider is expected to be faster
    ],
)
def test_where_a_value_moves(latency, noise, at, to):
    deviation = np.full((6, 6), float(noise))
    assert snapped(np.array(latency, dtype=float), deviation, range(8, 49, 8), at) == to


def test_the_widest_of_some_values_is_no_edge():
    latency, deviation = np.array([10.0, 10.0, 10.0]), np.ones((3, 3))
    assert snapped(latency, deviation, [8, 16, 24], 0, whole=False) == 0
    assert snapped(latency, deviation, [8, 16, 24], 0) == 2


def test_choices_to_keep_stay():
    arch = {**space().sample(1, 5)[0], "width1": 24, "width2": 40, "width3": 56, "width4": 8}
    there = snapper().snap(arch, keep=("width2", "width3"))
    assert (there["width2"], there["width3"]) == (40, 56)


def test_choices_that_change_more_than_widths_stay():
    """Depths and kernels are whole numbers, too."""
    base = space()

    def build(arch, input_shape, classes):
        kernels = {f"kernel{s}_{i}": arch["size"] for s in (1, 2, 3, 4) for i in (1, 2)}
        return base.build({**base.sample(1, 0)[0], **kernels, "depth1": arch["deep"]}, INPUT, 10)

    choices = {"size": Int(3, 5, step=2), "deep": Int(1, 2)}
    other = Space("other", choices, build, default_input=INPUT, default_classes=10)
    for arch in other.enumerate():
        assert Snapper(other, model()).snap(arch) == arch


def test_architectures_that_cannot_be_built_are_left_to_their_trial():
    def build(arch, input_shape, classes):
        raise ShapeError("too wide")

    broken = Space("broken", {"width": Int(8, 64, step=8)}, build, INPUT, 10)
    assert Snapper(broken, model()).snap({"width": 24}) == {"width": 24}


# In a search.


def halved(arch, keep):
    """Snap to multiples of four, without a latency model."""
    up = {n: v if n in keep or "width" not in n else 4 * -(-v // 4) for n, v in arch.items()}
    return {**arch, **up}


def drawn(kind, n, study=None, snap=halved, made=small_space):
    study = study or optuna.create_study(directions=["minimize", "maximize"])
    study.sampler = sampler = DistinctSampler(made(), kind, 0, snap=snap)
    for _ in range(n):
        trial = study.ask()
        for name, distribution in sampler.distributions.items():
            if name in trial.relative_params:
                trial._suggest(name, distribution)
        x = made().encode([trial.params])[0]
        study.tell(trial, [float(x.sum()), float((x**2).sum())])
    return study


@pytest.mark.parametrize("kind", ["random", "nsga2", "tpe"])
def test_every_trial_has_a_snapped_architecture_of_its_own(kind):
    study = drawn(kind, 8)
    keys = {small_space().key(trial.params) for trial in study.trials}
    assert len(keys) == 8  # two values of four, three times
    assert all(v % 4 == 0 for trial in study.trials for v in trial.params.values())
    with pytest.raises(Exhausted, match="after snapping"):
        drawn(kind, 1, study)


@pytest.mark.parametrize("kind", ["random", "nsga2"])
def test_a_resumed_search_draws_what_an_undisturbed_one_does(kind):
    through, resumed = drawn(kind, 30, made=deep_space), drawn(kind, 21, made=deep_space)
    drawn(kind, 9, resumed, made=deep_space)
    assert [t.params for t in through.trials] == [t.params for t in resumed.trials]


def tail_aware(folder, trials, study, lock):
    spec = make_spec(folder, trials=trials, tail_aware=True)
    evaluator = make_evaluator(spec)
    evaluator.snap = halved
    study.set_user_attr("tadnn:spec", spec.canonical())
    Worker(study, evaluator, lock).run()
    return front_record(study)


def test_the_front_tells_how_many_networks_remained(tmp_path):
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.set_user_attr("tadnn:input_shape", [1, 8, 8])
    study.set_user_attr("tadnn:environment", {})
    record = tail_aware(tmp_path, 20, study, nullcontext())
    assert record["tail_aware"]["distinct"] == 20
    assert record["tail_aware"]["sampled"] > 20
    json.dumps(record)


def test_a_spec_without_the_key_is_what_it_was(tmp_path):
    assert "tail_aware" not in make_spec(tmp_path).canonical()
    assert make_spec(tmp_path, tail_aware=True).canonical()["tail_aware"] is True


def test_values_of_other_kinds_stay():
    mixed = Space(
        "mixed",
        {"width": Categorical(8, 24, 40)},
        lambda arch, shape, classes: space().build(
            {**space().sample(1, 0)[0], "width1": arch["width"]}, INPUT, 10
        ),
        INPUT,
        10,
    )
    for arch in mixed.enumerate():
        assert Snapper(mixed, model()).snap(arch) == arch


def test_latencies_are_the_models():
    arch = space().sample_one(np.random.default_rng(0))
    assert ms(arch) == pytest.approx(model().predict_net(space().build(arch, INPUT, 10)).latency_ms)
