"""``tadnn profile``, ``fit`` and ``evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Batch, Device, Fresh, Input, On, input_shape, model_name
from tadnn.cli.output import Bars, Json, path_text, print_json, print_table, say
from tadnn.errors import RequestError

if TYPE_CHECKING:
    from tadnn.hardware import DeviceSpec
    from tadnn.kernels import TimingRow
    from tadnn.latency import LatencyModel, NetTiming

Runtime = Annotated[str, typer.Option(help="How networks are executed.")]
Name = Annotated[str, typer.Option(help="The latency model's name.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores when absent.")]
Seed = Annotated[int, typer.Option(min=0, help="Of plans and fits.")]


@app.command()
def profile(
    name: Name,
    space: Annotated[list[str] | None, typer.Option(help="A search space; repeatable.")] = None,
    net: Annotated[
        list[str] | None, typer.Option(metavar="TARGET", help="A network; repeatable.")
    ] = None,
    device: Device = "auto",
    runtime: Runtime = "torch-eager",
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "fp32",
    math: Annotated[str, typer.Option(help="ieee, or tf32 on NVIDIA GPUs.")] = "ieee",
    layout: Annotated[str, typer.Option(help="Of images: nchw, or nhwc (channels last).")] = "nchw",
    flush_l2: Annotated[
        bool, typer.Option("--flush-l2", help="Empty a GPU's L2 cache before every run.")
    ] = False,
    threads: Threads = None,
    batch: Batch = 1,
    input: Input = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Outputs of a space's nets.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Time to measure for.")] = None,
    kernels: Annotated[int | None, typer.Option(min=10, help="Kernels to measure.")] = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """Measure this device's kernels and learn a latency model.

    Run again, it measures only what is missing.
    """
    from tadnn.latency import Budget
    from tadnn.profiling import open_clock
    from tadnn.runtimes import Setting, find_runtime
    from tadnn.search import SAMPLED_NETS, learn_space, physical_cores, resolve_target
    from tadnn.spaces import load_space

    model_name(name)
    if bool(space) == bool(net):
        got = "both" if space else "neither"
        raise RequestError(f"profile takes either --space NAME or --net TARGET; got {got}")
    find_runtime(runtime)
    shape = input_shape(input)
    cores = threads or physical_cores()
    setting = Setting(runtime, dtype, math, layout, cores, flush_l2)
    clock = open_clock(device, setting)
    nets = [resolve_target(target, shape).net for target in net or ()]
    for entry in space or ():
        loaded = load_space(entry)
        archs = loaded.sample(SAMPLED_NETS, seed)
        phases = (None, *loaded.phases)
        nets += [loaded.build(arch, shape, classes, phase) for arch in archs for phase in phases]
    default = Budget()
    # With a time given, the time decides.
    most = kernels or (default.kernels if minutes is None else 1_000_000)
    model = learn_space(
        name,
        nets,
        batch,
        clock,
        budget=Budget(most, default.nets, minutes),
        seed=seed,
        fresh=fresh,
        progress=Bars(),
    )
    _show_model(model, json)


@app.command()
def fit(
    table: Annotated[
        list[str], typer.Option(metavar="DEVICE=TABLE.csv", help="A kernel table; repeatable.")
    ],
    name: Name,
    runtime: Runtime,
    nets: Annotated[
        Path | None, typer.Option(metavar="TIMINGS.csv", help="A timing table of whole networks.")
    ] = None,
    threads: Threads = None,
    notes: Annotated[str, typer.Option(help="For the card: source and licence.")] = "",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Fit a latency model to kernel tables, one per device."""
    from tadnn.files import LATENCY_MODELS
    from tadnn.kernels import read_kernel_table, read_timing_table
    from tadnn.latency import calibrate_nets, fit_kernels, save_latency_model
    from tadnn.runtimes import Setting, find_runtime

    model_name(name)
    find_runtime(runtime)
    tables = []
    for text in table:
        slug, equals, path = text.partition("=")
        if not equals or not slug or not path:
            raise RequestError(f"--table reads DEVICE=TABLE.csv; got {text!r}")
        tables.append((_any_device(slug), read_kernel_table(Path(path))))
    timings = read_timing_table(nets) if nets is not None else []
    first, rows = tables[0]
    cores = first.units if first.kind == "cpu" else 1
    setting = Setting(runtime=runtime, dtype=rows[0].kernel.dtype, threads=threads or cores)
    sources = ", ".join(Path(text.partition("=")[2]).name for text in table)
    with Bars().task("fitting the latency model", None):
        model = fit_kernels(name, tables, setting, source=sources, notes=notes, seed=seed)
        if timings:
            model = calibrate_nets(model, timed_nets(timings))
        model = save_latency_model(model, LATENCY_MODELS.local / name)
    _show_model(model, json)


@app.command()
def evaluate(
    table: Annotated[Path, typer.Argument(help="A kernel table or a timing table.")],
    on: On,
    json: Json = False,
) -> None:
    """Compare a latency model with measurements."""
    from tadnn.kernels import is_timing_table, read_kernel_table, read_timing_table
    from tadnn.latency import evaluate_kernels, evaluate_nets, load_latency_model

    model = load_latency_model(on)
    if is_timing_table(table):
        result = evaluate_nets(model, timed_nets(read_timing_table(table)))
    else:
        result = evaluate_kernels(model, read_kernel_table(table))
    if json:
        print_json(result)
        return
    rows = [("overall", result["overall"]), *result["by_op"].items()]
    print_table(
        ["", *_COMPARED.values()],
        [(label, *(summary[key] for key in _COMPARED)) for label, summary in rows],
        f"{model.name} against {table.name}: errors in percent",
    )
    overall = result["overall"]
    print(
        f"within one and two sigma: {overall['one_sigma']:.1f} and {overall['two_sigma']:.1f} %"
        + (
            f"; near pairs ordered rightly: {overall['near_pairs']:.1f} %"
            if overall["near_pairs"] is not None
            else ""
        )
    )
    if result["out_of_range"]:
        print(f"{result['out_of_range']} of the rows lie outside the profiled range")
    for c in result["contradictions"][:_CONTRADICTIONS_SHOWN]:
        spread = f"{c['least_us']:.6g} to {c['most_us']:.6g} us"
        print(f"contradicts itself: {c['kernel']}, {c['rows']} rows from {spread}")


def _any_device(name: str) -> DeviceSpec:
    """Return a device by name: one of the table, or one of this machine."""
    from tadnn.hardware import detect_cpu, find_device

    cpu = detect_cpu()
    return cpu if name.casefold() in ("cpu", cpu.slug) else find_device(name)


def timed_nets(rows: list[TimingRow]) -> list[NetTiming]:
    """Return the networks that a timing table names, with their latencies."""
    from tadnn.latency import NetTiming
    from tadnn.search import resolve_target

    targets = dict.fromkeys(row.target for row in rows)
    with Bars().task("reading the networks", len(targets)) as advance:
        nets = {}
        for target in targets:
            nets[target] = resolve_target(target).net
            advance(1)
    return [NetTiming(nets[row.target], row.batch, row.latency_ms) for row in rows]


def show_errors(held_out: Mapping[str, Mapping[str, object]], title: str) -> None:
    """Print held-out errors by op."""
    print_table(
        ["op", "n", *_HELD_OUT.values()],
        [(op, s.get("n", 0), *(s.get(key) for key in _HELD_OUT)) for op, s in held_out.items()],
        title,
    )


def _show_model(model: LatencyModel, json: bool) -> None:
    from tadnn.files import LATENCY_MODELS

    folder = LATENCY_MODELS.find(model.card.name)
    held_out = {op: dict(fitted.held_out) for op, fitted in model.ops.items()}
    if json:
        print_json(
            {
                "latency_model": model.card.name,
                "path": str(folder),
                "devices": [device.slug for device in model.card.devices],
                "setting": model.setting.to_dict(),
                "kernels": model.card.data.get("rows"),
                "held_out": held_out,
                "nets": model.nets.to_dict(),
            }
        )
        return
    show_errors(held_out, f"{model.card.name}: errors in percent, on shapes left out of the fit")
    if model.nets.held_out:
        s = model.nets.held_out
        print(
            f"whole networks left out: median error {s['median_ape']:.1f} %, "
            f"mean {s['mape']:.1f} % over {s['n']}"
        )
    say(f"wrote {path_text(folder)}")


_COMPARED = {
    "n": "n",
    "mape": "mean",
    "median_ape": "median",
    "within_5": "<5%",
    "within_10": "<10%",
    "within_20": "<20%",
    "bias": "bias",
    "spearman": "Spearman",
}
_CONTRADICTIONS_SHOWN = 5
# The last two: shares of errors within one and two predicted standard deviations.
_HELD_OUT = {
    "median_ape": "median",
    "mape": "mean",
    "within_10": "<10%",
    "one_sigma": "<1 sigma",
    "two_sigma": "<2 sigma",
}
