"""What the stairs are worth: rewritten networks measured beside every simpler way.

    python benchmarks/tail.py [--network NAME ...] [--runtime R ...] [--threads N ...]
                              [--minutes M] [--results DIR]
    python benchmarks/tail.py --predicted MODEL ...

The networks are timm's, random weights, none written here. Each is taken as published and after
uniform pruning of 30 % of its channels, where the TA-DNN paper starts (arXiv 2011.03897). A
latency model of the network's own stairs is learned within the minutes given, and these are
measured, interleaved, each in a clean process of its own:

    again                    the A/A row: the pruned network once more
    8, 16, 32 up and down    plain rounding of the pruned widths
    smooth                   the same optimiser on a latency model without stairs, fitted to the
                             same measurements, any whole widths: what moving width between
                             layers is worth alone
    smooth, to 8             the same, rounded to the nearest multiples of 8
    tadnn                    the fastest network of the pruned one's parameters
    widened                  the widest network at the pruned one's latency
    budget                   the most parameters within 80 % of the pruned one's latency
    ..., unmeasured          the same before anything proposed was measured

All latencies are told as shares of the pruned network's. Every network's results are written as
soon as they are there; called again, what is there isn't measured again. With ``--predicted`` no
clock runs: a latency model that exists, such as a built-in one, tells the latencies of what it
proposed itself, which proves nothing about the device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from smooth_model import SmoothModel
from tail_networks import GOALS, NETWORKS, PRUNED, controls, published, rewritten, uniform

from tadnn.files import environment, write_text
from tadnn.kernels import KernelRow, read_kernel_table
from tadnn.latency import Budget, LatencyModel, extend, learn, load_latency_model
from tadnn.nets import Net
from tadnn.profiling import Clock, NetRun, ProfileDatabase, kernel_pool, measure, open_clock
from tadnn.runtimes import Setting, find_runtime
from tadnn.tail import Rewriter, follow, refine, variants

AGAIN = "again"
RESULTS = Path("build/bench-tail")


def measured(
    name: str, clock: Clock, batch: int, minutes: float, rounds: int, folder: Path
) -> dict[str, Any]:
    """Learn, rewrite and measure one network, as ``tadnn tail --measure`` does."""
    start = time.monotonic()
    net = published(name)
    pruned = uniform(follow(net), PRUNED)
    database, at = ProfileDatabase(folder / "profiles.db"), folder / "models" / name
    nets = variants(follow(pruned))
    budget = Budget(kernels=1_000_000, nets=12, minutes=minutes)
    model = learn(name, nets, batch, clock, database, at, budget=budget)
    smooth = SmoothModel.of(model, read_kernel_table(at / "kernels.csv.gz"))
    made, (first, seconds) = controls(net, pruned, smooth, batch), rewritten(pruned, model, batch)
    made |= {f"{label}, unmeasured": found for label, found in first.items()}

    def relearn(proposed: Sequence[Net]) -> LatencyModel:
        nonlocal model
        model = extend(model, proposed, batch, clock, database, at)
        return model

    goals = [GOALS[label] for label in first]
    refined = refine(Rewriter(pruned, model, batch), goals, clock, relearn, rounds)
    for label, goal in zip(first, goals, strict=True):
        if (rewrite := refined.decisions[goal].rewrite) is not None:
            made[label] = rewrite.net
    made |= {"published": net, AGAIN: pruned}
    # Measured anew, all in turns: what was chosen for a measurement isn't judged by it.
    times = measure(clock, [NetRun(net, batch) for net in made.values()], max_repeats=30)
    us = dict(zip(made, times, strict=True))
    level = (us["pruned"].latency_us + us[AGAIN].latency_us) / 2
    result = _result(name, made, model, batch, level)
    for label, row in result["rows"].items():
        row["latency"] = us[label].latency_us / level
        row["error"] = us[label].error_us / level
    record = environment() | clock.environment()
    took = round(time.monotonic() - start, 1)
    return result | {"seconds": seconds | {"all": took}, "environment": record}


def predicted(name: str, model: LatencyModel, batch: int) -> dict[str, Any]:
    """Rewrite one network on a latency model, which tells all latencies."""
    net = published(name)
    pruned = uniform(follow(net), PRUNED)
    nets = variants(follow(pruned))
    runtime, dtype = find_runtime(model.setting.runtime), model.setting.dtype
    pool = list(kernel_pool(nets, batch, dtype, runtime))
    us = model.predict_us(pool).tolist()
    smooth = SmoothModel.of(model, [KernelRow(k, u) for k, u in zip(pool, us, strict=True)])
    made, (first, seconds) = controls(net, pruned, smooth, batch), rewritten(pruned, model, batch)
    made |= first | {"published": net}
    level = model.predict_net(pruned, batch).latency_ms * 1e3
    result = _result(name, made, model, batch, level)
    for row in result["rows"].values():
        row["latency"] = row["predicted"]
    return result | {"seconds": seconds}


def _result(
    name: str, made: dict[str, Net], model: LatencyModel, batch: int, level_us: float
) -> dict[str, Any]:
    pruned = made["pruned"]
    said = {label: model.predict_net(net, batch) for label, net in made.items()}
    return {
        "network": name,
        "latency_ms": level_us / 1e3,
        "parameters": pruned.parameters,
        "model_error": model.nets.held_out.get("mape"),
        "rows": {
            label: {
                "predicted": said[label].latency_ms / said["pruned"].latency_ms,
                "parameters": net.parameters / pruned.parameters,
                "unprofiled": said[label].unprofiled_share,
            }
            for label, net in made.items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", action="append", choices=NETWORKS)
    parser.add_argument("--runtime", action="append")
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0, help="of profiling, per network")
    parser.add_argument("--rounds", type=int, default=2, help="of proposing and measuring")
    parser.add_argument("--predicted", action="append", metavar="MODEL", default=[])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.network or NETWORKS
    tables: dict[str, list[dict[str, Any]]] = {}
    if options.predicted:
        for model_name in options.predicted:
            model = load_latency_model(model_name)
            label = f"predicted-{model_name}-batch{options.batch}"
            tables[label] = [
                _kept(
                    options.results / label, name, lambda n, m=model: predicted(n, m, options.batch)
                )
                for name in names
            ]
    else:
        # One network in every setting before the next: what is interrupted covers all settings.
        settings = [
            Setting(runtime=runtime, threads=threads)
            for runtime in options.runtime or ["torch-eager"]
            for threads in options.threads or [1]
        ]
        for name in names:
            for setting in settings:
                label = f"{setting.runtime}-{setting.threads}-batch{options.batch}"
                folder = options.results / label
                result = _kept(
                    folder,
                    name,
                    lambda n, s=setting, f=folder: measured(
                        n, open_clock("auto", s), options.batch, options.minutes, options.rounds, f
                    ),
                )
                tables.setdefault(label, []).append(result)
    if options.json:
        print(json.dumps(tables, indent=1))
        return 0
    for label, results in tables.items():
        print(f"\n{label}\n\n{table(results)}")
    return 0


def _kept(folder: Path, name: str, work: Any) -> dict[str, Any]:
    """Return what is written of a network; where nothing is, do the work and write it."""
    path = folder / f"{name}.json"
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        return kept
    result: dict[str, Any] = work(name)
    write_text(path, json.dumps(result, indent=1))
    print(f"{folder.name} {_text(result)}", file=sys.stderr, flush=True)
    return result


def _text(result: dict[str, Any]) -> str:
    rows = "  ".join(
        f"{label} {row['latency']:.3f}/{row['parameters']:.3f}"
        for label, row in result["rows"].items()
    )
    return f"{result['network']} {result['latency_ms']:.2f} ms: {rows}"


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return networks down, ways across: share of the latency (share of the parameters)."""
    every = dict.fromkeys(label for result in results for label in result["rows"])
    labels = [label for label in every if label != "pruned"]
    lines = [
        "| network, pruned (ms) | " + " | ".join(labels) + " |",
        "|---" * (len(labels) + 1) + "|",
    ]
    for result in results:
        rows = result["rows"]
        cells = [
            f"{rows[label]['latency']:.2f} ({rows[label]['parameters']:.2f})"
            if label in rows
            else "-"
            for label in labels
        ]
        lines.append(
            f"| {result['network']} ({result['latency_ms']:.1f}) | " + " | ".join(cells) + " |"
        )
    medians = [
        float(np.median([r["rows"][label]["latency"] for r in results if label in r["rows"]]))
        for label in labels
    ]
    lines.append("| median | " + " | ".join(f"{median:.2f}" for median in medians) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
