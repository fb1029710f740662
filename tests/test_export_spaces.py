"""Exports of random architectures of every space, loaded where tadnn is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tadnn.export import CardFacts, ExportRequest, export_network
from tadnn.files import SEARCH_SPACES
from tadnn.spaces import load_space

CHECKER = Path(__file__).with_name("export_checker.py")
FILES = {
    "SHA256SUMS", "architecture.json", "card.md", "model.onnx", "model.pt2", "model.py",
    "preprocess.json", "run.py", "weights.safetensors",
}  # fmt: skip

# What keeps a network small; every choice that makes it another kind of network stays free.
NARROW = {
    "mbconv": ({"depth": 1, "width": {"high": 32}, "head": {"high": 64}}, (3, 32, 32)),
    "nasbench201": ({}, (3, 8, 8)),
    "resnet": ({"depth": {"high": 2}, "width": {"high": 32}}, (3, 32, 32)),
    "transformer": (
        {"sequence": 128, "layers": {"high": 2}, "width": {"high": 128},
         "feed_forward": {"high": 256}}, (128,)),
    "vit": ({"depth": {"high": 2}, "width": {"high": 64}, "heads": {"high": 4}}, (3, 64, 64)),
}  # fmt: skip


def export(space_name: str, count: int, seed: int, folder: Path) -> list[Path]:
    """Export random architectures; lay inputs and the module's outputs beside each."""
    overrides, shape = NARROW[space_name]
    space = load_space(space_name).narrow(overrides)
    folders = []
    for number, arch in enumerate(space.sample(count, seed)):
        net = space.build(arch, shape, 7)
        request = ExportRequest(
            net, CardFacts(batch=2), arch=arch, space=space_name, weights_seed=number
        )
        place = folder / f"{space_name}-{number}"
        export_network(place, request)
        inputs = net.example(3, seed + number)
        with torch.inference_mode():
            outputs = net.to_module(number).eval()(inputs)
        np.savez(place.with_suffix(".npz"), inputs=inputs.numpy(), outputs=outputs.numpy())
        folders.append(place)
    return folders


def require_sound(folders: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(CHECKER), *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for folder, found in zip(folders, json.loads(done.stdout), strict=True):
        assert len(found["differences"]) == 4
        assert max(found["differences"].values()) < 1e-4, (folder.name, found["differences"])
        assert found["largest"] > 1e-3, "something to compare"
        assert found["sums"]
        assert found["untrained"] == dict.fromkeys(FILES, True)
        assert all(text.startswith("UNTRAINED") for text in found["json"])
        assert found["opset"] == [18]
        assert "opset 18" in (folder / "card.md").read_text()
        assert found["run"].startswith("output (2, "), found["run"]
        code = (folder / "run.py").read_text().partition('"""\n')[2]
        assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_every_space_is_here() -> None:
    assert set(NARROW) == set(SEARCH_SPACES.entries())


@pytest.mark.parametrize("space", NARROW)
def test_exports_give_the_modules_outputs_without_tadnn(tmp_path: Path, space: str) -> None:
    require_sound(export(space, 3, 0, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("space", NARROW)
def test_thirty_exports_give_the_modules_outputs_without_tadnn(tmp_path: Path, space: str) -> None:
    require_sound(export(space, 30, 1, tmp_path))
