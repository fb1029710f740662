"""``tadnn tail``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Batch, Device, Input, On, input_shape
from tadnn.cli.output import Json, path_text, print_json, say
from tadnn.errors import RequestError

if TYPE_CHECKING:
    from tadnn.tail import Goal

Measure = Annotated[
    bool,
    typer.Option("--measure", help="Profile these stairs here first: the clock decides."),
]
Minutes = Annotated[float, typer.Option(min=0.01, help="Time to profile for.")]


@app.command()
def tail(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="file.py:callable, package.module:callable (a Net or any nn.Module), a Net or "
            "architecture JSON, or STUDY#TRIAL.",
        ),
    ],
    on: On,
    batch: Batch = 1,
    input: Input = None,
    widen: Annotated[
        bool, typer.Option("--widen", help="The widest network at the same latency.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="The most capacity within this share of the latency, such as 0.8."),
    ] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="The fastest network of the same capacity.")
    ] = False,
    capacity: Annotated[
        str, typer.Option(help="What is kept: parameters, flops or importance.")
    ] = "parameters",
    narrowest: Annotated[
        float, typer.Option(help="The least share of its width that a layer keeps.")
    ] = 0.5,
    widest: Annotated[
        float, typer.Option(help="The greatest multiple of its width that a layer gets.")
    ] = 2.0,
    measure: Measure = False,
    minutes: Minutes = 3.0,
    device: Device = "auto",
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the rewritten network there.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="With --write: fine-tune on it before writing."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of fine-tuning.")] = 1,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw every group's staircase.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of new channels and of profiling.")] = 0,
    json: Json = False,
) -> None:
    """Show where the tail wastes time; rewrite a network.

    Without an option, the report alone: every group of widths that change together, the stair it
    stands on, and the next edges.
    """
    from tadnn.cli.tail_text import draw_stairs, show_report, show_rewrite
    from tadnn.cli.tail_work import channel_importance, own_model, refined, write_rewrite
    from tadnn.latency import load_latency_model
    from tadnn.search import resolve_target
    from tadnn.tail import Rewriter, tail_report, to_json

    goal = _goal(widen, budget, fastest)
    if write is not None and goal is None:
        raise RequestError("--write takes a rewrite: --widen, --budget or --fastest; got none")
    if data is not None and write is None:
        raise RequestError("--data fine-tunes what --write writes; got no --write")
    model = load_latency_model(on)
    found = resolve_target(target, input_shape(input))
    if measure:
        model = own_model(found, model, batch, minutes, device, seed)
    scores = channel_importance(found, capacity)
    rewriter = Rewriter(found.net, model, batch, capacity, scores, narrowest, widest)
    rewrite = decision = None
    if goal is not None and measure:
        rounds = refined(rewriter, goal, device, seed)
        rewriter, decision = rounds.rewriter, rounds.decisions[goal]
        rewrite = decision.rewrite
    elif goal is not None:
        rewrite = goal.propose(rewriter)
    report = tail_report(rewriter)
    if picture is not None:
        draw_stairs(report, found.name, picture)
    if write is not None and rewrite is not None:
        write_rewrite(write, found, rewriter, rewrite, decision, seed, (data, epochs))
    record = to_json(report, rewrite, decision)
    if json:
        print_json(record)
        return
    show_report(found, rewriter.model, report)
    if goal is not None:
        show_rewrite(found, report, rewrite, decision)
    if write is not None and rewrite is not None:
        say(f"wrote {path_text(write)}")


def _goal(widen: bool, budget: float | None, fastest: bool) -> Goal | None:
    from tadnn.tail import Goal

    goals = {}
    if widen:
        goals["--widen"] = Goal("widen")
    if budget is not None:
        goals["--budget"] = Goal("budget", budget)
    if fastest:
        goals["--fastest"] = Goal("fastest")
    if len(goals) > 1:
        raise RequestError(f"one of --widen, --budget and --fastest; got {' and '.join(goals)}")
    return next(iter(goals.values()), None)
