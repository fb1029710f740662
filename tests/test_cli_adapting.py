"""From kernel tables of several GPUs to a model of one that they never saw, by commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_latency_adapting import additions, measured, products, throttled

from tadnn.cli.main import run
from tadnn.hardware import find_device
from tadnn.kernels import KernelRow, TimingRow, write_kernel_table, write_timing_table
from tadnn.latency import load_latency_model

FIT = ["fit", "--table", "v100=v100.csv", "--table", "t4=t4.csv", "--runtime", "cuda-kernels"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of two GPUs and a few rows of a third, and the model of the two."""
    folder: Path = tmp_path_factory.mktemp("gpus")
    kernels = products(40, 0) + additions(15, 1)
    for device in ("v100", "t4"):
        write_kernel_table(folder / f"{device}.csv", measured(device, kernels))
    few = measured("h100", products(10, 7) + additions(5, 8), throttled)
    write_kernel_table(folder / "few.csv", few)
    rest = measured("h100", products(30, 9) + additions(15, 10), throttled)
    write_kernel_table(folder / "rest.csv", rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run([*FIT, "--name", "gpu-fp32"]) == 0
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def printed(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*words: str) -> Any:
        capsys.readouterr()
        assert run([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused and write nothing; return what it said."""

    def call(*words: str) -> str:
        before = sorted((here / "latency_models").rglob("*"))
        capsys.readouterr()
        assert run(list(words)) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert sorted((here / "latency_models").rglob("*")) == before
        return said

    return call


def test_an_unseen_device_is_evaluated_then_adapted(printed: Callable[..., Any]) -> None:
    strange = printed("evaluate", "rest.csv", "--on", "gpu-fp32@h100")
    assert set(strange["by_op"]) == {"linear", "add"}
    assert strange["out_of_range"] == strange["overall"]["n"] == 45
    made = printed("adapt", "few.csv", "--on", "gpu-fp32@h100", "--name", "h100-fp32")
    assert (made["device"], made["kernels"], made["base"]) == ("h100", 15, "gpu-fp32@h100")
    adapted = printed("evaluate", "rest.csv", "--on", "h100-fp32")
    assert adapted["overall"]["mape"] < 0.6 * strange["overall"]["mape"]
    assert adapted["out_of_range"] < 45
    card = load_latency_model("h100-fp32").card
    assert card.data["base"]["hash"] == load_latency_model("gpu-fp32@h100").hash


def test_unknown_devices_show_near_matches(refused: Callable[..., str]) -> None:
    said = refused("evaluate", "rest.csv", "--on", "gpu-fp32@h1000")
    assert "did you mean" in said
    assert "h100" in said
    said = refused("fit", "--table", "v1000=v100.csv", "--runtime", "cuda-kernels", "--name", "x")
    assert "v100" in said


def test_tables_that_cannot_be(here: Path, refused: Callable[..., str]) -> None:
    rows = measured("v100", products(20, 0))
    fit = ("fit", "--table", "v100=bad.csv", "--runtime", "cuda-kernels", "--name", "bad")
    adapt = ("adapt", "bad.csv", "--on", "gpu-fp32@h100", "--name", "bad")

    def bad(factor: float, more: list[KernelRow] | None = None) -> None:
        made = [KernelRow(row.kernel, row.latency_us * factor) for row in rows]
        write_kernel_table(here / "bad.csv", [*made, *(more or [])])

    bad(1e-3)
    for command in (fit, adapt):
        assert "milliseconds" in refused(*command)
    bad(1.0, measured("p4", products(20, 0)))
    for command in (fit, adapt):
        assert "agree within a factor of 1.5" in refused(*command)
    write_kernel_table(here / "bad.csv", rows[:4])
    assert "at least 10 distinct kernels" in refused(*fit)
    assert "at least 5 distinct kernels adapt a model; got 4" in refused(*adapt)


def test_timings_too_few_or_without_networks(here: Path, refused: Callable[..., str]) -> None:
    command = ("calibrate", "t.csv", "--on", "gpu-fp32@h100", "--name", "bad")
    write_timing_table(here / "t.csv", [TimingRow("nothing.py:net", 1, 2.0)])
    assert "nothing.py" in refused(*command)
    assert find_device("h100").slug == "h100"
    assert "no such file" in refused("calibrate", "u.csv", *command[2:])
