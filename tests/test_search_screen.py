from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from latency_fakes import INPUT, small_space, space_model
from search_fakes import FACTS, deep_space, make_evaluator, make_spec

from tadnn.cli.main import run
from tadnn.errors import RequestError, ShapeError, SpecError, UnknownName, WorkFailed
from tadnn.files import LATENCY_MODELS, write_json, write_text
from tadnn.latency import save_latency_model, score
from tadnn.pareto import front_mask
from tadnn.search import find_study, screen, search
from tadnn.search.seeds import read_seeds
from tadnn.spaces import Int, Space


def brute_force(archs, space, model):
    nets = [space.build(arch, INPUT) for arch in archs]
    latency = score(space, archs, model, input_shape=INPUT)
    points = np.array([(ms, -net.parameters) for ms, net in zip(latency, nets, strict=True)])
    return sorted(tuple(p) for p in points[front_mask(points)])


def test_the_front_is_that_of_everything_drawn():
    space, model = small_space(), space_model()
    found = screen(space, model, 300, input_shape=INPUT, seed=4)
    archs = space.sample(300, 4)
    assert found.count == 300
    assert found.points.shape == (300, 2)
    assert [(m["latency_ms"], -m["parameters"]) for m in found.members] == [
        pytest.approx(point) for point in brute_force(archs, space, model)
    ]
    first = found.members[0]
    assert space.build(first["arch"], INPUT).flops() == first["flops"]


def test_a_smaller_space_is_screened_whole():
    space = small_space().narrow({"width": 8, "kernel": 3})
    found = screen(space, space_model(), 10_000, proxy="flops", input_shape=INPUT)
    assert found.count == space.size() < 10_000


def test_what_cannot_be_built_is_counted_and_left_out():
    inner = small_space()

    def build(arch, shape, classes):
        if arch["odd"] == 3:
            raise ShapeError("three is too many")
        return inner.build({**inner.sample_one(np.random.default_rng(0))}, shape, classes)

    space = Space("some", {"odd": Int(1, 5)}, build)
    found = screen(space, space_model(), 99, input_shape=INPUT)
    assert (found.count, found.failed) == (4, 1)
    with pytest.raises(WorkFailed, match="none of 1"):
        screen(space.narrow({"odd": 3}), space_model(), 99, input_shape=INPUT)


def test_bad_requests():
    with pytest.raises(UnknownName, match="did you mean 'flops'"):
        screen(small_space(), space_model(), proxy="flop")
    with pytest.raises(RequestError, match="at least one"):
        screen(small_space(), space_model(), 0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_latency_model(space_model(), LATENCY_MODELS.local / "small")
    return tmp_path


def test_the_command_writes_what_a_study_starts_from(place, capsys):
    words = ["screen", "resnet", "--on", "small", "-n", "40", "--input", "1,16,16", "-o", "out"]
    assert run([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["count"] == 40
    assert set(record["files"]) == {"json", "csv", "png"}
    rows = list(csv.DictReader(io.StringIO((place / "out/front.csv").read_text())))
    assert [float(row["latency_ms"]) for row in rows] == [
        m["latency_ms"] for m in record["members"]
    ]
    from tadnn.spaces import load_space

    archs = [m["arch"] for m in record["members"]]
    assert read_seeds(place / "out/front.csv", load_space("resnet")) == archs
    assert read_seeds(place / "out/front.json", load_space("resnet")) == archs
    assert (place / "out/front.png").stat().st_size > 1000
    assert run(words) == 0
    assert f"{len(archs)} of 40 are on the front" in capsys.readouterr().out


def test_a_command_that_cannot_be_carried_out_leaves_nothing(place, capsys):
    for words, said in (
        (["screen", "resnett", "--on", "small"], "did you mean 'resnet'"),
        (["screen", "resnet", "--on", "smal"], "did you mean 'small'"),
        (["screen", "resnet", "--on", "small", "--proxy", "x"], "unknown free proxy 'x'"),
        (["screen", "resnet", "--on", "small", "-n", "0"], "-n"),
    ):
        assert run([*words, "-o", "out"]) == 2
        assert said in capsys.readouterr().err
    assert not (place / "out").exists()


SEEDS = [
    {"kernel": 3, "depth": 1, "width1": 12},
    {"kernel": 1, "depth": 2, "width1": 2, "width2": 4},
]


@pytest.mark.parametrize("sampler", ["random", "frontier", "nsga2"])
def test_a_study_evaluates_its_start_first_and_once(tmp_path, sampler):
    write_json(tmp_path / "start.json", [*SEEDS, SEEDS[0]])
    for trials in (1, 6):  # interrupted once
        spec = make_spec(tmp_path, sampler=sampler, trials=trials, start_from="start.json")
        search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    archs = [t.params for t in find_study(spec).trials]
    assert archs[:2] == SEEDS
    assert len({deep_space().key(arch) for arch in archs}) == len(archs) == 6


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "kernel,depth,width1\n4,1,12\n", "a.csv, line 2: kernel is one of 1, 3; got '4'"),
        ("a.csv", "kernel,depth\n3,1\n", "a.csv, line 2: an architecture of deep has a value for"),
        ("a.csv", "kernel,depth,width1\n", "at least one architecture"),
        ("a.json", '[{"kernel": 3}]', "a.json, entry 1: an architecture of deep has a value"),
        ("a.json", "[1]", "list of architectures"),
        ("a.json", "{", "a.json"),
        ("a.txt", "", r"a .csv or a .json file"),
        ("b.csv", None, "cannot read"),
    ],
)
def test_a_start_that_cannot_be_used_is_refused_before_the_study_begins(tmp_path, name, text, said):
    if text is not None:
        write_text(tmp_path / name, text)
    spec = make_spec(tmp_path, start_from=name)
    with pytest.raises(SpecError, match=said):
        search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    assert not (tmp_path / "study").exists()
