"""``tadnn adapt`` and ``calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.learning import Name, Seed, show_errors, timed_nets
from tadnn.cli.options import On, model_name
from tadnn.cli.output import Bars, Json, path_text, print_json, say

Notes = Annotated[str, typer.Option(help="For the card: source and licence.")]


@app.command()
def adapt(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE.csv", help="A kernel table; 5 to 50 rows will do.")
    ],
    on: On,
    name: Name,
    notes: Notes = "",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Adapt a latency model to a device by a few of its kernels."""
    from tadnn.files import LATENCY_MODELS
    from tadnn.kernels import read_kernel_table
    from tadnn.latency import adapt as adapted
    from tadnn.latency import load_latency_model, save_latency_model

    model_name(name)
    base = load_latency_model(on)
    rows = read_kernel_table(table)
    with Bars().task("adapting the latency model", None):
        model = adapted(name, base, rows, source=table.name, notes=notes, seed=seed)
        model = save_latency_model(model, LATENCY_MODELS.local / name)
    held_out = dict(model.adjustments[-1].to_dict()["held_out"])
    if json:
        print_json(
            {
                "latency_model": name,
                "path": str(LATENCY_MODELS.find(name)),
                "device": model.device.slug,
                "base": base.name,
                "kernels": model.card.data["rows"],
                "held_out": held_out,
            }
        )
        return
    title = f"{name}, {base.name} adapted: errors in percent, on rows left out one at a time"
    show_errors(held_out, title)
    say(f"wrote {path_text(LATENCY_MODELS.find(name))}")


@app.command()
def calibrate(
    timings: Annotated[
        Path, typer.Argument(metavar="TIMINGS.csv", help="A timing table of whole networks.")
    ],
    on: On,
    name: Name,
    notes: Notes = "",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Calibrate a latency model from timings of whole networks alone."""
    from tadnn.files import LATENCY_MODELS
    from tadnn.kernels import read_timing_table
    from tadnn.latency import calibrate as calibrated
    from tadnn.latency import load_latency_model, save_latency_model

    model_name(name)
    base = load_latency_model(on)
    rows = read_timing_table(timings)
    measured = timed_nets(rows)
    with Bars().task("calibrating the latency model", None):
        model = calibrated(
            name,
            base,
            measured,
            names=[row.target for row in rows],
            source=timings.name,
            notes=notes,
            seed=seed,
        )
        model = save_latency_model(model, LATENCY_MODELS.local / name)
    if json:
        print_json(
            {
                "latency_model": name,
                "path": str(LATENCY_MODELS.find(name)),
                "device": model.device.slug,
                "base": base.name,
                "timings": len(rows),
                "nets": model.nets.to_dict(),
                "factors": model.adjustments[-1].to_dict(),
            }
        )
        return
    show_errors(
        {"networks": dict(model.nets.held_out)},
        f"{name}, {base.name} calibrated: errors in percent, on networks left out",
    )
    say(f"wrote {path_text(LATENCY_MODELS.find(name))}")
