"""Writes ``docs/commands.md``, the reference of the command line, from what ``--help`` prints.

``make docs`` runs it; ``tests/test_commands.py`` fails where the page is not what it would write.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Final

import typer

from tadnn.cli.app import app

PAGE: Final = Path(__file__).with_suffix(".md")
WIDTH: Final = 100
"""Of the terminal: the page must not depend on who writes it."""

#: Where each command is explained: pages of this folder.
EXPLAINED: Final[dict[str, tuple[str, ...]]] = {
    "devices": ("guides/device.md",),
    "spaces": ("guides/space.md", "spaces.md"),
    "profile": ("guides/device.md", "latency-models.md"),
    "fit": ("latency-models.md",),
    "evaluate": ("latency-models.md",),
    "latency": ("guides/network.md", "latency-models.md"),
    "adapt": ("guides/device.md", "latency-models.md"),
    "calibrate": ("latency-models.md",),
    "screen": ("search.md",),
    "search": ("guides/space.md", "guides/machines.md", "studies.md"),
    "front": ("guides/front.md",),
    "plot": ("guides/front.md",),
    "export": ("guides/front.md",),
    "proxies": ("proxies.md",),
    "tail": ("guides/network.md", "tail.md"),
    "sweep": ("tail.md",),
    "browse": ("guides/front.md", "browser.md"),
    "report": ("guides/front.md", "browser.md"),
}

_HEAD = """\
# The commands

Written by `make docs` from what `--help` prints; change the commands, not this page. Exit codes: 0
done, 1 the work failed, 2 the request was wrong, 130 interrupted (what was finished is kept).
"""


def reference() -> str:
    """Return the page."""
    group: Any = typer.main.get_command(app)
    parts = [_HEAD, "| command | what it does |\n|---|---|"]
    for name, command in group.commands.items():
        line = command.get_short_help_str(limit=WIDTH)
        parts[-1] += f"\n| [`tadnn {name}`](#tadnn-{name}) | {line} |"
    parts[-1] += "\n"
    for name, command in group.commands.items():
        parts.append(f"## tadnn {name}\n\n{_help(name, command)}\n")
        links = ", ".join(f"[{_title(page)}]({page})" for page in EXPLAINED.get(name, ()))
        if links:
            parts.append(f"Explained in: {links}.\n")
    return "\n".join(parts)


def _help(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"tadnn {name}", terminal_width=WIDTH)
    text = command.get_help(context)
    lines = (line.rstrip() for line in text.splitlines())
    return textwrap.indent("\n".join(lines), "    ")


def _title(page: str) -> str:
    path = PAGE.parent / page
    return path.read_text().partition("\n")[0].removeprefix("# ") if path.is_file() else page


if __name__ == "__main__":
    PAGE.write_text(reference())
    print(PAGE)
