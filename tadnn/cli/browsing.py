"""``tadnn browse`` and ``report``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.exporting import write_export
from tadnn.cli.options import Device, Measure, Study
from tadnn.cli.output import Bars, path_text, say
from tadnn.errors import RequestError

if TYPE_CHECKING:
    from tadnn.search import StudySpec

_PORT = 8642


@app.command()
def browse(
    studies: Annotated[
        list[str] | None,
        typer.Argument(metavar="STUDY", help="Studies to show; all here when absent."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of this machine alone; 0 takes any free one.")
    ] = _PORT,
    measure: Measure = True,
    device: Device = "auto",
) -> None:
    """Show studies and networks in a web browser.

    Serves pages to this machine alone, until Ctrl-C. Works while a search runs: studies are
    read and never changed.
    """
    from tadnn.report import Library
    from tadnn.report.browser import HOST, build_app, open_port, serve

    library = Library(tuple(studies or ()))
    with open_port(port) as listening:
        say(f"http://{HOST}:{listening.getsockname()[1]}/ shows the studies; Ctrl-C ends it")
        build = partial(build_export, measure_on=device if measure else None)
        serve(build_app(library, build), listening)


@app.command()
def report(
    study: Study,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write a study as one HTML file, to mail.

    It holds the browser's pages: the study, its best networks and its latency model.
    """
    from tadnn.report import Library
    from tadnn.report.browser import write_report

    if output.is_dir():
        raise RequestError(
            f"--output is a file to write, such as report.html; {output} is a folder"
        )
    library = Library((study,))
    (key,) = library.shelves()
    with Bars().task(f"writing {path_text(output)}", None):
        write_report(library, key, output)
    print(path_text(output))


def build_export(
    spec: StudySpec, trial: int, folder: Path, *, measure_on: str | None = "auto"
) -> None:
    """Write the export of one trial, as ``tadnn export --trial`` does."""
    from tadnn.search import read_study

    write_export(spec, read_study(spec, unchanged=True), trial, folder, measure_on=measure_on)
