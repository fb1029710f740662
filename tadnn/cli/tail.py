"""``tadnn tail`` and ``sweep``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Batch, Device, Input, On, input_shape
from tadnn.cli.output import Bars, Json, path_text, print_json, print_table, say
from tadnn.errors import RequestError

if TYPE_CHECKING:
    from torch import nn

    from tadnn.export import Trained
    from tadnn.latency import LatencyModel
    from tadnn.search import Target
    from tadnn.tail import Decision, Rewrite, Rewriter, Sweep, TailReport

_SHOWN = 40
_RATE, _FINE_RATE = 0.1, 0.02
_PROPOSALS = (1.03, 0.97, 0.94, 0.9)

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
    from tadnn.latency import load_latency_model
    from tadnn.search import resolve_target
    from tadnn.tail import Rewriter, tail_report, to_json

    asked = [name for name, on_ in _asked(widen, budget, fastest).items() if on_]
    if len(asked) > 1:
        raise RequestError(f"one of --widen, --budget and --fastest; got {' and '.join(asked)}")
    if write is not None and not asked:
        raise RequestError("--write takes a rewrite: --widen, --budget or --fastest; got none")
    if data is not None and write is None:
        raise RequestError("--data fine-tunes what --write writes; got no --write")
    model = load_latency_model(on)
    found = resolve_target(target, input_shape(input))
    if measure:
        model = _own_model(found, model, batch, minutes, device, seed)
    scores = _importance(found, capacity)
    rewriter = Rewriter(found.net, model, batch, capacity, scores, narrowest, widest)
    report = tail_report(rewriter)
    rewrite = _rewrite(rewriter, widen, budget, fastest)
    decision = None
    if measure and rewrite is not None:
        decision = _decide(rewriter, rewrite, budget, device)
        rewrite = decision.rewrite
    if picture is not None:
        _draw(report, found.name, picture)
    if write is not None and rewrite is not None:
        _write(write, found, rewriter, rewrite, decision, seed, (data, epochs))
    record = to_json(report, rewrite, decision)
    if json:
        print_json(record)
        return
    _show(found, model, report)
    if asked:
        _show_rewrite(found, report, rewrite, decision)
    if write is not None and rewrite is not None:
        say(f"wrote {path_text(write)}")


def _asked(widen: bool, budget: float | None, fastest: bool) -> dict[str, bool]:
    return {"--widen": widen, "--budget": budget is not None, "--fastest": fastest}


def _importance(found: Target, capacity: str) -> Any:
    if capacity != "importance" or found.traced is None:
        return None
    from tadnn.tail import follow, importance

    return importance(follow(found.net), found.traced.weights)


def _rewrite(
    rewriter: Rewriter, widen: bool, budget: float | None, fastest: bool
) -> Rewrite | None:
    if widen:
        return rewriter.widened()
    if budget is not None:
        return rewriter.within(budget)
    return rewriter.fastest() if fastest else None


def _own_model(
    found: Target, model: LatencyModel, batch: int, minutes: float, device: str, seed: int
) -> LatencyModel:
    """Learn this network's own stairs in the setting of a latency model."""
    from tadnn.latency import Budget
    from tadnn.profiling import open_clock
    from tadnn.search import learn_space
    from tadnn.tail import follow, variants

    clock = open_clock(device, model.setting)
    model.require(clock.setting, clock.device, [])
    nets = variants(follow(found.net), seed=seed)
    name = f"auto-tail-{found.net.key}-{batch}"
    limit = Budget(kernels=1_000_000, minutes=minutes)
    return learn_space(name, nets, batch, clock, budget=limit, seed=seed, progress=Bars())


def _decide(rewriter: Rewriter, rewrite: Rewrite, budget: float | None, device: str) -> Decision:
    """Let the clock choose among the rewrite and a few for budgets around."""
    from tadnn.profiling import open_clock
    from tadnn.tail import decide

    allowed = 1.0 if budget is None else budget
    proposals = [rewrite]
    if budget is not None:
        proposals += rewriter.around(budget, _PROPOSALS)
    clock = open_clock(device, rewriter.model.setting)
    net = rewriter.net
    return decide(clock, net, proposals, rewriter.batch, allowed, Bars())


def _write(
    folder: Path,
    found: Target,
    rewriter: Rewriter,
    rewrite: Rewrite,
    decision: Decision | None,
    seed: int,
    tuning: tuple[str | None, int],
) -> None:
    from tadnn.export import CardFacts, ExportRequest, Measured, Predicted, export_network
    from tadnn.tail import carry_over

    model = rewriter.model
    prediction = model.predict_net(rewrite.net, rewriter.batch)
    measured = decision.measured if decision is not None else None
    card = CardFacts(
        device=model.device.name,
        setting=model.setting.label,
        batch=rewriter.batch,
        origin=found.name
        + (", its weights carried over" if found.traced is not None else ", which has no weights"),
        latency_model=model.name,
        latency_model_error=model.nets.held_out.get("mape"),
        predicted=Predicted(prediction.latency_ms, prediction.std_ms, prediction.in_range),
        measured=None
        if measured is None
        else Measured(measured.latency_us / 1e3, measured.spread_us / 1e3, measured.repeats),
    )
    data, epochs = tuning
    module = None
    if found.traced is not None or data is not None:
        module = rewrite.net.to_module(seed)
    if found.traced is not None and module is not None:
        weights = carry_over(rewriter.flow, found.traced.weights, rewrite.changed, seed)
        module.load_state_dict(weights)
        module.eval()
    if data is not None and module is not None:
        # Weights that were carried over are near where they should be; others are not.
        rate = _FINE_RATE if found.traced is not None else _RATE
        card = replace(card, trained=_tuned(module, rewrite, data, epochs, seed, rate))
    export_network(folder, ExportRequest(rewrite.net, card, module=module, weights_seed=seed))


def _tuned(
    module: nn.Module, rewrite: Rewrite, data: str, epochs: int, seed: int, rate: float
) -> Trained:
    """Fine-tune a rewritten network; return what it reached on the test split."""
    from tadnn.accuracy import load_dataset, train
    from tadnn.export import Trained

    dataset = load_dataset(data, rewrite.net.input_shape)
    done = train(module, dataset, epochs=epochs, seed=seed, learning_rate=rate, progress=Bars())
    return Trained(done.accuracy, done.epochs, done.split)


def _draw(report: TailReport, name: str, path: Path) -> None:
    from tadnn.report import save_figure, tail_figure, tail_view

    save_figure(tail_figure(tail_view(name, report)), path)


def _show(found: Target, model: LatencyModel, report: TailReport) -> None:
    print_table(
        ["width of", "now", "us", "share %", "waves", "used", "edge below", "saves us",
         "edge above", "costs us", ""],
        [
            (
                ("" if g.in_range else "? ") + g.name,
                g.width,
                g.latency_us,
                100 * g.share,
                g.waves,
                g.utilisation,
                g.edge_down.width if g.edge_down else None,
                -g.edge_down.change_us if g.edge_down else None,
                g.edge_up.width if g.edge_up else None,
                g.edge_up.change_us if g.edge_up else None,
                g.remark,
            )
            for g in report.groups[:_SHOWN]
        ],
    )  # fmt: skip
    if any(g.is_free for g in report.groups):
        print("free: the edge above costs nothing that can be told from nothing (--widen)")
    if len(report.groups) > _SHOWN:
        print(f"and {len(report.groups) - _SHOWN} more, each of a smaller share (--json has all)")
    if any(g.normed and not g.frozen for g in report.groups):
        print("normed: a layer norm reads it, so new channels would change what is computed")
    for group in report.frozen[:_SHOWN]:
        print(f"stays: {group.name}: {group.frozen}")
    if not report.in_range:
        print("?: outside of the profiled range; --measure profiles this network's own stairs")
    for line in report.remarks():
        print(line)
    print(
        f"{found.name} on {model.name}, batch {report.batch}: "
        f"{report.latency_ms:.3f} ± {report.std_ms:.3f} ms predicted"
    )


def _show_rewrite(
    found: Target, report: TailReport, rewrite: Rewrite | None, decision: Decision | None
) -> None:
    if rewrite is None:
        assert decision is not None
        print("no proposal kept what was asked when it was measured; the network stays as it is")
        return
    parameters = found.net.parameters
    changed = {g.name: g.width for g in report.groups if rewrite.widths.get(g.name) != g.width}
    print_table(
        ["width of", "was", "is"],
        [(n, was, rewrite.widths[n]) for n, was in changed.items() if n in rewrite.widths],
        "rewritten",
    )
    share = rewrite.latency_ms / report.latency_ms
    print(
        f"predicted {rewrite.latency_ms:.3f} ms, {share:.3f} of the network's; parameters "
        f"{rewrite.parameters:,}, {rewrite.parameters / parameters:.3f} of them"
    )
    if rewrite.bound is not None:
        print(f"gain {rewrite.gain:,.0f}; no widths on these edges gain over {rewrite.bound:,.0f}")
    if decision is not None and decision.measured is not None:
        was, now = decision.original.latency_us, decision.measured.latency_us
        print(
            f"measured {now / 1e3:.3f} ms against {was / 1e3:.3f} ms, {now / was:.3f} of it "
            f"(the network against itself: {100 * decision.noise:.1f} %)"
        )


@app.command()
def sweep(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help='Such as "linear(m=1,n=10,k=64)".')
    ],
    over: Annotated[
        str, typer.Option(metavar="SIZE=LOW:HIGH[:STEP]", help="Such as k=16:512 or k=16:512:16.")
    ],
    on: On,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure every width on this machine, too.")
    ] = False,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("-o", metavar="DIR", help="Write a picture and a CSV there."),
    ] = None,
    json: Json = False,
) -> None:
    """Show latency against one size of a kernel: the staircase."""
    from tadnn.kernels import Kernel
    from tadnn.latency import load_latency_model
    from tadnn.profiling import open_clock
    from tadnn.tail import sweep_kernel, sweep_values

    parsed = Kernel.parse(kernel)
    size, values = sweep_values(parsed, over)
    model = load_latency_model(on)
    clock = None
    if measure:
        clock = open_clock(device, model.setting)
        model.require(clock.setting, clock.device, [])
    found = sweep_kernel(model, parsed, size, values, clock, Bars())
    if out is not None:
        found.write_csv(out / "stairs.csv")
        _draw_sweep(found, model, out / "stairs.png")
    if json:
        print_json(found.to_json())
        return
    rows = [row for row in found.rows() if row[4]] if len(values) > _SHOWN else found.rows()
    print_table(
        [*found.columns],
        [tuple(("no", "yes")[v] if isinstance(v, bool) else v for v in row) for row in rows],
        f"{parsed.key} on {model.name}" + (": efficient values" if len(rows) < len(values) else ""),
    )
    if out is not None:
        say(f"wrote {path_text(out)}")


def _draw_sweep(found: Sweep, model: LatencyModel, path: Path) -> None:
    from tadnn.report import StairView, save_figure, stairs_figure

    view = StairView(
        title=f"{found.kernel.op} on {model.name}: latency against {found.size}",
        subtitle=found.kernel.key,
        axis=f"size {found.size}",
        widths=found.values,
        latency_us=found.latency_us,
        std_us=found.std_us,
        measured_us=found.measured_us,
        efficient=found.efficient_values,
    )
    save_figure(stairs_figure(view), path)
