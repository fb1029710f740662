"""Exports of random architectures of every space, loaded where tadnn is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
# What keeps networks small and leaves them their kinds, and an input for them.
NARROW: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mbconv": ({"depth": 1, "width": {"high": 32}, "head": {"high": 64}}, (3, 32, 32)),
    "nasbench201": ({}, (3, 8, 8)),
    "resnet": ({"depth": {"high": 2}, "width": {"high": 32}}, (3, 32, 32)),
    "transformer": (
        {"sequence": 128, "layers": {"high": 2}, "width": {"high": 128},
         "feed_forward": {"high": 256}},
        (128,),
    ),
    "vit": (
        {"patch": [8, 16, 32], "depth": {"high": 2}, "width": {"high": 64}, "heads": {"high": 4}},
        (3, 64, 64),
    ),
}  # fmt: skip
# Exporting takes its time by the layer; networks of very many are for `make test-slow`.
SHORT = {
    "mbconv": {f"squeeze{stage}_1": False for stage in range(3, 8)},
    "nasbench201": {"edge0_2": "none", "edge0_3": "none", "edge1_2": "skip_connect",
                    "edge1_3": "none"},
    "resnet": {"depth": 1},
}  # fmt: skip

Found = list[tuple[Path, dict[str, Any]]]


def export(
    space_name: str, count: int, seed: int, folder: Path, further: dict[str, Any] | None = None
) -> list[Path]:
    """Export random architectures; lay inputs and the module's outputs beside each."""
    overrides, shape = NARROW[space_name]
    space = load_space(space_name).narrow({**overrides, **(further or {})})
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


def checked(folders: list[Path]) -> Found:
    """Return what `export_checker.py` finds of each, in one process that has no tadnn."""
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(CHECKER), *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(folders, json.loads(done.stdout), strict=True))


def require_sound(found: Found) -> None:
    sources = {(folder / "model.py").read_text() for folder, _ in found}
    assert len(sources) == len(found), "other architectures, other networks"
    for folder, facts in found:
        assert len(facts["differences"]) == 4
        assert max(facts["differences"].values()) < 1e-4, (folder.name, facts["differences"])
        assert facts["largest"] > 1e-3, "something to compare"
        assert facts["sums"]
        assert facts["untrained"] == dict.fromkeys(FILES, True)
        assert all(text.startswith("UNTRAINED") for text in facts["json"])
        assert facts["opset"] == [18]
        assert "opset 18" in (folder / "card.md").read_text()
        assert facts["run"].startswith("output (2, "), facts["run"]
        code = (folder / "run.py").read_text().partition('"""\n')[2]
        assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Three exports of every space and what was found of them, by space."""
    folder = tmp_path_factory.mktemp("exports")
    folders = {name: export(name, 3, 0, folder, SHORT.get(name)) for name in NARROW}
    found = dict(checked([path for paths in folders.values() for path in paths]))
    return {name: [(path, found[path]) for path in paths] for name, paths in folders.items()}


def test_every_space_is_here() -> None:
    assert set(NARROW) == set(SEARCH_SPACES.entries())


@pytest.mark.parametrize("space", NARROW)
def test_exports_give_the_modules_outputs_without_tadnn(
    short: dict[str, Found], space: str
) -> None:
    require_sound(short[space])


@pytest.mark.slow
@pytest.mark.parametrize("space", NARROW)
def test_thirty_exports_give_the_modules_outputs_without_tadnn(tmp_path: Path, space: str) -> None:
    require_sound(checked(export(space, 30, 1, tmp_path)))
