"""Running a page of ``docs/guides`` as a reader would: its files written, its commands run.

Blocks of a page are fenced. ``LANGUAGE PATH`` is a file to write, ``sh`` holds commands, ``python``
a program, ``text`` what something printed. Nothing is known here of what a page says.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guides"
_FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.M | re.S)
_STATEFUL = re.compile(r"&|^(cd|export|wait)\b|^\w+=")
"""What makes a line depend on those around it, so that one shell has to run them all."""
_SHIM = """\
#!{python}
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import guides_examples
from tadnn.cli import main
with guides_examples.pretending({pretend}):
    main()
"""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the file that it is (or empty), and its text."""

    language: str
    path: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for info, text in _FENCE.findall(page.read_text()):
        language, _, path = info.strip().partition(" ")
        assert language in {"sh", "python", "yaml", "csv", "text"}, f"{page.name}: ```{info}"
        found.append(Block(language, path.strip(), text))
    return found


def commands(text: str) -> list[str]:
    """Return the command lines of a block, continued lines joined, comments left out."""
    joined = text.replace("\\\n", " ")
    lines = (line.strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@contextlib.contextmanager
def pretending(pretend: bool = True) -> Iterator[None]:
    """Put the computed clock in the place of this machine's, and measure little.

    Everything else is what it is for a reader: options, files, fits, searches, training.
    """
    if not pretend:
        yield
        return
    import pytest

    from tadnn.latency import Budget
    from tadnn.profiling import FAKE_DEVICE, opening
    from tadnn.search import learned

    real = learned.learn

    def little(*args: Any, budget: Budget | None = None, **kwargs: Any) -> Any:
        asked = budget or Budget()
        few = replace(asked, kernels=min(asked.kernels, 60), nets=min(asked.nets, 6), minutes=None)
        return real(*args, budget=few, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "fake_device", lambda name: FAKE_DEVICE)
        patch.setattr(learned, "learn", little)
        yield


def _smaller(block: Block) -> str:
    """Return a file with less to search and train: what pages ask for takes a while."""
    if block.language != "yaml":
        return block.text
    text = block.text
    for key, most in (("trials", 8), ("epochs", 1), ("count", 2)):
        text = re.sub(rf"\b{key}: \d+", f"{key}: {most}", text)
    return text


@dataclass(frozen=True)
class Reader:
    """Somebody who does what a page says, in an empty folder.

    Args:
        folder: the folder.
        pretend: on a clock that computes its times; on this machine otherwise.
        small: with less to search and train than the page says.
    """

    folder: Path
    pretend: bool = True
    small: bool = True

    def follow(self, page: Path) -> None:
        """Write the files of a page and run its commands; every one of them must succeed."""
        for block in blocks(page):
            if block.path:
                path = self.folder / block.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_smaller(block) if self.small else block.text)
            elif block.language == "sh":
                self._run(commands(block.text))
            elif block.language == "python":
                self._shell(f"{shlex.quote(sys.executable)} - <<'END'\n{block.text}END\n")

    def _run(self, lines: list[str]) -> None:
        if any(_STATEFUL.search(line) for line in lines):
            self._shell("\n".join(lines))
            return
        for line in lines:
            if line.startswith("tadnn "):
                self._tadnn(line)
            else:
                self._shell(line)

    def _tadnn(self, line: str) -> None:
        # In this process: starting one for each command would take most of the time.
        from tadnn.cli.main import run

        with contextlib.chdir(self.folder), pretending(self.pretend):
            assert run(shlex.split(line)[1:]) == 0, line

    def _shell(self, script: str) -> None:
        bin_ = self.folder.parent / f"{self.folder.name}-bin"
        bin_.mkdir(exist_ok=True)
        shim = bin_ / "tadnn"
        names = {"root": str(ROOT), "tests": str(ROOT / "tests"), "pretend": self.pretend}
        shim.write_text(_SHIM.format(python=sys.executable, **names))
        shim.chmod(0o755)
        (bin_ / "python").unlink(missing_ok=True)
        # A link would hide the virtual environment from the interpreter.
        (bin_ / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (bin_ / "python").chmod(0o755)
        paths = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**os.environ, **paths},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
