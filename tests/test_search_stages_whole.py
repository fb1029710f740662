"""A study of stages as people run it: what is shown, drawn and exported."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState
from studies_examples import finished, write_study
from typer.testing import CliRunner

from tadnn.cli.main import app
from tadnn.files import read_json
from tadnn.report import study_view
from tadnn.search import find_study, load_spec, read_study, resolve_trial

STAGES = [
    {"proxy": "parameters", "keep": 0.5},
    {"train": {"epochs": 1}, "keep": 0.5},
    {"train": {"epochs": 2}},
]
CHANGES = {"accuracy": None, "stages": STAGES, "sampler": "frontier", "trials": 12}


@pytest.fixture(scope="module")
def study(tmp_path_factory):  # type: ignore[no-untyped-def]
    """A finished study of stages: its folder, spec and result; leave it as it is."""
    folder = tmp_path_factory.mktemp("whole")
    with finished(folder, **CHANGES, finalists={"count": 2, "epochs": 1}) as (spec, result):
        pass
    return folder, spec, result


def test_what_is_shown_ended_the_last_stage(study, monkeypatch):  # type: ignore[no-untyped-def]
    folder, spec, result = study
    monkeypatch.chdir(folder)
    assert result.complete == 12
    assert "12 trials ended the proxy, 6 a training of 1 epoch, 3 one of 2 epochs" in result.notes
    trials = {t.number: t for t in find_study(spec).trials}
    done = {n for n, t in trials.items() if t.state == TrialState.COMPLETE}
    assert len(done) == 3
    record = read_json(folder / "studies" / "tiny" / "front.json")
    assert {m["trial"] for m in record["members"]} <= done
    assert [stage["trials"] for stage in record["stages"]] == [12, 6, 3]
    view = study_view(read_study(spec))
    assert set(view.trials.tolist()) == done
    assert (view.progress.completed, view.progress.wanted) == (12, 12)
    column = next(c for c in view.columns if c.better == "max")
    assert column.label == "Accuracy"  # not a proxy's score
    shown = CliRunner().invoke(app, ["front", "tiny"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0, shown.output
    # A trial that was stopped early can still be looked at.
    stopped = next(n for n in trials if n not in done)
    assert resolve_trial(spec, stopped).net.parameters > 0


def test_it_is_drawn_and_exported(study, monkeypatch):  # type: ignore[no-untyped-def]
    folder, _, result = study
    monkeypatch.chdir(folder)
    runner = CliRunner()
    drawn = runner.invoke(app, ["plot", "tiny", "--formats", "png", "-o", "drawn"])
    assert drawn.exit_code == 0, drawn.output
    exported = runner.invoke(app, ["export", "tiny", "--knee", "-o", "out"])
    assert exported.exit_code == 0, exported.output
    member = result.record["members"][0]
    assert member["trained"]["split"] in ("test", "validation")


def test_a_budget_for_nothing_is_said_by_the_command(in_tmp_path: Path) -> None:
    write_study(
        in_tmp_path,
        **{**CHANGES, "stages": STAGES[1:]},
        latency_model=None,
        objectives=["flops", "accuracy"],
        finalists=None,
        budget={"train_minutes": 1e-6},
    )
    done = CliRunner().invoke(app, ["search", "tiny"], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert "It is too small: no trial ended a training of 2 epochs" in done.output
    assert read_json(in_tmp_path / "studies" / "tiny" / "front.json")["members"] == []
    assert len(find_study(load_spec("tiny")).trials) == 1
