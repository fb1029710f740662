"""The built-in studies: each is valid, and runs reduced from its YAML to front and export."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from studies_examples import run
from typer.testing import CliRunner

from tadnn.cli.main import app
from tadnn.errors import RequestError, SpecError, UnknownName
from tadnn.files import STUDIES, read_json
from tadnn.latency import load_latency_model, score
from tadnn.search import (
    find_study,
    knee_trial,
    load_spec,
    parse_spec,
    resolve_target,
    resolve_trial,
    study_space,
    trial_records,
)
from tadnn.search.names import require_names
from tadnn.search.objective import network_shape

BUILTIN = (
    *("decoder", "fashion-mnist", "imagenet-resnet", "imagenet-resnet-v100", "quickstart"),
    *("vit", "vit-a100"),
)

SMALL_RESNETS = {
    "classes": 7,
    "input_shape": [3, 64, 64],
    "overrides": {"depth": 1, "width": {"low": 8, "high": 24}, "kernel": 3, "block": "basic"},
}
SMALL_VITS = {
    "classes": 7,
    "input_shape": [3, 32, 32],
    "overrides": {
        "patch": [16, 32],
        "width": {"low": 32, "high": 64},
        "head_width": 16,
        "depth": {"low": 1, "high": 2},
        "heads": {"low": 1, "high": 2},
    },
}

#: What makes a study quick, and keeps what it is about.
REDUCED = {
    "fashion-mnist": {
        "threads": 1,
        "trials": 8,
        "stages": [
            {"proxy": "zico", "keep": 0.5},
            {"train": {"epochs": 1}, "keep": 0.5},
            {"train": {"epochs": 2}},
        ],
        "overrides": {
            "resnet.depth": 1,
            "resnet.width": {"low": 8, "high": 16},
            "resnet.kernel": 3,
            "resnet.block": "basic",
            "mbconv.depth": 1,
            "mbconv.width": {"low": 8, "high": 16},
            "mbconv.expansion": [1, 2],
            "mbconv.stem": 8,
            "mbconv.head": 32,
        },
        "finalists": {"count": 2, "epochs": 1, "measure": True},
    },
    "imagenet-resnet": {"threads": 1, "trials": 4, **SMALL_RESNETS},
    "vit": {"threads": 1, "trials": 8, **SMALL_VITS},
    "imagenet-resnet-v100": {"trials": 4, **SMALL_RESNETS},
    "vit-a100": {"trials": 8, **SMALL_VITS},
    "decoder": {
        "threads": 1,
        "trials": 12,
        "classes": 50,
        "overrides": {
            "sequence": 64,
            "layers": {"low": 1, "high": 3},
            "width": {"low": 64, "high": 128},
            "kv_heads": [1, 2],
            "queries": [1, 2],
            "head_width": 32,
            "feed_forward": {"low": 64, "high": 256},
        },
        "finalists": {"count": 3, "measure": True},
    },
}


def write_reduced(folder: Path, name: str, **changes: object) -> Path:
    """Write a built-in study with some keys changed to the working directory's studies."""
    record = yaml.safe_load((STUDIES.roots()[-1] / f"{name}.yaml").read_text("utf-8"))
    path = folder / "studies" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**record, **REDUCED[name], **changes}))
    return path


def write_garments(folder: Path) -> None:
    """100 images that look like Fashion-MNIST's files."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for stem, count in (("train", 100), ("t10k", 20)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for kind, values in (("images", images), ("labels", np.arange(count, dtype=np.uint8) % 10)):
            header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / f"{stem}-{kind}-idx{values.ndim}-ubyte").write_bytes(
                header + values.tobytes()
            )


def test_the_built_in_studies_are_these() -> None:
    folder = STUDIES.roots()[-1]
    assert tuple(sorted(path.stem for path in folder.glob("*.yaml"))) == BUILTIN


@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_study_is_valid(name: str) -> None:
    """It loads, its names are known, and its space builds what it asks for."""
    spec = load_spec(name)
    assert spec.name == name
    require_names(spec)
    space, _ = study_space(spec)
    for arch in space.sample(3, seed=0):
        for phase in (None, *spec.phases):
            assert space.build(arch, spec.input_shape, spec.classes, phase).flops() > 0


@pytest.mark.parametrize("name", ["fashion-mnist", "imagenet-resnet", "vit"])
def test_from_yaml_to_front_and_export(
    name: str, in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TADNN_DATA", str(in_tmp_path / "data"))
    write_garments(in_tmp_path / "data" / "fashion-mnist")
    write_reduced(in_tmp_path, name)
    spec, result = run(name)
    assert result.complete == spec.trials
    record = read_json(in_tmp_path / "studies" / name / "front.json")
    members = record["members"]
    assert members
    assert record["objectives"] == list(spec.objectives)
    assert any(member["measured"] for member in members)
    if name == "fashion-mnist":
        through = {t.params["space"] for t in find_study(spec).trials}
        assert through <= {"resnet", "mbconv"}
        assert [stage["trials"] for stage in record["stages"]] == [8, 4, 2]
        assert {t["trained"]["epochs"] for t in trial_records(find_study(spec))} == {2}
        assert any(m["trained"]["split"] == "test" for m in members)
    done = CliRunner().invoke(app, ["export", name, "--knee", "-o", "out"])
    assert done.exit_code == 0, done.output
    assert (in_tmp_path / "out" / "model.onnx").is_file()


@pytest.mark.parametrize("name", ["imagenet-resnet-v100", "vit-a100"])
def test_a_gpu_that_isn_t_here_is_searched_for_and_never_measured(
    name: str, in_tmp_path: Path
) -> None:
    write_reduced(in_tmp_path, name)
    runner = CliRunner()
    done = runner.invoke(app, ["search", name, "--device", "cpu"], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "finalists are predicted, not measured: the model's device isn't here" in done.output
    record = read_json(in_tmp_path / "studies" / name / "front.json")
    assert record["latency_model"] == load_spec(name).latency_model
    assert record["runtime"] == "cuda-kernels"
    for member in record["members"]:
        assert member["measured"] is None
        assert 0 < member["predicted"]["unprofiled_share"] < 1
    shown = runner.invoke(app, ["front", name], env={"COLUMNS": "160"}).output
    assert "of the latencies is of kinds of kernels that nobody measured" in shown
    exported = runner.invoke(app, ["export", name, "--knee", "-o", "out"])
    assert exported.exit_code == 0, exported.output
    card = (in_tmp_path / "out" / "card.md").read_text("utf-8")
    assert "of it of kinds of kernels never measured, by" in card
    assert "not measured for this export" in card


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A finished decoder study: its folder, spec and result; leave it as it is."""
    folder = tmp_path_factory.mktemp("decoder")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_reduced(folder, "decoder")
        spec, result = run("decoder")
    return folder, spec, result


def test_both_latencies_stand_in_the_front(decoder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    folder, spec, result = decoder
    monkeypatch.chdir(folder)
    record = result.record
    assert record["input_shape"] == [64]
    trials = {t.number: t for t in find_study(spec).trials}
    for member in record["members"]:
        decode = member["phases"]["decode"]
        assert list(decode) == ["predicted", "measured"]
        latency, decode_latency, accuracy = trials[member["trial"]].values
        assert latency == member["predicted"]["latency_ms"]
        assert decode_latency == decode["predicted"]["latency_ms"] < latency
        assert accuracy == member["proxy"]["value"]
        # Both are measured, or none.
        assert (member["measured"] is None) == (decode["measured"] is None)
    finalists = [m for m in record["members"] if m["measured"]]
    assert len(finalists) == min(3, len(record["members"]))
    # The front is that of three objectives.
    points = {n: np.array(t.values) * (1, 1, -1) for n, t in trials.items()}
    assert {m["trial"] for m in record["members"]} == {
        n
        for n, mine in points.items()
        if not any((other <= mine).all() and (other < mine).any() for other in points.values())
    }
    with (folder / "studies" / "decoder" / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, member in zip(rows, record["members"], strict=True):
        shown = float(row["phases.decode.predicted.latency_ms"])
        assert shown == member["phases"]["decode"]["predicted"]["latency_ms"]
    assert result.check is not None
    assert result.check["n"] == result.phase_checks["decode"]["n"] == len(finalists)


def test_the_knee_weighs_prefill_and_score(decoder) -> None:  # type: ignore[no-untyped-def]
    record = decoder[2].record
    pair = {**record, "objectives": ["latency", "accuracy"]}
    assert knee_trial(record) == knee_trial(pair)


def test_a_trial_in_a_phase(decoder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    folder, spec, result = decoder
    monkeypatch.chdir(folder)
    member = result.record["members"][0]
    number = member["trial"]
    net = resolve_trial(spec, number, "decode").net
    assert net.input_shape == (1,)
    space, _ = study_space(spec)
    assert space.build(member["arch"], None, 50, "decode") == net
    model = load_latency_model("auto-decoder")
    predicted = member["phases"]["decode"]["predicted"]["latency_ms"]
    assert model.predict_net(net).latency_ms == pytest.approx(predicted)
    scored = score(space, [member["arch"]], model, classes=50, phase="decode")
    assert scored == pytest.approx([predicted])
    with pytest.raises(UnknownName, match="phase of study decoder 'decod'; did you mean 'decode'"):
        resolve_trial(spec, number, "decod")
    command = ["latency", f"decoder#{number}", "--on", "auto-decoder", "--json"]
    runner = CliRunner()
    shown = json.loads(runner.invoke(app, [*command, "--phase", "decode"]).stdout)
    assert shown["latency_ms"] == pytest.approx(predicted)
    whole = json.loads(runner.invoke(app, command).stdout)
    assert whole["latency_ms"] == pytest.approx(member["predicted"]["latency_ms"])


def test_an_export_tells_both_latencies_and_goes_on_in_a_phase(decoder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    folder, spec, result = decoder
    monkeypatch.chdir(folder)
    member = next(m for m in result.record["members"] if m["measured"])
    done = CliRunner().invoke(
        app, ["export", "decoder", "--trial", str(member["trial"]), "-o", "both"]
    )
    assert done.exit_code == 0, done.output
    card = (folder / "both" / "card.md").read_text("utf-8")
    for latency in (member, member["phases"]["decode"]):
        assert f"{latency['predicted']['latency_ms']:.4g} ms, standard deviation" in card
        assert f"{latency['measured']['latency_ms']:.4g} ms, spread" in card
    assert "| decode, predicted |" in card
    assert "int64 below 50, batch × 64" in card
    exported = str(folder / "both" / "architecture.json")
    assert resolve_target(exported).net == resolve_trial(spec, member["trial"]).net
    again = resolve_target(exported, phase="decode").net
    assert again == resolve_trial(spec, member["trial"], "decode").net


def test_pictures_of_both_latencies(decoder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    folder, _, result = decoder
    monkeypatch.chdir(folder)
    runner = CliRunner()
    done = runner.invoke(app, ["plot", "decoder", "--formats", "png", "-o", "drawn"])
    assert done.exit_code == 0, done.output
    assert {path.stem for path in (folder / "drawn").iterdir()} >= {
        "pareto", "pareto-decode", "prediction", "prediction-decode", "breakdown",
    }  # fmt: skip
    shown = runner.invoke(app, ["front", "decoder"], env={"COLUMNS": "160"}).stdout
    for trial in (m["trial"] for m in result.record["members"]):
        assert str(trial) in shown
    assert shown.count("decode") >= 2


def test_a_phase_may_be_bounded(in_tmp_path: Path) -> None:
    write_reduced(
        in_tmp_path,
        "decoder",
        objectives=["decode_latency", "parameters"],
        accuracy=None,
        constraints={"decode_latency_ms": 1e-6},
        trials=3,
        finalists=None,
    )
    spec, result = run("decoder")
    assert result.record["members"] == []
    nearest = result.record["least_infeasible"][0]
    bound = nearest["phases"]["decode"]["predicted"]["latency_ms"] / 1e-6 - 1
    assert nearest["violations"] == {"decode_latency_ms": pytest.approx(bound)}
    assert "decode_latency_ms" in str(result.notes)
    assert spec.phases == ("decode",)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"objectives": ["latency", "decod_latency"]},
            "objectives: unknown objective 'decod_latency'; did you mean 'decode_latency' or",
        ),
        (
            {"constraints": {"prefill_latency_ms": 5.0}},
            "constraints: unknown constraint 'prefill_latency_ms'",
        ),
        (
            {"space": "vit", "overrides": {}, "objectives": ["decode_latency"]},
            "did you mean 'latency'? Valid: accuracy, flops, latency, memory, parameters.",
        ),
    ],
)
def test_a_phase_that_the_space_has_not(
    in_tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    write_reduced(in_tmp_path, "decoder", **changes)
    with pytest.raises(SpecError) as caught:
        run("decoder")
    assert says in str(caught.value)


@pytest.mark.parametrize("proxy", ["grad_norm", "snip", "zico"])
def test_proxies_of_gradients_look_at_noise_where_there_is_no_data(
    in_tmp_path: Path, proxy: str
) -> None:
    write_reduced(
        in_tmp_path,
        "decoder",
        objectives=["parameters", "accuracy"],
        accuracy={"proxy": proxy},
        constraints=None,
        finalists=None,
        latency_model=None,
        trials=2,
    )
    _, result = run("decoder")
    assert f"there is no data set: the proxy {proxy} looked at noise" in result.notes
    before = result.record["members"]
    assert len({member["proxy"]["value"] for member in before}) == len(before)


def test_noise_is_what_the_network_takes() -> None:
    from tadnn.accuracy import noise_for

    space, _ = study_space(load_spec("decoder"))
    net = space.build(space.sample(1, 0)[0], None, 50)
    noise = noise_for(net, 3)
    images, labels = noise.splits["train"].images, noise.splits["train"].labels
    assert images.shape == (128, 256)
    assert images.dtype == torch.int64
    assert (int(images.min()), int(images.max())) == (0, 49)
    assert (int(labels.min()), int(labels.max())) == (0, 49)
    assert torch.equal(noise_for(net, 3).splits["train"].images, images)
    assert not torch.equal(noise_for(net, 4).splits["train"].images, images)


def test_decoder_parameters_leave_out_embeddings_and_output() -> None:
    """Two layers: norms, attention 64 -> 3 x 32 and 32 -> 64, feed-forward 64 -> 64 -> 64."""
    from tadnn.accuracy import evaluate_proxy

    space, _ = study_space(parse_spec({**BARE, "overrides": {"sequence": 16}}))
    arch = {
        "sequence": 16, "layers": 2, "width": 64, "kv_heads": 1, "queries": 1, "head_width": 32,
        "feed_forward": 64,
    }  # fmt: skip
    net = space.build(arch, None, 50)
    layer = 2 * 64 + (3 * 32) * 65 + 64 * 33 + 2 * 64 + 64 * 65 + 64 * 65
    norm_of_head = 2 * 64
    assert evaluate_proxy("decoder_parameters", net, None, None) == 2 * layer + norm_of_head
    assert net.parameters == 2 * layer + norm_of_head + 2 * 50 * 64 + 16 * 64
    with pytest.raises(
        RequestError, match=r"'zen' makes inputs of float.*takes int64\. Valid: nas"
    ):
        evaluate_proxy("zen", net, net.to_module(), None)


BARE = {"name": "bare", "space": "transformer", "objectives": ["flops"], "trials": 1}


def test_classes_are_the_data_sets_or_the_specs() -> None:
    spec = parse_spec({**BARE, "classes": 77})
    assert network_shape(spec, study_space(spec)[0]) == ((2048,), 77)
    with pytest.raises(SpecError, match="leave out one of the keys 'classes' and 'dataset'"):
        parse_spec({**BARE, "classes": 77, "dataset": "digits"})
