"""``tadnn search``, ``front``, ``plot`` and ``export``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tadnn.cli.app import app
from tadnn.cli.exporting import export_record, say_agreement, write_export
from tadnn.cli.options import Device, Fresh, Measure, Study
from tadnn.cli.output import Bars, Json, path_text, print_json, say
from tadnn.errors import RequestError

if TYPE_CHECKING:
    from tadnn.search import StudySpec

_NO_TRIAL = -1


@app.command()
def search(study: Study, device: Device = "auto", fresh: Fresh = False, json: Json = False) -> None:
    """Run a study, or go on with it; write front, plots and knee.

    With ``latency_model: auto`` this machine is learned first. Finished work is kept when
    the command is interrupted; the same command goes on.
    """
    from tadnn.cli.pictures import draw_study
    from tadnn.export import export_network, is_exported
    from tadnn.search import (
        export_request,
        knee_trial,
        load_spec,
        read_study,
        run_search,
        study_folder,
    )

    spec = load_spec(study)
    progress = Bars()
    result = run_search(spec, device=device, fresh=fresh, progress=progress)
    files = dict(result.files)
    files |= draw_study(spec, ("png", "svg"), progress)
    knee = knee_trial(result.record)
    if knee is not None:
        folder = study_folder(spec) / "knee"
        request = export_request(spec, read_study(spec), knee)
        if not is_exported(folder, request):
            with progress.task(f"exporting the knee, trial {knee}", None):
                export_network(folder, request)
        files["knee"] = folder
        say_agreement(request.card)
    _warn(result.record)
    if json:
        print_json({**result.record, "files": {k: str(v) for k, v in files.items()}})
        return
    _print_front(result.record, spec)
    _print_check(result.check)
    for phase, check in result.phase_checks.items():
        _print_check(check, phase)
    print("wrote")
    for path in files.values():
        print(f"  {path_text(path)}")


@app.command()
def front(study: Study, json: Json = False) -> None:
    """Show a study's front as it is now; works while a search runs."""
    from tadnn.search import front_record, load_spec, read_study

    spec = load_spec(study)
    record = front_record(read_study(spec, unchanged=True))
    _warn(record)
    if json:
        print_json(record)
        return
    _print_front(record, spec)


@app.command()
def plot(
    study: Study,
    formats: Annotated[str, typer.Option(help="Of png, svg, pdf, by commas.")] = "png,svg,pdf",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; the study's when absent.")
    ] = None,
    trial: Annotated[
        int | None, typer.Option(help="The network of breakdown and stairs; the knee when absent.")
    ] = None,
) -> None:
    """Draw a study's front, predictions, and one network's latency."""
    from tadnn.cli.pictures import FORMATS, draw_study
    from tadnn.errors import UnknownName
    from tadnn.search import load_spec

    wanted = tuple(part.strip() for part in formats.split(",") if part.strip())
    for part in wanted or ("",):
        if part not in FORMATS:
            raise UnknownName("picture format", part, FORMATS)
    files = draw_study(load_spec(study), wanted, Bars(), folder=output, trial=trial)
    for path in files.values():
        print(path_text(path))


@app.command()
def export(
    study: Study,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")],
    knee: Annotated[bool, typer.Option("--knee", help="The front's knee.")] = False,
    trial: Annotated[int | None, typer.Option(help="One trial by number.")] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(min=0.0, help="The best within this latency.")
    ] = None,
    measure: Measure = True,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write a network of a study as files that run without tadnn.

    Its latency is measured again first, as finalists are, and compared with the prediction.
    """
    from tadnn.search import best_within, front_record, knee_trial, load_spec, read_study

    if (trial is not None) + (max_latency_ms is not None) + knee > 1:
        raise RequestError("export takes one of --knee, --trial and --max-latency-ms")
    spec = load_spec(study)
    found = read_study(spec, unchanged=True)
    if trial is not None:
        number = trial
    elif max_latency_ms is not None:
        number = best_within(front_record(found), max_latency_ms)
    else:
        at_knee = knee_trial(front_record(found))
        if at_knee is None:
            raise RequestError(f"study {spec.name} has no front yet; nothing to export")
        number = at_knee
    request, files = write_export(
        spec, found, number, output, measure_on=device if measure else None
    )
    if json:
        print_json(export_record(request, files))
        return
    print(f"trial {number}: {request.status}")
    for path in files:
        print(path_text(path))


def _print_front(record: Mapping[str, Any], spec: StudySpec) -> None:
    from rich.console import Console

    from tadnn.report import FrontView, front_table
    from tadnn.search import knee_trial

    console = Console(highlight=False)
    if record["members"]:
        view = FrontView.from_records(record, knee=knee_trial(record))
        console.print(front_table(view, console.width), crop=False)
    elif record.get("least_infeasible"):
        nearest = {**record, "members": record["least_infeasible"]}
        table = front_table(FrontView.from_records(nearest, knee=_NO_TRIAL), console.width)
        table.title = f"{spec.name}: no trial meets the constraints; the least infeasible"
        console.print(table, crop=False)
    else:
        print(f"study {spec.name} has no completed trial yet")


def _warn(record: Mapping[str, Any]) -> None:
    from tadnn.search import infeasible_warning

    warning = infeasible_warning(record)
    if warning is not None:
        say(f"warning: {warning}")


def _print_check(check: Mapping[str, Any] | None, phase: str | None = None) -> None:
    if check is None:
        return
    of = "" if phase is None else f", {phase}"
    print(f"finalists{of}, predicted against measured:")
    print(f"  mean error {check['mape']:.1f} %, bias {check['bias']:+.1f} %, over {check['n']}")
    if check["pairs_ordered"] is not None:
        print(f"  {check['pairs_ordered']:.0f} % of the pairs more than 10 % apart ordered rightly")
    print(f"  the slowest takes {check['span']:.1f} times as long as the fastest")
    if check["against_itself"] is not None:
        print(f"  a network against itself differs by up to {check['against_itself']:.1f} %")
    if check["drift"] is not None:
        pace = "more" if check["drift"] > 0 else "less"
        print(f"  networks that the machine was learned on took {abs(check['drift']):.1f} % {pace}")
