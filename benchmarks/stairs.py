"""Whether stairs are where a latency model says: widths beside the next efficient one above.

    python benchmarks/stairs.py [--runtime R ...] [--threads N ...] [--shapes N] [--results DIR]

Convolutions (dense, 1x1, depthwise) and linear layers are drawn from networks of the spaces. Of
every one, a part of its widths around its own is profiled, a latency model is fitted to all of
that, and it says which widths are efficient, measured or not. Then, for every shape, widths that
aren't efficient are drawn and measured in turns with the next efficient one above and with
themselves once more: the A/A row. The wider one should be no slower than the noise: the 95th
percentile of how far a width is from itself, and never less than the confidence interval of the
pair. What an edge gives is how much wider the pair's efficient width is, at what change of latency.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tadnn.errors import WorkFailed
from tadnn.files import environment, write_text
from tadnn.kernels import Kernel, KernelRow
from tadnn.latency import LatencyModel, fit_kernels
from tadnn.nets import BlockBuilder, Conv2d, GlobalAvgPool, Linear, Net, NetBuilder, ReLU, block
from tadnn.profiling import Clock, Measurement, NetRun, measure, open_clock
from tadnn.runtimes import Setting, find_runtime, lower_net
from tadnn.spaces import load_space
from tadnn.tail import Pricer, efficient_widths

SPACES: Final = ("resnet", "mbconv", "vit")
KINDS: Final = ("3x3", "1x1", "depthwise", "linear")
LEAST_FLOPS, MOST_FLOPS = 1e6, 4e8
STEP: Final = 4
MOST_WIDTHS: Final = 24
PROFILED: Final = 0.6
PAIRS: Final = 2
OBSERVED: Final = 7
TRIES: Final = 5
FEW: Final = 32
BATCH: Final = 1
RESULTS: Final = Path("build/bench-tail")


@dataclass(frozen=True)
class Point:
    """One layer at one width, in a network by itself, and the kernel that it launches."""

    net: Net
    kernel: Kernel


@dataclass(frozen=True)
class Line:
    """One layer at several widths.

    Attributes:
        kind: of the layer.
        points: by width, ascending.
    """

    kind: str
    points: dict[int, Point]

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels at all widths."""
        return [point.kernel for point in self.points.values()]


def kind_of(kernel: Kernel) -> str | None:
    """Return which of ``KINDS`` a kernel is; None where it is another or grouped."""
    if kernel.op == "linear":
        return "linear"
    if kernel.op != "conv2d":
        return None
    dims = kernel.dims
    if dims["groups"] == dims["k"] > 1:
        return "depthwise"
    if dims["groups"] > 1:
        return None
    return "1x1" if dims["r"] == dims["s"] == 1 else "3x3"


def drawn(runtime: str, count: int, seed: int) -> list[Line]:
    """Draw layers from networks of the spaces, as many of every kind."""
    rng = np.random.default_rng(seed)
    pool: dict[str, set[Kernel]] = {kind: set() for kind in KINDS}
    for name in SPACES:
        space = load_space(name)
        for arch in space.sample(12, seed):
            for kernel in lower_net(space.build(arch), BATCH, "fp32", find_runtime("torch-eager")):
                kind = kind_of(kernel)
                if kind and LEAST_FLOPS <= kernel.flops <= MOST_FLOPS and _width(kernel) >= 24:
                    pool[kind].add(kernel)
    lines = []
    for kind, kernels in pool.items():
        ordered = sorted(kernels, key=lambda kernel: kernel.key)
        picked = rng.choice(len(ordered), min(len(ordered), -(-count // len(KINDS))), replace=False)
        lines += [_line(kind, ordered[i], runtime) for i in sorted(picked)]
    return lines


def _width(kernel: Kernel) -> int:
    return kernel.dim("n" if kernel.op == "linear" else "k")


def _line(kind: str, kernel: Kernel, runtime: str) -> Line:
    width = _width(kernel)
    step = STEP
    while width // step > MOST_WIDTHS:
        step *= 2
    low = max(step, width // 2 // step * step)
    points = {}
    for wide in range(low, low + MOST_WIDTHS * step, step):
        net = _alone(kind, kernel, wide)
        launched = lower_net(net, BATCH, "fp32", find_runtime(runtime))
        points[wide] = Point(net, [k for k in launched if kind_of(k) == kind][-1])
    return Line(kind, points)


@block
def convolution(b: BlockBuilder, layer: Conv2d) -> None:
    b.add(layer, name="layer")
    b.add(ReLU(), name="relu")


@block
def pooled(b: BlockBuilder) -> None:
    b.add(GlobalAvgPool(), name="pool")


@block
def product(b: BlockBuilder, out: int) -> None:
    b.add(Linear(out), name="layer")


def _alone(kind: str, kernel: Kernel, width: int) -> Net:
    """Return a network around one layer: the shape of a kernel, another width."""
    dims = kernel.dims
    if kind == "linear":
        builder = NetBuilder((dims["m"], dims["k"]))
        builder.add("alone", product(width))
        return builder.build()
    window, pad = (dims["r"], dims["s"]), dims["pad"]
    channels, groups = (width, width) if kind == "depthwise" else (dims["c"], 1)
    layer = Conv2d(width, window, dims["stride"], pad, dims["dilation"], groups, bias=True)
    # Other layers make its channels and read them, in the layout that the runtime likes.
    builder = NetBuilder((FEW, dims["h"], dims["w"]))
    builder.add("before", convolution(Conv2d(channels, 1, bias=True)))
    builder.add("alone", convolution(layer))
    builder.add("after", pooled())
    return builder.build()


def profiled(lines: Sequence[Line], clock: Clock, seed: int) -> LatencyModel:
    """Measure a part of the widths of every line, and fit."""
    rng = np.random.default_rng(seed)
    chosen: dict[Kernel, Point] = {}
    for line in lines:
        points = list(line.points.values())
        for i in sorted(rng.choice(len(points), round(PROFILED * len(points)), replace=False)):
            chosen[points[i].kernel] = points[i]
    times = times_of(clock, list(chosen.values()), few=True)
    rows = [
        KernelRow(kernel, m.latency_us, m.spread_us, m.repeats)
        for kernel, m in zip(chosen, times, strict=True)
    ]
    return fit_kernels("stairs", [(clock.device, rows)], clock.setting)


def times_of(clock: Clock, points: Sequence[Point], *, few: bool = False) -> list[Measurement]:
    """Measure kernels in turns, alone, or, where the runtime doesn't run them so, in networks."""
    if not find_runtime(clock.setting.runtime).observed:
        kernels = [point.kernel for point in points]
        if few:
            return measure(clock, kernels, precision=0.015, max_repeats=30)
        return measure(clock, kernels, precision=0.003, min_repeats=15, max_repeats=60)
    samples: list[list[float]] = [[] for _ in points]
    with clock.session():
        for _ in range(1 if few else OBSERVED):
            for i, point in enumerate(points):
                samples[i].append(_observed(clock, point))
    return [Measurement.of(sample) for sample in samples]


def _observed(clock: Clock, point: Point) -> float:
    """Return microseconds of a point's kernel; a profile that something disturbed is no profile."""
    for left in reversed(range(TRIES)):
        try:
            return clock.observe(NetRun(point.net, BATCH))[point.kernel].latency_us
        except WorkFailed:
            if not left:
                raise
    raise AssertionError


def pairs_of(lines: Sequence[Line], model: LatencyModel, seed: int) -> list[tuple[Line, int, int]]:
    """Draw widths that aren't efficient, each with the next efficient one above."""
    rng = np.random.default_rng(seed)
    pairs = []
    for line in lines:
        kernels = line.kernels
        deviation = Pricer(model).differences_us(kernels)
        efficient = efficient_widths(model.predict_us(kernels), deviation)
        widths = list(line.points)
        others = np.flatnonzero(~efficient)
        edges = np.flatnonzero(efficient)
        for i in sorted(rng.choice(others, min(len(others), PAIRS), replace=False)):
            above = int(edges[edges > i][0])
            pairs.append((line, widths[i], widths[above]))
    return pairs


def judged(pairs: Sequence[tuple[Line, int, int]], clock: Clock) -> list[dict[str, Any]]:
    """Measure every pair in turns, the narrower one twice."""
    found: list[dict[str, Any]] = []
    lines: dict[int, int] = {}
    for first in range(0, len(pairs), 5):
        some = pairs[first : first + 5]
        points = [line.points[width] for line, low, high in some for width in (low, high, low)]
        times = times_of(clock, points)
        for (line, low, high), (a, b, again) in zip(
            some, zip(times[::3], times[1::3], times[2::3], strict=True), strict=True
        ):
            found.append(
                {
                    "kind": line.kind,
                    "line": lines.setdefault(id(line), len(lines)),
                    "kernel": line.points[low].kernel.key,
                    "width": low,
                    "efficient": high,
                    "latency_us": a.latency_us,
                    "change": 2 * b.latency_us / (a.latency_us + again.latency_us) - 1,
                    # 95 in 100, of the ratio of two medians.
                    "interval": 1.96
                    * float(np.hypot(a.error_us / a.latency_us, b.error_us / b.latency_us)),
                    "again": again.latency_us / a.latency_us - 1,
                }
            )
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of pairs that hold, the noise, and what an edge gives."""
    noise = float(np.quantile([abs(row["again"]) for row in rows], 0.95))
    change = np.array([row["change"] for row in rows])
    interval = np.array([row["interval"] for row in rows])
    gain = np.array([row["efficient"] / row["width"] - 1 for row in rows])
    quantiles = (0.1, 0.25, 0.5, 0.75, 0.9)
    holds = change <= np.maximum(noise, interval)
    return {
        "shapes": len({row["line"] for row in rows}),
        "pairs": len(rows),
        "noise": noise,
        "noise_median": float(np.median([abs(row["again"]) for row in rows])),
        "holds": float(np.mean(holds)),
        "by_kind": {
            kind: [int(holds[at].sum()), int(at.sum())]
            for kind in KINDS
            if (at := np.array([row["kind"] == kind for row in rows])).any()
        },
        "change": dict(zip(quantiles, np.quantile(change, quantiles).tolist(), strict=True)),
        "wider": dict(zip(quantiles, np.quantile(gain, quantiles).tolist(), strict=True)),
        # Time per channel, which is what an edge gives.
        "per_channel": dict(
            zip(
                quantiles,
                np.quantile(1 - (1 + change) / (1 + gain), quantiles).tolist(),
                strict=True,
            )
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runtime", action="append")
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--shapes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    summaries = {}
    for runtime in options.runtime or ["torch-eager", "onnxruntime"]:
        for threads in options.threads or [1, 2]:
            label = f"stairs-{runtime}-{threads}"
            path = options.results / f"{label}.json"
            if path.exists():
                rows = json.loads(path.read_text())["pairs"]
            else:
                clock = open_clock("auto", Setting(runtime=runtime, threads=threads))
                lines = drawn(runtime, options.shapes, options.seed)
                model = profiled(lines, clock, options.seed)
                rows = judged(pairs_of(lines, model, options.seed), clock)
                record = environment() | clock.environment()
                write_text(path, json.dumps({"pairs": rows, "environment": record}, indent=1))
            summaries[label] = summary(rows)
            print(label, json.dumps(summaries[label]), file=sys.stderr, flush=True)
    print(table(summaries))
    return 0


def table(summaries: Mapping[str, dict[str, Any]]) -> str:
    """Return settings down."""
    lines = [
        "| setting | shapes, pairs | A/A, median and 95th percentile | wider is no slower "
        "| by kind | change of latency, 10-50-90 % | wider by, 10-50-90 % "
        "| time per channel saved, 10-50-90 % |",
        "|---" * 8 + "|",
    ]
    for label, row in summaries.items():

        def spread(name: str, row: dict[str, Any] = row) -> str:
            return ", ".join(f"{100 * row[name][q]:+.1f}" for q in (0.1, 0.5, 0.9))

        kinds = ", ".join(f"{kind} {a}/{b}" for kind, (a, b) in row["by_kind"].items())
        lines.append(
            f"| {label} | {row['shapes']}, {row['pairs']} "
            f"| {100 * row['noise_median']:.1f}, {100 * row['noise']:.1f} % "
            f"| {100 * row['holds']:.0f} % | {kinds} | {spread('change')} | {spread('wider')} "
            f"| {spread('per_channel')} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
