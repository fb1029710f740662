"""The command reference is what ``--help`` prints, and pages name commands that there are."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tadnn.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUP: Any = typer.main.get_command(app)
COMMANDS = dict(GROUP.commands)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("docs_commands", ROOT / "docs" / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_would_be_written(script: Any) -> None:
    assert script.PAGE.read_text() == script.reference(), "make docs writes it anew"


def test_the_page_does_not_depend_on_the_terminal(script: Any, monkeypatch: Any) -> None:
    before = script.reference()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERMINAL_WIDTH", "40")
    assert script.reference() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_described_and_explained(script: Any, name: str) -> None:
    command = COMMANDS[name]
    summary = command.get_short_help_str(limit=200)
    assert summary.endswith((".", "front")), summary
    for parameter in command.params:
        assert getattr(parameter, "help", ""), f"{name} {parameter.name} has no help"
    page = script.PAGE.read_text()
    assert f"\n## tadnn {name}\n" in page
    assert f"(#tadnn-{name})" in page
    assert script.EXPLAINED[name]
    for other in script.EXPLAINED[name]:
        assert f"tadnn {name}" in (ROOT / "docs" / other).read_text(), f"{other}: tadnn {name}"


def test_only_commands_are_explained(script: Any) -> None:
    assert set(script.EXPLAINED) == set(COMMANDS)


def shown(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield name and options of every command line of a page, in blocks and between backticks."""
    joined = text.replace("\\\n", " ")
    fenced = re.findall(r"^```\w*\n(.*?)^```$", joined, re.M | re.S)
    indented = re.findall(r"^ {4}.*$", joined, re.M)
    for line in re.findall(r"^[ $]*(?:\S*/)?tadnn (.+)$", "\n".join([*fenced, *indented]), re.M):
        yield _parts(line)
    for line in re.findall(r"`tadnn ([^`]+)`", joined):
        yield _parts(line)


def _parts(line: str) -> tuple[str, list[str]]:
    line = re.sub(r" {2,}.*| #.*", "", line)  # what it does, beside it
    return line.split()[0], re.findall(r"(?<!\S)\[?(--?[a-zA-Z][a-z0-9-]*)", line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_commands_and_options_that_there_are(page: Path) -> None:
    for name, options in shown(page.read_text()):
        if not re.fullmatch(r"[a-z]+", name):
            continue  # `tadnn ...`, or a path
        assert name in COMMANDS, f"{page.name}: tadnn {name}"
        params = COMMANDS[name].params
        known = {o for p in params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert set(options) <= known, f"{page.name}: tadnn {name} {options}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        other = (page.parent / path) if path else page
        assert other.exists(), f"{page.name}: {target}"
        if anchor and other.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", other.read_text(), re.M)
            assert anchor in {_anchor(title) for title in titles}, f"{page.name}: {target}"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_links_are_seen() -> None:
    assert list(shown("    $ .venv/bin/tadnn export s --max-latency-ms 2.0 -o fast\n")) == [
        ("export", ["--max-latency-ms", "-o"])
    ]
    assert list(shown("`tadnn tail T --on M`,\n    tadnn tail ... --write DIR [--data N]\n")) == [
        ("tail", ["--write", "--data"]),
        ("tail", ["--on"]),
    ]
