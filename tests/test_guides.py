"""The guides: every command in them is run; ``make docs`` takes their pictures.

Read from the pages themselves, so that a wrong command, option or file fails here.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from guides_examples import GUIDES, ROOT, Reader

PICTURES = os.environ.get("TADNN_PICTURES")
"""The folder that pictures go to; none are kept when absent, and the pages are run with little."""
PRETEND = PICTURES is None or os.environ.get("TADNN_PICTURES_CLOCK") == "fake"
"""Whether times are computed; pictures are of measurements of this machine otherwise."""

PAGES = sorted(page.stem for page in GUIDES.glob("*.md"))
SHOWN = re.compile(r"!\[([^\]]+)\]\(\.\./images/(guide-[a-z]+\.png)\)")
"""A guide's picture: what it shows in words, and its file."""
MADE = re.compile(r"<!-- picture: (\S+) -->")
"""What the commands of a guide write and the picture is a copy of; unseen where it is read."""

WIDTHS = {"low": 8, "high": 48, "step": 8}
SMALL = {
    "overrides": {"width": WIDTHS, "depth": 1},
    "trials": 80,
    "finalists": {"count": 4, "epochs": 2, "measure": True},
}
TINY = {
    "overrides": {"width": {"low": 8, "high": 24}, "depth": 1, "kernel": 3, "block": "basic"},
    "input_shape": [1, 16, 16],
    "accuracy": {"proxy": "parameters"},
    "trials": 8,
    "finalists": {"count": 2, "epochs": 1, "measure": True},
}
"""What the quickstart is instead: small for a picture, tiny for a test."""


def write_quickstart(folder: Path, changes: dict[str, Any]) -> None:
    """Write a study of the name of the built-in one, which comes before it."""
    spec = yaml.safe_load((ROOT / "studies" / "quickstart.yaml").read_text())
    (folder / "studies").mkdir()
    (folder / "studies" / "quickstart.yaml").write_text(yaml.safe_dump(spec | changes))


@pytest.mark.parametrize("name", PAGES)
def test_a_guide_does_what_it_says(name: str, tmp_path: Path) -> None:
    page = GUIDES / f"{name}.md"
    folder = tmp_path / name
    folder.mkdir()
    write_quickstart(folder, TINY if PICTURES is None else SMALL)
    Reader(folder, pretend=PRETEND, small=PICTURES is None).follow(page)
    (made,) = MADE.findall(page.read_text())
    assert (folder / made).read_bytes().startswith(b"\x89PNG")
    if PICTURES is not None:
        shutil.copy(folder / made, Path(PICTURES) / f"guide-{name}.png")
