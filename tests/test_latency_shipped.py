"""The latency models that tadnn ships: whole, small, sensible, and honest on their cards."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tadnn.cli.main import app
from tadnn.files import LATENCY_MODELS
from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel
from tadnn.latency import LatencyModel, load_latency_model, models_for
from tadnn.nets import Net
from tadnn.runtimes import Setting
from tadnn.spaces import load_space

FP32 = ("a100-cuda-kernels-fp32", "p100-cuda-kernels-fp32", "t4-cuda-kernels-fp32",
        "v100-cuda-kernels-fp32", "nvidia-cuda-kernels-fp32")  # fmt: skip
BF16 = ("a100-cuda-kernels-bf16", "h100-cuda-kernels-bf16", "h200-cuda-kernels-bf16")
BASIC_OPS = {"linear", "bmm", "conv2d", "add", "mul", "relu", "gelu", "tanh", "scalar", "softmax",
             "layer_norm"}  # fmt: skip


def shipped() -> list[Path]:
    return sorted(p for p in LATENCY_MODELS.roots()[-1].iterdir() if (p / "card.yaml").is_file()
                  and not p.name.startswith("auto-"))  # fmt: skip


def every_device(name: str) -> list[LatencyModel]:
    card = yaml.safe_load((LATENCY_MODELS.roots()[-1] / name / "card.yaml").read_text("utf-8"))
    return [load_latency_model(f"{name}@{device['slug']}") for device in card["devices"]]


@pytest.fixture(scope="module")
def models() -> dict[str, LatencyModel]:
    return {name: every_device(name)[0] for name in (*FP32, *BF16)}


@pytest.fixture(scope="module")
def nets() -> dict[str, Net]:
    """One network of each space for images, of moderate size."""
    made = {}
    for name in ("resnet", "vit", "mbconv"):
        space = load_space(name)
        made[name] = space.build(space.sample(1, seed=1)[0], (3, 224, 224), 1000)
    return made


def test_these_are_shipped() -> None:
    assert {path.name for path in shipped()} >= {*FP32, *BF16}


@pytest.mark.parametrize("name", [*FP32, *BF16])
def test_a_card_says_where_its_numbers_come_from(name: str) -> None:
    folder = LATENCY_MODELS.roots()[-1] / name
    card = yaml.safe_load((folder / "card.yaml").read_text("utf-8"))
    # Rows of public tables stay where they are.
    assert {path.name for path in folder.iterdir()} == {"card.yaml", "model.npz"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2e6
    assert card["data"]["seed"] == 0
    for table in card["data"]["tables"]:
        assert table["licence"] in ("MIT", "Apache-2.0")
        assert "commit" in table["source"]
        assert table["rows"] > 1000
    assert "Covers" in card["notes"]
    assert "physical core" in card["notes"]
    assert set(card["ops"]) == (BASIC_OPS if name in FP32 else {"linear"})
    for facts in card["ops"].values():
        held_out = facts["held_out"]
        assert held_out["n"] > 100
        assert 0 < held_out["mape"] < 25
        assert 60 <= held_out["one_sigma"] <= 75
        assert 85 <= held_out["two_sigma"] <= 98


def floor_us(device: DeviceSpec, kernel: Kernel, dtype: str) -> float:
    # Winograd's and Fourier's convolutions do with four multiplications of a window's; and a
    # cache may hold what is read.
    saved = 1.0
    if kernel.op == "conv2d":
        saved = min(1.0, 4 / (kernel.dim("r") * kernel.dim("s")))
    return saved * kernel.flops / (device.peak_tflops[dtype] * 1e6)


@pytest.mark.parametrize("space", ["resnet", "vit", "mbconv"])
@pytest.mark.parametrize("name", [*FP32, *BF16])
def test_networks_are_predicted_sensibly(
    name: str, space: str, models: dict[str, LatencyModel], nets: dict[str, Net]
) -> None:
    model, net = models[name], nets[space]
    batches = (1, 8, 64)
    predicted = [model.predict_net(net, batch) for batch in batches]
    latencies = [p.latency_ms for p in predicted]
    assert latencies[0] < latencies[1] < latencies[2]
    # A full device does at least about as much as a half empty one; products of millions of rows,
    # which no table has, are guessed.
    per_image = [latency / batch for latency, batch in zip(latencies, batches, strict=True)]
    assert all(more <= 1.4 * fewer for fewer, more in pairwise(per_image))
    for p in predicted:
        floor = sum(
            s.count * floor_us(model.device, s.kernel, model.setting.dtype) for s in p.kernels
        )
        assert p.latency_ms > floor / 1e3
        assert p.latency_ms < 100 * (floor / 1e3 + 0.005 * sum(s.count for s in p.kernels))
        assert 0.02 * p.latency_ms < p.std_ms < p.latency_ms
        assert 0 < p.unprofiled_share < 1
        assert not p.in_range


def test_a_covered_kernel_is_known_well_and_in_range(models: dict[str, LatencyModel]) -> None:
    for name, dtype in (*((n, "fp32") for n in FP32), *((n, "bf16") for n in BF16)):
        p = models[name].predict([Kernel.of("linear", m=512, n=2048, k=1024, dtype=dtype)])
        assert p.in_range.all()
        assert p.std_us[0] < 0.25 * p.latency_us[0]


def test_wider_layers_take_longer_by_and_large(models: dict[str, LatencyModel]) -> None:
    widths = np.arange(128, 4097, 128)
    for name, model in models.items():
        dtype = model.setting.dtype
        kernels = [Kernel.of("linear", m=2048, n=int(n), k=1024, dtype=dtype) for n in widths]
        us = model.predict_us(kernels)
        assert np.corrcoef(widths, us)[0, 1] > 0.95, name
    big = {}
    for name, model in models.items():
        kernel = Kernel.of("linear", m=4096, n=4096, k=4096, dtype=model.setting.dtype)
        big[name] = model.predict_us([kernel])[0]
    # Faster GPUs are faster.
    assert big[FP32[0]] < big[FP32[3]] < big[FP32[2]]
    assert big[BF16[1]] < big[BF16[0]] < big[FP32[0]]


def test_the_other_memory_of_a_chip_is_predicted_with_a_wider_bar() -> None:
    small, large = every_device("a100-cuda-kernels-fp32")
    assert (small.device.slug, large.device.slug) == ("a100-40gb", "a100-80gb")
    kernel = Kernel.of("linear", m=512, n=2048, k=1024)
    own, other = small.predict([kernel]), large.predict([kernel])
    assert own.in_range[0]
    assert not other.in_range[0]
    assert other.std_us[0] / other.latency_us[0] == pytest.approx(0.25, rel=0.2)
    assert other.latency_us[0] == pytest.approx(own.latency_us[0], rel=0.1)


def test_gpus_that_nobody_profiled_are_predicted_by_those_that_were() -> None:
    kernel = Kernel.of("linear", m=4096, n=4096, k=4096)
    took = {}
    for device in ("a100-40gb", "a100-80gb", "h100", "l4", "rtx3080"):
        model = load_latency_model(f"nvidia-cuda-kernels-fp32@{device}")
        p = model.predict([kernel])
        took[device] = p.latency_us[0]
        known = device == "a100-40gb"
        assert p.in_range[0] == known, device
        relative = p.std_us[0] / p.latency_us[0]
        assert (relative < 0.1) == known, device
        peak_us = kernel.flops / (model.device.peak_tflops["fp32"] * 1e6)
        assert peak_us <= took[device] < 4 * peak_us, device
    assert took["a100-80gb"] == pytest.approx(took["a100-40gb"], rel=0.1)
    assert took["h100"] < took["a100-80gb"] < took["l4"]


def test_they_are_found_by_setting() -> None:
    found = models_for(Setting(runtime="cuda-kernels", dtype="bf16"))
    assert set(BF16) <= set(found)
    assert "a100-cuda-kernels-fp32@a100-80gb" in models_for(Setting(runtime="cuda-kernels"))


def test_the_command_line_names_the_share_that_nobody_measured(in_tmp_path: Path) -> None:
    space = load_space("resnet")
    Path("arch.json").write_text(json.dumps({**space.sample(1, seed=1)[0], "space": "resnet"}))
    command = ["latency", "arch.json", "--on", "v100-cuda-kernels-fp32", "--batch", "8"]
    runner = CliRunner()
    done = runner.invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "of it is of kinds that nobody measured" in done.output
    shown = json.loads(runner.invoke(app, [*command, "--json"]).stdout)
    assert 0 < shown["unprofiled_share"] < 0.6
    assert any(not k["profiled"] for k in shown["kernels"])
