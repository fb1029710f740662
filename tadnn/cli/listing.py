"""``tadnn devices`` and ``tadnn spaces``."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.output import Json, path_text, print_json, print_table

if TYPE_CHECKING:
    from tadnn.hardware import DeviceSpec


@app.command()
def devices(json: Json = False) -> None:
    """List this machine's devices and every device known by name."""
    from tadnn.hardware import detect_devices
    from tadnn.hardware import devices as known_devices

    here, known = detect_devices(), known_devices()
    if json:
        print_json(
            {
                "here": {name: spec.to_dict() for name, spec in here.items()},
                "known": {slug: spec.to_dict() for slug, spec in known.items()},
            }
        )
        return
    columns = ["slug", "name", "units", "MHz", "fp32\nTFLOPS", "GB/s"]
    local = [(name, *_facts(spec)) for name, spec in here.items()]
    print_table(["device", *columns], local, "This machine")
    print_table(columns, [_facts(spec) for spec in known.values()], "Known by name (nominal facts)")


def _facts(spec: DeviceSpec) -> tuple[object, ...]:
    peak = spec.peak_tflops.get("fp32")
    return spec.slug, spec.name, spec.units, spec.clock_mhz, peak, spec.bandwidth_gbps


@app.command()
def spaces(
    name: Annotated[str | None, typer.Argument(help="Show one space's choices.")] = None,
    json: Json = False,
) -> None:
    """List the search spaces, or the choices of one. Runs the spaces' Python files."""
    from tadnn.files import SEARCH_SPACES
    from tadnn.spaces import load_space

    if name is None:
        files = SEARCH_SPACES.entries()
        loaded = [load_space(entry) for entry in files]
        if json:
            summary = [
                {
                    "name": space.name,
                    "choices": len(space.choices),
                    "size": space.size(),
                    "default_input": list(space.default_input),
                    "file": str(files[space.name]),
                }
                for space in loaded
            ]
            print_json({"spaces": summary})
            return
        print_table(
            ["space", "choices", "networks", "default input", "file"],
            [
                (
                    space.name,
                    len(space.choices),
                    _size(space.size()),
                    ",".join(map(str, space.default_input)),
                    _place(files[space.name]),
                )
                for space in loaded
            ],
        )
        return
    space = load_space(name)
    choices = [
        {
            "name": key,
            "group": choice.group,
            "values": list(choice.values),
            "when": {parent: list(values) for parent, values in choice.when.items()},
        }
        for key, choice in space.choices.items()
    ]
    if json:
        phases = {"phases": list(space.phases)} if space.phases else {}
        print_json({"name": space.name, "size": space.size(), **phases, "choices": choices})
        return
    rows = [
        (
            key,
            choice.group or None,
            choice.describe(),
            "; ".join(f"{parent} is {_among(v)}" for parent, v in choice.when.items()) or None,
        )
        for key, choice in space.choices.items()
    ]
    print_table(
        ["choice", "group", "values", "only when"], rows, f"{name}: {_size(space.size())} networks"
    )
    if space.phases:
        print(f"phases, with a latency of their own: {', '.join(space.phases)}")


def _among(values: Sequence[object]) -> str:
    """Return ``3 to 6`` for consecutive numbers, ``3 or 5`` for others."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)) == list(values):
        return f"{numbers[0]} to {numbers[-1]}"
    return " or ".join(map(str, values))


def _place(path: Path) -> str:
    """Return where a space's file is; the built-in ones are known to be tadnn's."""
    from tadnn.files import SEARCH_SPACES

    return path_text(path) if path.parent == SEARCH_SPACES.local else "built-in"


def _size(count: int) -> str:
    return format(Decimal(count), ".3g")  # more than a float holds, in large spaces
