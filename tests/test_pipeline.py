"""Whole searches, from the YAML to the front: tiny, on a clock that computes its times."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path

import pytest
from optuna.trial import TrialState
from studies_examples import (
    BUDGET,
    OVERRIDES,
    Recorder,
    finished,
    profiled,
    run,
    trial_facts,
    write_space,
    write_study,
)

from tadnn.errors import RequestError, SettingMismatch, StudyMismatch
from tadnn.files import LATENCY_MODELS, read_json
from tadnn.latency import load_latency_model
from tadnn.profiling import FAKE_DEVICE, FakeClock, NetRun
from tadnn.runtimes import Setting
from tadnn.search import (
    export_request,
    find_study,
    frozen_model,
    knee_trial,
    learn_space,
    load_spec,
    parse_spec,
    resolve_target,
    run_search,
)
from tadnn.search.learned import study_setting
from tadnn.search.target import resolve_trial

# JSON has one kind of number: a whole one may stand for a float.
NUMBER = (int, float)
RECORD = {
    "study": str,
    "latency_model": str,
    "device": str,
    "runtime": str,
    "dtype": str,
    "threads": int,
    "batch": int,
    "input_shape": list,
    "environment": dict,
    "objectives": list,
    "hypervolume": NUMBER,
    "reference": list,
    "members": list,
}
MEMBER = {
    "trial": int,
    "key": str,
    "arch": dict,
    "parameters": int,
    "flops": int,
    "memory_bytes": int,
    "predicted": dict,
    "proxy": dict,
    "trained": (dict, type(None)),
    "measured": (dict, type(None)),
}
PARTS = {
    "predicted": {"latency_ms": NUMBER, "std_ms": NUMBER, "in_range": bool},
    "proxy": {"name": str, "value": NUMBER},
    "trained": {"accuracy": NUMBER, "epochs": int, "split": str},
    "measured": {"latency_ms": NUMBER, "spread_ms": NUMBER, "repeats": int},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished study: its folder, spec and result; leave it as it is."""
    folder = tmp_path_factory.mktemp("whole")
    with finished(folder) as (spec, result):
        return folder, spec, result


@pytest.fixture
def again(whole, tmp_path, monkeypatch):
    """A copy of the finished study, to go on with; the working directory."""
    folder = tmp_path / "again"
    shutil.copytree(whole[0], folder)
    monkeypatch.chdir(folder)
    return folder


def fits(record, schema):
    assert list(record) == list(schema)
    for key, kinds in schema.items():
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        assert type(record[key]) in kinds, key


def finalists_of(record):
    return [m for m in record["members"] if m["measured"]]


def test_a_whole_search_on_onnxruntime(tmp_path):
    """Kernels are observed in networks; finalists are measured in the same runtime."""
    with finished(tmp_path, runtime="onnxruntime") as (_, result):
        model = load_latency_model("auto-tiny")
        assert model.setting == Setting("onnxruntime", threads=1)
        assert {"conv2d", "permute", "linear"} <= set(model.ops)
        assert result.record["runtime"] == "onnxruntime"
        assert finalists_of(result.record)
        for member in finalists_of(result.record):
            predicted, measured = (member[k]["latency_ms"] for k in ("predicted", "measured"))
            assert predicted == pytest.approx(measured, rel=0.25)


def test_front_json_has_the_contracts_keys_and_types(whole):
    folder, _, result = whole
    record = read_json(folder / "studies" / "tiny" / "front.json")
    assert record == result.record
    fits(record, RECORD)
    for member in record["members"]:
        fits(member, MEMBER)
        for part, schema in PARTS.items():
            if member[part] is not None:
                fits(member[part], schema)
    assert record["study"] == "tiny"
    assert (record["latency_model"], record["device"]) == ("auto-tiny", FAKE_DEVICE.slug)
    assert (record["runtime"], record["dtype"], record["threads"]) == ("torch-eager", "fp32", 1)
    assert (record["batch"], record["input_shape"]) == (1, [1, 16, 16])
    assert record["objectives"] == ["latency", "accuracy"]
    assert {type(v) for v in record["environment"].values()} == {str}
    assert record["hypervolume"] > 0


def test_the_front_is_what_no_other_trial_beats(whole):
    _, spec, result = whole
    trials = find_study(spec).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 12
    assert len({t.user_attrs["tadnn:result"]["key"] for t in trials}) == 12

    def beats(a, b):
        return a[0] <= b[0] and a[1] >= b[1] and a != b

    best = {t.number for t in trials if not any(beats(o.values, t.values) for o in trials)}
    assert {m["trial"] for m in result.record["members"]} == best
    latencies = [m["predicted"]["latency_ms"] for m in result.record["members"]]
    assert latencies == sorted(latencies)
    assert len(best) > 3  # else the choice of finalists below is none


def test_finalists_are_trained_and_measured_and_nothing_else_is(whole):
    folder, spec, result = whole
    finalists = finalists_of(result.record)
    assert len(finalists) == 3
    for member in result.record["members"]:
        if member not in finalists:
            assert member["trained"] is None
            continue
        assert (member["trained"]["epochs"], member["trained"]["split"]) == (1, "test")
        assert 0.1 < member["trained"]["accuracy"] <= 1.0  # better than guessing one of ten
        net = resolve_trial(spec, member["trial"]).net
        # What the fake clock takes for the network when there is no noise.
        true_ms = FakeClock(study_setting(spec)).true_us(NetRun(net, 1)) / 1e3
        assert member["measured"]["latency_ms"] == pytest.approx(true_ms, rel=0.02)
        assert member["measured"]["repeats"] >= 7
    weights = sorted(p.name for p in (folder / "studies" / "tiny" / "finalists").iterdir())
    assert weights == sorted(f"trial-{m['trial']}.safetensors" for m in finalists)


def test_the_check_compares_finalists_with_their_predictions(whole):
    check, finalists = whole[2].check, finalists_of(whole[2].record)
    errors = [m["predicted"]["latency_ms"] / m["measured"]["latency_ms"] - 1 for m in finalists]
    assert check["n"] == 3
    assert check["mape"] == pytest.approx(100 * sum(map(abs, errors)) / 3, abs=1e-3)
    assert check["mape"] < 5  # on this clock, kernels that were measured tell networks well
    assert check["span"] > 1
    assert check["against_itself"] == 0  # this clock repeats itself


def test_front_csv_holds_the_members_one_per_row(whole):
    folder, _, result = whole
    with open(folder / "studies" / "tiny" / "front.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, member in zip(rows, result.record["members"], strict=True):
        assert int(row["trial"]) == member["trial"]
        assert float(row["predicted.latency_ms"]) == member["predicted"]["latency_ms"]
        assert row["arch.width1"] == str(member["arch"]["width1"])
        assert (row["measured.latency_ms"] == "") == (member["measured"] is None)


def test_the_study_freezes_its_model(whole, monkeypatch):
    folder, spec, _ = whole
    monkeypatch.chdir(folder)
    model = load_latency_model("auto-tiny")
    assert frozen_model(spec) == {
        "name": "auto-tiny",
        "hash": model.hash,
        "device": FAKE_DEVICE.slug,
        "setting": Setting(threads=1).to_dict(),
    }
    assert model.card.data["rows"] == BUDGET.kernels
    assert profiled(folder) == (BUDGET.kernels, BUDGET.nets)


def test_the_knee_is_exported_with_its_trained_weights_and_facts(whole):
    _, spec, result = whole
    knee = knee_trial(result.record)
    assert knee in {m["trial"] for m in finalists_of(result.record)}
    request = export_request(spec, find_study(spec), knee)
    member = next(m for m in result.record["members"] if m["trial"] == knee)
    assert request.card.measured.latency_ms == member["measured"]["latency_ms"]
    assert request.card.trained.accuracy == member["trained"]["accuracy"]
    assert request.arch == member["arch"]
    assert request.module is not None
    assert request.preprocess["class_names"] == [str(digit) for digit in range(10)]
    other = next(m["trial"] for m in result.record["members"] if m["measured"] is None)
    assert export_request(spec, find_study(spec), other).status.startswith("UNTRAINED")


def test_run_again_nothing_is_done_again(whole, again):
    front = again / "studies" / "tiny" / "front.json"
    before, measured = front.read_bytes(), profiled(again)
    recorder = Recorder()
    spec, result = run(progress=recorder)
    assert recorder.steps == {"search": 12}
    assert front.read_bytes() == before
    assert profiled(again) == measured
    assert trial_facts(spec) == trial_facts(whole[1])
    assert result.check == whole[2].check


def test_more_trials_go_on_where_it_stopped(whole, again):
    write_study(again, trials=16, finalists={"count": 5, "epochs": 1, "measure": True})
    recorder = Recorder()
    spec, result = run(progress=recorder)
    facts = trial_facts(spec)
    assert len(facts) == 16
    assert facts[:12] == trial_facts(whole[1])
    assert "profiling kernels" not in recorder.steps
    assert len(finalists_of(result.record)) >= 5
    trained_before = {f"training finalist #{m['trial']}" for m in finalists_of(whole[2].record)}
    assert not trained_before & set(recorder.steps)


@pytest.mark.parametrize(
    ("stage", "after"),
    [
        ("fitting the latency model", 0),
        ("search", 0),
        ("search", 5),
        ("re-measuring finalists", 2),
        ("training finalist", 1),
    ],
)
def test_interrupted_in_any_stage_it_ends_as_undisturbed(whole, in_tmp_path, stage, after):
    write_study(in_tmp_path)
    interrupted = Recorder(stage, after)
    with pytest.raises(KeyboardInterrupt):
        run(progress=interrupted)
    spec, result = run(progress=Recorder())
    assert result.record == whole[2].record
    assert trial_facts(spec) == trial_facts(whole[1])
    assert profiled(in_tmp_path) == (BUDGET.kernels, BUDGET.nets)


@pytest.mark.parametrize(("stage", "after"), [("profiling kernels", 30), ("measuring networks", 3)])
def test_interrupted_while_measuring_nothing_is_measured_twice(in_tmp_path, stage, after):
    write_study(in_tmp_path, finalists=None)
    interrupted = Recorder(stage, after)
    with pytest.raises(KeyboardInterrupt):
        run(progress=interrupted)
    kernels, nets = profiled(in_tmp_path)
    assert (kernels, nets) == ((after, 0) if stage == "profiling kernels" else (60, after))
    _, result = run()
    assert profiled(in_tmp_path) == (BUDGET.kernels, BUDGET.nets)
    assert result.complete == 12


def test_networks_that_the_model_was_fitted_on_are_no_finalists(in_tmp_path):
    """12 networks in all, 6 of them measured to fit the model: the front has some of those."""
    overrides = {**OVERRIDES, "width": 8, "width1": [8, 16], "width4": {"low": 8, "high": 48}}
    finalists = {"count": 12, "measure": True}
    write_study(in_tmp_path, overrides=overrides, finalists=finalists)
    spec, result = run()
    assert result.complete == 12
    fitted = set(load_latency_model("auto-tiny").card.data["calibration_nets"])
    assert len(fitted) == BUDGET.nets
    keys = {m["trial"]: resolve_trial(spec, m["trial"]).net.key for m in result.record["members"]}
    measured = {keys[m["trial"]] for m in finalists_of(result.record)}
    assert fitted & set(keys.values())
    assert measured == set(keys.values()) - fitted
    assert measured


def test_a_study_that_has_begun_is_not_learned_afresh(again):
    before = profiled(again)
    with pytest.raises(RequestError, match=r"has begun on the latency model it has.*another name"):
        run_search(load_spec("tiny"), device="fake", budget=BUDGET, fresh=True)
    assert profiled(again) == before


def test_a_model_of_another_setting_is_refused_with_those_that_would_do(again):
    nets = [resolve_target("tiny#0").net]
    learn_space("two-threads", nets, 1, FakeClock(Setting(threads=2)), budget=BUDGET)
    write_study(again, name="other", latency_model="auto-tiny", threads=2)
    with pytest.raises(SettingMismatch, match=r"threads.*would do: two-threads\.$"):
        run("other")
    assert not (again / "studies" / "other" / "study.db").exists()
    write_study(again, name="other", latency_model="two-threads", threads=2, finalists=None)
    assert run("other")[1].record["latency_model"] == "two-threads"


def test_a_model_of_a_device_that_is_not_here_predicts_and_measures_nothing(again):
    write_study(again, name="far", latency_model="auto-tiny")
    recorder = Recorder()
    _, result = run("far", recorder, device="cpu")
    assert any("device isn't here" in note for note in result.notes)
    assert set(recorder.notes) == set(result.notes)
    assert not finalists_of(result.record)
    assert sum(m["trained"] is not None for m in result.record["members"]) == 3


def test_a_begun_study_is_not_learned_anew_for_another_device(again):
    """The model that the study froze stays, and nothing is measured."""
    card = (again / "latency_models" / "auto-tiny" / "card.yaml").read_bytes()
    measured = profiled(again)
    recorder = Recorder()
    with pytest.raises(StudyMismatch, match=f"device: {FAKE_DEVICE.slug} -> "):
        run(progress=recorder, device="cpu")
    assert recorder.steps == {}
    assert profiled(again) == measured
    assert (again / "latency_models" / "auto-tiny" / "card.yaml").read_bytes() == card


def test_a_lost_model_is_fitted_again_from_what_was_measured(whole, again):
    shutil.rmtree(again / "latency_models" / "auto-tiny")
    recorder = Recorder()
    _, result = run(progress=recorder)
    assert profiled(again) == (BUDGET.kernels, BUDGET.nets)
    assert result.record == whole[2].record


def test_two_spaces_are_searched_together(in_tmp_path):
    space = write_space(in_tmp_path)
    overrides = {f"resnet.{key}": value for key, value in OVERRIDES.items()}
    joined = {"space": ["resnet", "mini"], "overrides": overrides, "trials": 20}
    write_study(in_tmp_path, **joined, finalists={"count": 2, "measure": True})
    spec, result = run()
    archs = [t.user_attrs["tadnn:result"]["arch"] for t in find_study(spec).trials]
    assert {arch["space"] for arch in archs} == {"resnet", "mini"}
    for arch in archs:
        others = [name for name in arch if name != "space"]
        assert all(name.startswith(f"{arch['space']}.") for name in others)
    assert len(finalists_of(result.record)) == 2
    for number in range(4):
        target = resolve_target(f"tiny#{number}")
        assert target.space == archs[number]["space"]
        (in_tmp_path / "arch.json").write_text(json.dumps(archs[number]))
        rebuilt = resolve_target("arch.json", (1, 16, 16))
        assert rebuilt.space == target.space
        assert rebuilt.net.blocks[:-1] == target.net.blocks[:-1]  # the head has other classes
    # Another content of one of them makes it another study, and that is said at once.
    space.write_text(space.read_text() + "# changed\n")
    recorder = Recorder()
    with pytest.raises(StudyMismatch, match=r"space.*\n +mini: "):
        run(progress=recorder)
    assert recorder.steps == {}


def test_a_study_without_latency_learns_nothing(in_tmp_path):
    changes = {"latency_model": None, "objectives": ["parameters", "accuracy"]}
    finalists = {"count": 1, "epochs": 1}
    write_study(in_tmp_path, **changes, accuracy={"proxy": "flops"}, finalists=finalists)
    recorder = Recorder()
    spec, result = run(progress=recorder)
    assert set(recorder.steps) - {"search"} == {
        f"training finalist #{m['trial']}" for m in result.record["members"] if m["trained"]
    }
    assert not LATENCY_MODELS.local.exists()
    record = result.record
    assert (record["latency_model"], record["hypervolume"], record["reference"]) == (None,) * 3
    assert result.check is None
    for a, b in itertools.pairwise(record["members"]):
        assert a["flops"] < b["flops"]
        assert a["predicted"] is b["predicted"] is None
    assert export_request(spec, find_study(spec), knee_trial(record)).card.predicted is None


def test_trained_accuracy_is_the_validation_splits_until_the_finals(in_tmp_path):
    write_study(in_tmp_path, accuracy={"train": {"epochs": 1}}, trials=3, finalists=None)
    _, result = run()
    for member in result.record["members"]:
        assert member["trained"]["split"] == "validation"
        assert member["proxy"] is None


def test_a_spec_without_a_file_writes_below_the_working_directory(in_tmp_path, whole):
    write_study(in_tmp_path, finalists=None)
    spec = parse_spec(load_spec("tiny").canonical())
    shutil.rmtree(in_tmp_path / "studies")
    result = run_search(spec, device="fake", budget=BUDGET)
    assert result.folder == Path.cwd() / "studies" / "tiny"
    assert (result.folder / "front.json").is_file()
