"""``tadnn screen``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Batch, Input, On, input_shape
from tadnn.cli.output import Bars, Json, path_text, print_json, print_table, say

_MOST_SHOWN = 20
_LONGEST = 60


@app.command()
def screen(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="A space's name or its file.")],
    on: On,
    n: Annotated[int, typer.Option("-n", min=1, help="Architectures to score.")] = 100_000,
    proxy: Annotated[
        str, typer.Option(help="What latency is weighed against: parameters or flops.")
    ] = "parameters",
    batch: Batch = 1,
    input: Input = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the architectures drawn.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for front.csv, front.json and the plot."),
    ] = None,
    json: Json = False,
) -> None:
    """Find the front of a space by predicted latency and size.

    Nothing is trained or stored. The files it writes can be a study's start_from.
    """
    from tadnn.latency import load_latency_model
    from tadnn.search import screen as screened
    from tadnn.spaces import load_space

    shape = input_shape(input)
    found = screened(
        load_space(space),
        load_latency_model(on),
        n,
        proxy=proxy,
        batch=batch,
        input_shape=shape,
        seed=seed,
        progress=Bars(),
    )
    record = found.record()
    files: dict[str, Path] = {}
    if output is not None:
        from tadnn.files import ensure_writable, write_json, write_text
        from tadnn.report import save_figure, screening_figure

        ensure_writable(output)
        files = {name: output / f"front.{name}" for name in ("json", "csv", "png")}
        write_json(files["json"], record)
        write_text(files["csv"], found.csv())
        front = [(float(m["latency_ms"]), float(m[found.proxy])) for m in found.members]
        subtitle = (
            f"{found.count:,} architectures on {found.latency_model} · batch {found.batch} · "
            f"{len(front)} on the front"
        )
        figure = screening_figure(found.space, subtitle, found.proxy, found.points, front)
        save_figure(figure, files["png"])
    if found.failed:
        say(f"note: {found.failed} architectures could not be built")
    if json:
        print_json({**record, "files": {name: str(path) for name, path in files.items()}})
        return
    step = max(1, -(-len(found.members) // _MOST_SHOWN))
    shown = found.members[::step]
    columns = ["latency ms", "parameters", "FLOPs"]
    rows = [[m["latency_ms"], m["parameters"], m["flops"]] for m in shown]
    texts = [_text(m["arch"]) for m in shown]
    if max(map(len, texts)) <= _LONGEST:
        columns.append("architecture")
        rows = [[*row, text] for row, text in zip(rows, texts, strict=True)]
    title = f"{found.space}: {len(found.members)} of {found.count:,} are on the front"
    if step > 1:
        title += f"; every {step}th is shown, -o writes all"
    print_table(columns, rows, title)
    for path in files.values():
        print(path_text(path))


def _text(arch: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in arch.items())
