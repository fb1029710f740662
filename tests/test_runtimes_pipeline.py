"""Each runtime from the YAML to the export, on GPUs that don't exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies_examples import write_study

from tadnn.cli.main import run
from tadnn.hardware import find_device
from tadnn.latency import load_latency_model


@pytest.mark.parametrize(
    "runtime",
    [
        "cuda-graph",
        pytest.param("cuda-kernels", marks=pytest.mark.slow),
        pytest.param("torch-compile", marks=pytest.mark.slow),
    ],
)
def test_a_study_runs_from_its_yaml_to_the_export(
    runtime: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finalists = {"count": 3, "measure": True}
    write_study(in_tmp_path, runtime=runtime, trials=6, finalists=finalists)
    code = run(["search", "tiny", "--device", "fake:a100-40gb", "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    record = json.loads(out)
    assert (record["runtime"], record["device"]) == (runtime, "a100-40gb-fake")
    assert sum(member["measured"] is not None for member in record["members"]) >= 1
    assert any(Path(record["files"]["knee"]).iterdir())
    model = load_latency_model("auto-tiny")
    assert model.setting.runtime == runtime
    assert model.device.units == find_device("a100-40gb").units
    assert model.nets.held_out["mape"] < 15
    assert ("relu" in model.ops) == (runtime != "torch-compile"), "fused, none is launched alone"


def test_settings_of_one_device_never_mix(
    in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = "profile --space resnet --input 1,16,16 --device fake:h100 --runtime cuda-graph"
    base += " --threads 1 --kernels 30 --json"
    for name, more in (("warm", ""), ("cold", " --flush-l2"), ("round", " --math tf32")):
        assert run(f"{base} --name {name}{more}".split()) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["kernels"] == 30, "measured afresh, not taken from another setting"
        assert record["setting"].get("flush_l2", False) == (name == "cold")
        assert record["setting"]["math"] == ("tf32" if name == "round" else "ieee")
