"""Exporting from a finished study: measured again, compared, accurate by its files alone."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from studies_examples import finished, write_study

from tadnn.accuracy.digits import read_digits
from tadnn.cli.browsing import build_export
from tadnn.cli.main import run
from tadnn.errors import WorkFailed
from tadnn.export import CardFacts, PhaseLatency, forms
from tadnn.files import read_json
from tadnn.hardware import detect_cpu
from tadnn.nets import BlockBuilder, Conv2d, Net, NetBuilder
from tadnn.profiling import FAKE_DEVICE, FakeClock, NetRun
from tadnn.runtimes import Setting
from tadnn.search import export_request, knee_trial, load_spec, pack_net, read_study, resolve_target
from tadnn.search.learned import study_setting
from tadnn.search.owner import Owner
from tadnn.search.remeasuring import remeasured

READER = Path(__file__).with_name("export_accuracy.py")
SAID = ["trial", "files", "predicted", "measured", "unmeasured", "warning", "note"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a finished study on digits, learned on the fake device."""
    folder = tmp_path_factory.mktemp("export-study")
    with finished(folder):
        return folder


@pytest.fixture
def here(whole, tmp_path, monkeypatch):
    """A copy of the folder; the working directory."""
    folder = tmp_path / "here"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fast(monkeypatch):
    """Leave torch's slow exporters out of tests of everything around them."""

    def written(name, returned):
        def write(request, module, folder):
            (folder / name).write_bytes(b"stand-in")
            return returned(module)

        return write

    monkeypatch.setattr(forms, "traced", lambda request, module: module)
    monkeypatch.setattr(forms, "write_onnx", written("model.onnx", lambda module: (module, 18)))
    monkeypatch.setattr(forms, "write_program", written("model.pt2", lambda module: module))


@pytest.fixture
def export(capsys):
    """Run ``tadnn export tiny --json``; return what it printed, the card, and what it said."""

    def call(*options: Any) -> tuple[dict[str, Any], str, str]:
        code = run(["export", "tiny", "-o", "out", "--json", *map(str, options)])
        out, err = capsys.readouterr()
        assert code == 0, err
        printed = json.loads(out)
        assert list(printed) == SAID
        return printed, Path("out/card.md").read_text(), err

    return call


def knee() -> dict[str, Any]:
    """Return the front's member that is exported when nothing else is asked for."""
    record = read_json(Path("studies/tiny/front.json"))
    return next(m for m in record["members"] if m["trial"] == knee_trial(record))


def finalists() -> list[dict[str, Any]]:
    return [m for m in read_json(Path("studies/tiny/front.json"))["members"] if m["trained"]]


def pretend(folder: Path, device: str) -> None:
    """Make the study's latency model one of another device."""
    path = folder / "studies" / "tiny" / "study.db"
    where = "study_user_attributes WHERE key = 'tadnn:latency_model'"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        (text,) = connection.execute(f"SELECT value_json FROM {where}").fetchone()
        model = json.dumps({**json.loads(text), "device": device})
        connection.execute(
            f"UPDATE {where.replace(' WHERE', ' SET value_json = ? WHERE')}", (model,)
        )


def test_the_exported_knee_is_as_accurate_as_its_finalist(here, export):
    """By model.onnx and preprocess.json alone: in a process without tadnn and without torch."""
    said, card, _ = export("--knee", "--device", "fake")
    member = next(m for m in finalists() if m["trial"] == said["trial"])
    test = read_digits().splits["test"]
    np.savez("test.npz", images=test.images.numpy(), labels=test.labels.numpy())
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(READER), "out", "test.npz"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, right, name = done.stdout.split()
    assert int(count) == len(test)
    # Rounding may tip one image over.
    assert abs(int(right) - member["trained"]["accuracy"] * len(test)) < 1.5
    assert name in [str(digit) for digit in range(10)]
    accuracy = member["trained"]["accuracy"]
    assert f"| accuracy | {accuracy:.4f} on the test split, {len(test)} images |" in card
    for fact in ("| licence of the data | CC BY 4.0", "| data set | digits |", "on 16 real inputs"):
        assert fact in card


def test_it_is_measured_again_as_finalists_are(here, export, fast):
    said, card, err = export("--knee", "--device", "fake")
    member = next(m for m in finalists() if m["trial"] == said["trial"])
    # The clock draws the same noise for the same network: the same protocol, the same number.
    assert said["measured"] == member["measured"]
    assert said["unmeasured"] is None
    assert "re-measuring trial" in err
    measured = member["measured"]
    text = (
        f"{measured['latency_ms']:.4g} ms, spread {measured['spread_ms']:.2g} ms "
        f"(median of {measured['repeats']} repeats)"
    )
    for fact in (
        f"| measured | {text} |",
        f"| measured in the search | {text} |",
        f"| measured when | for this export, on {FAKE_DEVICE.name}, as finalists are measured |",
        "| measured twice | the two differ by 0.0 % at most |",
        "| clock | fake |",
        "## Environment of the measurements",
    ):
        assert fact in card


def test_what_the_search_did_not_measure_is_measured(here, export, fast):
    members = read_json(Path("studies/tiny/front.json"))["members"]
    number = next(m["trial"] for m in members if m["measured"] is None)
    said, card, _ = export("--trial", number, "--device", "fake")
    clock = FakeClock(study_setting(load_spec("tiny")))
    true_ms = clock.true_us(NetRun(resolve_target(f"tiny#{number}").net, 1)) / 1e3
    assert said["measured"]["latency_ms"] == pytest.approx(true_ms, rel=0.02)
    assert "measured in the search" not in card
    assert "UNTRAINED" in card


def test_a_device_that_is_not_here_leaves_the_prediction_marked(here, export, fast):
    number = next(
        m["trial"]
        for m in read_json(Path("studies/tiny/front.json"))["members"]
        if m["measured"] is None
    )
    said, card, err = export("--trial", number)
    assert said["measured"] is None
    assert said["unmeasured"].startswith(f"the device {FAKE_DEVICE.slug} isn't here")
    assert f"not measured for this export: {said['unmeasured']}" in err
    assert re.search(rf"trial {number}, batch 1: predicted 0\.\d+ ± 0\.\d+ ms", err)
    assert f"| not measured for this export | {said['unmeasured']} |" in card
    assert "| measured | not measured: what is predicted is all there is |" in card
    assert "## Environment of the search" in card


def test_measuring_can_be_left_out(here, export, fast):
    said, card, err = export("--knee", "--no-measure", "--device", "fake")
    assert said["measured"] == knee()["measured"]
    assert said["unmeasured"] == "the search had measured it"
    assert "measured in the search" in err
    assert "| measured when | in the search, among its finalists |" in card
    assert "| measured again for this export | no: the search had measured it |" in card
    assert "re-measuring" not in err


def test_on_the_machine_itself_a_gap_is_said_loudly(here, export, fast):
    """Predicted for a device that computes its times, measured on this CPU in a clean process."""
    pretend(here, detect_cpu().slug)
    said, card, err = export("--knee")
    assert said["unmeasured"] is None
    assert said["measured"]["latency_ms"] > 0
    assert "| process | clean, one per network |" in card
    gap = abs(said["predicted"]["latency_ms"] - said["measured"]["latency_ms"])
    assert gap > 2 * said["predicted"]["std_ms"], "else nothing is to be said"
    warning = said["warning"]
    assert re.match(
        r"the prediction is [\d.e+]+ % \(.* ms\) (above|below) the measurement", warning
    )
    assert f"WARNING, trial {said['trial']}: {warning}. Trust the measurement." in err
    assert f"> **WARNING: {warning}. Trust the measurement.**" in card


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu", r"on the device that its latency was predicted for, .*; --device cpu is cpu-"),
        ("cuda:9", "this machine has no device 'cuda:9'"),
        ("cup", "unknown device 'cup'.*did you mean 'cpu'"),
    ],
)
def test_another_device_is_refused_before_anything_is_written(here, capsys, device, message):
    assert run(["export", "tiny", "-o", "out", "--device", device]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not Path("out").exists()


def test_a_place_that_is_taken_is_refused_before_anything_is_measured(here, capsys):
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("mine")
    assert run(["export", "tiny", "-o", "out", "--device", "fake"]) == 2
    err = capsys.readouterr().err
    assert "holds other things" in err
    assert "re-measuring" not in err


def test_beside_a_running_search_nothing_is_measured(here, export, fast):
    study = optuna.load_study(
        study_name="tiny",
        storage="sqlite:///studies/tiny/study.db",
        sampler=optuna.samplers.RandomSampler(),
    )
    trial = study.ask()
    trial.set_user_attr("tadnn:worker", Owner.current().to_dict())
    assert export("--device", "fake")[0]["unmeasured"].startswith("a search of this study runs")
    me = Owner.current()
    dead = Owner(me.host, me.pid, me.started - 100.0)
    trial.set_user_attr("tadnn:worker", dead.to_dict())
    assert export("--device", "fake")[0]["unmeasured"] is None


def test_a_measurement_that_fails_costs_no_export(here, export, fast, monkeypatch):
    def fail(self, subject):
        raise WorkFailed("the process that measures died (out of memory?)")

    monkeypatch.setattr(FakeClock, "prepare", fail)
    said, card, err = export("--device", "fake")
    assert said["unmeasured"] == "the process that measures died (out of memory?)"
    assert said["unmeasured"] in card
    assert said["unmeasured"] in err


def test_the_browser_exports_the_same(here, export, fast):
    said, card, _ = export("--knee", "--device", "fake")
    build_export(load_spec("tiny"), said["trial"], Path("zipped"), measure_on="fake")
    assert Path("zipped/card.md").read_text() == card
    assert Path("zipped/SHA256SUMS").read_bytes() == Path("out/SHA256SUMS").read_bytes()


def test_an_accuracy_whose_weights_are_gone_is_told_as_that(here, export, fast):
    spec, study = load_spec("tiny"), read_study(load_spec("tiny"))
    trial, accuracy = knee()["trial"], knee()["trained"]["accuracy"]
    card = export_request(spec, study, trial).card
    assert (card.trained.accuracy, card.trained.images) == (accuracy, 359)
    assert card.trained_in_search is None
    assert card.search == "latency, accuracy; sampler random, up to 12 trials"
    Path(f"studies/tiny/finalists/trial-{trial}.safetensors").unlink()
    _, text, _ = export("--trial", trial, "--no-measure")
    assert "UNTRAINED: the weights are random" in text
    row = f"1 epoch: {accuracy:.4f} on the test split; those weights were not kept"
    assert f"| trained in the search | {row} |" in text


@pytest.mark.parametrize(
    "command", [["front", "tiny"], ["plot", "tiny"], ["export", "tiny", "-o", "out"]]
)
def test_a_yaml_that_changed_since_is_refused_with_the_difference(here, capsys, command):
    write_study(here, seed=5)
    assert run(command) == 2
    assert "seed: 0 -> 5" in capsys.readouterr().err


def test_phases_are_measured_beside_the_network():
    spec, runtime = Setting(threads=1), FakeClock(Setting(threads=1))
    nets = {None: mini(8), "decode": mini(16)}
    study = optuna.create_study()
    trial = study.ask()
    trial.set_user_attr("tadnn:result", {})
    for phase, net in nets.items():
        trial.set_user_attr("tadnn:net" + (f":{phase}" if phase else ""), pack_net(net))
    study.tell(trial, 1.0)
    model = {"device": FAKE_DEVICE.slug, "setting": spec.to_dict()}
    study.set_user_attr("tadnn:latency_model", model)
    card = CardFacts(trial=0, batch=3, phases=(PhaseLatency("decode"),))
    found = remeasured(card, study, "fake")
    assert (found.unmeasured, found.in_search) == (None, None)
    for measured, net in ((found.measured, nets[None]), (found.phases[0].measured, nets["decode"])):
        true_ms = runtime.true_us(NetRun(net, 3)) / 1e3
        assert measured.latency_ms == pytest.approx(true_ms, rel=0.02)
    study.set_user_attr("tadnn:latency_model", None)
    assert remeasured(card, study).unmeasured.startswith("the study has no latency model")


def mini(width: int) -> Net:
    one = BlockBuilder()
    one.add(Conv2d(width, 3), one.input)
    net = NetBuilder((1, 8, 8))
    net.add("one", one.build("one"))
    return net.build()
