"""What the stairs are worth: rewritten networks measured beside every simpler way.

    python benchmarks/tail.py [--network NAME ...] [--runtime R] [--threads N] [--minutes M]

The networks are timm's, random weights, none written here. Each is taken as published and after
uniform pruning of 30 % of its channels, where the TA-DNN paper starts (arXiv 2011.03897). A
latency model of the network's own stairs is learned within the minutes given, and these are
measured, interleaved, each in a clean process of its own:

    pruned, pruned again     the A/A row: what a difference is worth
    8, 16, 32 up and down    plain rounding of the pruned widths
    smooth                   the same optimiser on a latency model without stairs, fitted to the
                             same measurements, any whole widths: what moving width between
                             layers is worth alone
    smooth, to 8             the same, rounded to the nearest multiples of 8
    tadnn                    the fastest network of the pruned one's parameters
    widened                  the widest network at the pruned one's predicted latency
    budget                   the most parameters within 80 % of the pruned one's latency

All latencies are told as shares of the pruned network's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from smooth_model import SmoothModel

from tadnn.files import environment
from tadnn.kernels import read_kernel_table
from tadnn.latency import Budget, LatencyModel, learn
from tadnn.nets import Net, trace
from tadnn.profiling import Clock, NetRun, ProfileDatabase, measure, open_clock
from tadnn.runtimes import Setting
from tadnn.tail import Flow, Rewriter, follow, variants, with_widths

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "regnetx_008",
    "mnasnet_100",
    "convnext_atto",
    "densenet121",
    "deit_tiny_patch16_224",
)
PRUNED = 0.7
ANY_WIDTHS = 37
BUDGET = 0.8
INPUT = (3, 224, 224)


def published(name: str) -> Net:
    """Return one of timm's networks."""
    from tadnn.nets.published.torchvision_ops import make_torchvision_importable

    make_torchvision_importable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's own deprecations
        import timm

        return trace(timm.create_model(name).eval(), INPUT).net


def uniform(flow: Flow, share: float, step: int = 1, up: bool | None = None) -> Net:
    """Return the network with every free width a share of its own, rounded to multiples.

    Args:
        flow: the network's groups.
        share: of every width.
        step: widths become multiples of it (of the least one above, the group's grain).
        up: rounded up or down; to the nearest when None.
    """
    widths = {}
    for index in flow.free:
        group = flow.groups[index]
        unit = int(np.lcm(group.grain, step))
        steps = share * group.width / unit
        rounded = round(steps) if up is None else np.ceil(steps - 1e-9) if up else np.floor(steps)
        widths[index] = max(unit, int(rounded) * unit)
    return with_widths(flow, widths)


class AnyWidth(Rewriter):
    """Chooses among whole widths spread evenly: it knows of no edges."""

    def _edges(self) -> dict[int, list[int]]:
        edges = {}
        for group, found in self.stairs.items():
            grain, now = self.flow.groups[group].grain, self.flow.groups[group].width
            low, high = found.widths[0], now if self._normed(group) else found.widths[-1]
            spread = np.linspace(low, high, ANY_WIDTHS) // grain * grain
            edges[group] = sorted({now, *(max(grain, int(width)) for width in spread)})
        return edges


def candidates(
    pruned: Net, flow: Flow, model: LatencyModel, smooth_model: SmoothModel, batch: int
) -> dict[str, Net]:
    """Return the networks to be measured, by what made them."""
    rewriter = Rewriter(pruned, model, batch)
    smooth = AnyWidth(pruned, smooth_model, batch).fastest()
    found = {"pruned": pruned, "pruned again": pruned}
    for step in (8, 16, 32):
        for word, up in (("up", True), ("down", False)):
            found[f"{step} {word}"] = uniform(flow, PRUNED, step, up)
    found["smooth"] = smooth.net
    found["smooth, to 8"] = uniform(follow(smooth.net), 1.0, 8)
    found["tadnn"] = rewriter.fastest().net
    found["widened"] = rewriter.widened().net
    found["budget"] = rewriter.within(BUDGET).net
    return found


def judge(name: str, clock: Clock, batch: int, minutes: float, folder: Path) -> dict[str, Any]:
    """Learn, rewrite and measure one network."""
    net = published(name)
    flow = follow(net)
    pruned = uniform(flow, PRUNED)
    database = ProfileDatabase(folder / "profiles.db")
    nets = variants(follow(pruned))
    budget = Budget(kernels=1_000_000, nets=12, minutes=minutes)
    model = learn(name, nets, batch, clock, database, folder / name, budget=budget)
    smooth = SmoothModel.of(model, read_kernel_table(folder / name / "kernels.csv.gz"))
    made = candidates(pruned, flow, model, smooth, batch) | {"published": net}
    measured = measure(clock, [NetRun(net, batch) for net in made.values()], max_repeats=30)
    level = measured[0].latency_us
    return {
        "network": name,
        "latency_ms": level / 1e3,
        "parameters": pruned.parameters,
        "model_error": model.nets.held_out.get("mape"),
        "rows": {
            label: {
                "latency": m.latency_us / level,
                "error": m.error_us / level,
                "predicted": model.predict_net(net, batch).latency_ms * 1e3 / level,
                "parameters": net.parameters / pruned.parameters,
            }
            for (label, net), m in zip(made.items(), measured, strict=True)
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", action="append", choices=NETWORKS)
    parser.add_argument("--runtime", default="torch-eager")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    setting = Setting(runtime=options.runtime, threads=options.threads)
    clock = open_clock("auto", setting)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.network or NETWORKS:
            result = judge(name, clock, options.batch, options.minutes, Path(folder))
            results.append(result)
            print(_text(result), file=sys.stderr, flush=True)
    record = {
        "setting": setting.label,
        "batch": options.batch,
        "environment": environment() | clock.environment(),
        "networks": results,
    }
    print(json.dumps(record, indent=1) if options.json else _table(results))
    return 0


def _text(result: dict[str, Any]) -> str:
    rows = "  ".join(
        f"{label} {row['latency']:.3f}/{row['parameters']:.3f}"
        for label, row in result["rows"].items()
    )
    return f"{result['network']} {result['latency_ms']:.2f} ms: {rows}"


def _table(results: Sequence[dict[str, Any]]) -> str:
    labels = [label for label in results[0]["rows"] if label != "pruned"]
    lines = [
        "| network, pruned (ms) | " + " | ".join(labels) + " |",
        "|---" * (len(labels) + 1) + "|",
    ]
    for result in results:
        cells = [
            f"{row['latency']:.2f} ({row['parameters']:.2f})"
            for label, row in result["rows"].items()
            if label != "pruned"
        ]
        lines.append(
            f"| {result['network']} ({result['latency_ms']:.1f}) | " + " | ".join(cells) + " |"
        )
    medians = [
        f"{float(np.median([r['rows'][label]['latency'] for r in results])):.2f}"
        for label in labels
    ]
    lines.append("| median | " + " | ".join(medians) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
