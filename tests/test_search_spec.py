from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tadnn.errors import SpecError, StudyMismatch, UnknownName
from tadnn.search import load_spec, parse_spec, study_folder, study_storage
from tadnn.search.names import require_names
from tadnn.search.spec import AUTO, differences, require_same, thread_count

RECORD = {
    "name": "quickstart",
    "space": "resnet",
    "overrides": {"width": {"low": 16, "high": 128}},
    "dataset": "digits",
    "input_shape": [1, 32, 32],
    "latency_model": "auto",
    "runtime": "torch-eager",
    "dtype": "fp32",
    "threads": 2,
    "batch": 1,
    "objectives": ["latency", "accuracy"],
    "accuracy": {"proxy": "naswot"},
    "constraints": {"latency_ms": 5.0},
    "sampler": "nsga2",
    "trials": 200,
    "workers": 1,
    "seed": 0,
    "storage": "sqlite:///studies/quickstart/study.db",
    "finalists": {"count": 8, "epochs": 20, "measure": True},
}


def changed(**changes):
    return {k: v for k, v in {**RECORD, **changes}.items() if v is not None}


def test_every_key_of_a_study_file_is_read_and_kept():
    spec = parse_spec(RECORD)
    assert spec.canonical() == RECORD
    assert spec.space == ("resnet",)
    assert spec.finalists is not None
    assert spec.finalists.count == 8


def test_what_is_absent_is_off():
    spec = parse_spec(
        {"name": "s", "space": "resnet", "objectives": ["parameters", "flops"], "trials": 3}
    )
    assert spec.dataset is spec.accuracy is spec.latency_model is spec.finalists is None
    assert spec.constraints.bounds() == {}
    assert spec.workers == spec.batch == 1
    assert thread_count(spec) >= 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trails": 5}, ["unknown key trails", "did you mean 'trials'", "Valid: name, space"]),
        ({"sampler": "nsga3"}, ["sampler: unknown value 'nsga3'", "'nsga2'", "random, nsga2, tpe"]),
        ({"objectives": ["latency", "acuracy"]}, ["objectives.1", "'acuracy'", "'accuracy'?"]),
        ({"objectives": []}, ["objectives needs at least one entry", "received []"]),
        ({"objectives": "latency"}, ["objectives must be a list", "received 'latency'"]),
        ({"objectives": ["flops", "flops"]}, ["objectives names each entry once"]),
        ({"space": "resnett"}, ["space: unknown space 'resnett'", "did you mean 'resnet'?"]),
        ({"space": ["resnet", "resnet"]}, ["space names each entry once"]),
        ({"space": "gone.py"}, ["space: no such file: gone.py"]),
        ({"space": 3}, ["space must be a list", "received 3"]),
        ({"trials": "200"}, ["trials must be a whole number", "received '200'"]),
        ({"trials": True}, ["trials must be a whole number", "received True"]),
        ({"trials": 0}, ["trials must be greater than or equal to 1", "received 0"]),
        ({"workers": 0}, ["workers must be greater than or equal to 1"]),
        ({"seed": -1}, ["seed must be greater than or equal to 0", "received -1"]),
        ({"constraints": {"latency": 5}}, ["unknown key constraints.latency", "'latency_ms'?"]),
        ({"constraints": {"flops": -1}}, ["constraints.flops must be greater than 0"]),
        ({"constraints": {"flops": float("nan")}}, ["constraints.flops must be finite"]),
        ({"constraints": {"flops": "few"}}, ["constraints.flops must be a number", "'few'"]),
        ({"accuracy": {"proxy": "a", "train": {"epochs": 1}}}, ["exactly one of proxy and train"]),
        ({"accuracy": {}}, ["accuracy takes exactly one of proxy and train"]),
        ({"accuracy": {"train": {"epoch": 1}}}, ["unknown key accuracy.train.epoch", "epochs"]),
        ({"accuracy": "naswot"}, ["accuracy must map keys to values", "received 'naswot'"]),
        ({"accuracy": None}, ["the objective accuracy needs the key 'accuracy'"]),
        (
            {"dataset": None, "finalists": None, "accuracy": {"train": {"epochs": 1}}},
            ["accuracy by training needs the key 'dataset'"],
        ),
        ({"dataset": None}, ["finalists that are trained (epochs) need the key 'dataset'"]),
        (
            {"objectives": ["latency", "decode-latency"]},
            ["objectives.1: unknown value 'decode-latency'", "PHASE_latency of a phase"],
        ),
        (
            {"constraints": {"decode_ms": 1.0}},
            ["unknown key constraints.decode_ms", "PHASE_latency_ms of a phase"],
        ),
        ({"constraints": {"decode_latency_ms": 0}}, ["decode_latency_ms must be greater than 0"]),
        (
            {"objectives": ["decode_latency", "flops"], "latency_model": None},
            ["need the key 'latency_model'"],
        ),
        ({"latency_model": None}, ["need the key 'latency_model'"]),
        ({"name": "a/b"}, ["name names the results folder", "received 'a/b'"]),
        ({"name": ".."}, ["name names the results folder"]),
        ({"input_shape": [32, 32]}, ["input_shape must list 3 sizes", "received [32, 32]"]),
        ({"input_shape": [1, 32, 0]}, ["input_shape.2 must be greater"]),
        ({"dtype": "fp64"}, ["dtype: unknown value 'fp64'", "fp32, fp16, bf16"]),
        ({"finalists": {"count": 2, "measure": "yes"}}, ["finalists.measure must be true or"]),
        ({"finalists": {"epochs": 2}}, ["the key 'finalists.count' is required"]),
        ({"overrides": [1]}, ["overrides must map keys to values"]),
        ({"trials": None}, ["the key 'trials' is required"]),
    ],
)
def test_a_broken_rule_is_named_with_key_value_and_choices(changes, says):
    with pytest.raises(SpecError) as caught:
        parse_spec(changed(**changes), "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    for part in says:
        assert part in message
    assert "pydantic" not in message


def test_all_broken_rules_are_named_at_once():
    with pytest.raises(SpecError) as caught:
        parse_spec(changed(trails=1, sampler="x", trials=0))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": "digit"}, "dataset: unknown data set 'digit'; did you mean 'digits'?"),
        ({"accuracy": {"proxy": "nasswot"}}, "accuracy.proxy: unknown proxy 'nasswot'; did you"),
        ({"runtime": "torch-eagre"}, "runtime: unknown runtime 'torch-eagre'; did you mean"),
    ],
)
def test_names_that_need_torch_are_checked_before_anything_is_made(changes, says):
    with pytest.raises(SpecError, match=says.replace("?", r"\?")):
        require_names(parse_spec(changed(**changes)))


def test_a_study_is_found_by_name_and_by_path(in_tmp_path):
    path = in_tmp_path / "studies" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(changed(name="mine")))
    by_name, by_path = load_spec("mine"), load_spec(path)
    assert by_name == by_path
    assert by_name.path == path
    with pytest.raises(UnknownName, match="unknown study 'mien'; did you mean 'mine'"):
        load_spec("mien")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [1\ntrials: 3\n", "line 2, column"),
        ("- a\n- b\n", "a study maps keys to values; received ['a', 'b']"),
        ("", "a study maps keys to values; received None"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("1: 2", "keys are texts; received 1"),
    ],
)
def test_a_file_that_is_no_study_is_refused_with_its_path(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match="no such study file"):
        load_spec(tmp_path / "gone.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="UTF-8"):
        load_spec(tmp_path / "binary.yaml")


def test_results_go_beside_the_file_and_never_into_the_package(in_tmp_path):
    spec = parse_spec(changed(storage=None))
    assert study_folder(spec) == Path.cwd() / "studies" / "quickstart"
    placed = spec.at(in_tmp_path / "elsewhere" / "q.yaml")
    assert study_folder(placed) == in_tmp_path / "elsewhere" / "quickstart"
    assert study_storage(placed) == f"sqlite:///{in_tmp_path}/elsewhere/quickstart/study.db"
    from tadnn.files import STUDIES

    builtin = spec.at(STUDIES.roots()[-1] / "quickstart.yaml")
    assert study_folder(builtin) == in_tmp_path / "studies" / "quickstart"


def test_only_how_a_study_is_run_may_change_on_resume():
    old = parse_spec(RECORD)
    new = parse_spec(changed(trials=300, workers=4, finalists=None, storage="sqlite:///b.db"))
    require_same("spec", old.frozen(), new.frozen())


def test_a_changed_study_is_refused_with_a_readable_difference():
    old = parse_spec(RECORD)
    new = parse_spec(
        changed(sampler="tpe", constraints={"latency_ms": 4.0, "flops": 9.0}, input_shape=None)
    )
    with pytest.raises(StudyMismatch) as caught:
        require_same("spec", old.frozen(), new.frozen())
    assert "\n  constraints.flops: absent -> 9.0\n" in str(caught.value)
    assert "\n  constraints.latency_ms: 5.0 -> 4.0\n" in str(caught.value)
    assert "\n  input_shape: [1, 32, 32] -> absent\n" in str(caught.value)
    assert "\n  sampler: nsga2 -> tpe\n" in str(caught.value)
    assert "seed" not in str(caught.value)
    assert differences({"a": 1}, {"a": 1}) == []


def test_auto_is_the_word_of_the_study_file():
    assert parse_spec(RECORD).latency_model == AUTO
