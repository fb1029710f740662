"""A GPU calibrated from its data sheet by timings of networks, by commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from latency_fakes import small_nets

from tadnn.cli.main import run
from tadnn.files import write_json
from tadnn.kernels import TimingRow, write_timing_table
from tadnn.latency import load_latency_model

PHYSICS = "physics-torch-eager-amp@rtx3090"


@pytest.fixture
def timings(in_tmp_path: Path) -> Path:
    """Networks that take two and a half times what physics says."""
    model, rows = load_latency_model(PHYSICS), []
    for i, net in enumerate(small_nets(8, 2)):
        write_json(in_tmp_path / f"net{i}.json", net.to_json())
        latency_ms = 2.5 * model.predict_net(net, 512).latency_ms
        rows.append(TimingRow(f"net{i}.json", 512, latency_ms))
    rows.append(TimingRow("net0.json", 512, rows[0].latency_ms))
    write_timing_table(in_tmp_path / "timings.csv", rows)
    return in_tmp_path / "timings.csv"


def test_from_the_data_sheet_to_a_model(timings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "timings.csv", "--on", PHYSICS, "--name", "rtx3090-amp"]) == 0
    assert "calibrated: errors" in capsys.readouterr().out
    model = load_latency_model("rtx3090-amp")
    assert (model.setting.dtype, model.device.slug) == ("amp", "rtx3090")
    assert model.card.data["base"]["latency_model"] == "physics-torch-eager-amp"
    assert model.calibrated
    assert run(["evaluate", "timings.csv", "--on", "rtx3090-amp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["mape"] < 2
    assert run(["latency", "net1.json", "--on", "rtx3090-amp", "--batch", "512"]) == 0
    assert "physics, calibrated by whole networks" in capsys.readouterr().out
    assert run(["latency", "net1.json", "--on", PHYSICS, "--batch", "512"]) == 0
    assert "physics alone, a factor of two" in capsys.readouterr().out


def test_what_is_refused(timings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", "timings.csv", "--on"]
    assert run([*command, "physics-torch-eager-amp", "--name", "x"]) == 2
    assert "serves every GPU; name one" in capsys.readouterr().err
    assert run([*command, "physics-torch-eager-int4@t4", "--name", "x"]) == 2
    assert "unknown latency model" in capsys.readouterr().err
    write_timing_table(timings, [TimingRow("timm:resnet18@x", 1, 1.0)])
    assert run([*command, PHYSICS, "--name", "x"]) == 2
    assert "timm:MODEL@SIZE" in capsys.readouterr().err
    profile = ["profile", "--space", "resnet", "--dtype", "amp", "--minutes", "1", "--name", "x"]
    assert run(profile) == 2
    assert "predicted from timings of others" in capsys.readouterr().err
    assert not Path("latency_models", "x").exists()
