"""What a rewrite costs in accuracy: pruned uniformly and by the stairs, fine-tuned alike.

    python benchmarks/tail_accuracy.py [--small] [--runtime R] [--threads N] [--results DIR]

A residual network is trained on Fashion-MNIST. From its weights, two networks of the same measured
latency are made: 30 % of every width pruned, and a budget of just that latency spent on the
channels that matter (``--capacity importance``); and one of as many parameters as the pruned one's,
the fastest. The least important channels go, by the same rule in all; all are fine-tuned for as
many epochs at the same rate. In the end all are measured in turns, each in a clean process.

Three seeds, each with weights and channels of its own; half an hour on a quiet machine, five
minutes with ``--small``. Each seed's results are written as soon as they are there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from tail_networks import PRUNED, uniform

from tadnn.accuracy import Dataset, load_dataset, train
from tadnn.files import environment, write_text
from tadnn.latency import Budget, LatencyModel, extend, learn
from tadnn.nets import Net
from tadnn.profiling import Clock, NetRun, ProfileDatabase, measure, open_clock
from tadnn.runtimes import Setting
from tadnn.spaces import load_space
from tadnn.tail import (
    Flow,
    Goal,
    Rewriter,
    carry_over,
    follow,
    importance,
    refine,
    variants,
    with_widths,
)

RESULTS: Final = Path("build/bench-tail")
ARCH: Final = {
    "block": "basic",
    **{f"depth{stage}": 1 for stage in (1, 2, 3, 4)},
    **{
        f"width{stage}": width for stage, width in zip((1, 2, 3, 4), (32, 64, 96, 128), strict=True)
    },
    **{f"kernel{stage}_1": 3 for stage in (1, 2, 3, 4)},
}
INPUT: Final = (1, 28, 28)
SEEDS: Final = (0, 1, 2)
FINE_RATE: Final = 0.02
EPOCHS, FINE_EPOCHS = 6, 3
SMALL: Final = {"images": 1500, "epochs": 2, "fine": 1, "minutes": 0.3}


def few(dataset: Dataset, images: int) -> Dataset:
    """Return a data set with at most so many images in a split."""
    splits = {
        name: replace(split, images=split.images[:images], labels=split.labels[:images])
        for name, split in dataset.splits.items()
    }
    return replace(dataset, splits=splits)


def network() -> Net:
    """Return the network."""
    return load_space("resnet").build(ARCH, INPUT, 10)


class Bench:
    """One latency model for all seeds: the network is the same, its weights aren't.

    Args:
        clock: device and setting.
        minutes: of profiling.
        folder: where measurements and model are kept.
    """

    def __init__(self, clock: Clock, minutes: float, folder: Path) -> None:
        self.clock, self.folder = clock, folder / "models" / "accuracy"
        self.database = ProfileDatabase(folder / "profiles.db")
        budget = Budget(kernels=1_000_000, nets=12, minutes=minutes)
        self.model: LatencyModel = learn(
            "accuracy", variants(follow(network())), 1, clock, self.database, self.folder,
            budget=budget,
        )  # fmt: skip

    def relearn(self, nets: Sequence[Net]) -> LatencyModel:
        """Return the model that knows some more networks."""
        self.model = extend(self.model, nets, 1, self.clock, self.database, self.folder)
        return self.model

    def rewritten(self, rewriter: Rewriter, goal: Goal) -> Mapping[int, int] | None:
        """Return the widths that the clock decides for."""
        decision = refine(rewriter, [goal], self.clock, self.relearn).decisions[goal]
        return decision.rewrite.changed if decision.rewrite is not None else None


def one_seed(seed: int, bench: Bench, dataset: Dataset, epochs: int, fine: int) -> dict[str, Any]:
    """Train, prune in every way, fine-tune and measure."""
    net = network()
    flow = follow(net)
    module = net.to_module(seed)
    trained = train(module, dataset, epochs=epochs, seed=seed)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    pruned = uniform(flow, PRUNED)
    cut = {i: group.width for i, group in enumerate(follow(pruned).groups) if i in flow.free}
    original, narrow = measure(bench.clock, [NetRun(net), NetRun(pruned)], precision=0.003)
    share = narrow.latency_us / original.latency_us
    ways: dict[str, tuple[Flow, Mapping[str, Any], Mapping[int, int]]] = {
        "uniform": (flow, weights, cut)
    }
    scores = importance(flow, weights)
    important = Rewriter(net, bench.model, capacity="importance", importance=scores)
    if (widths := bench.rewritten(important, Goal("budget", share))) is not None:
        ways["tail, same latency"] = (flow, weights, widths)
    left = carry_over(flow, weights, cut, seed)
    fastest = Rewriter(pruned, bench.model)
    if (widths := bench.rewritten(fastest, Goal("fastest"))) is not None:
        ways["tail, same parameters"] = (follow(pruned), left, widths)
    rows = {"as trained": {"accuracy": trained.accuracy, "parameters": net.parameters}}
    nets = {"as trained": net}
    for label, (groups, state, widths) in ways.items():
        made = with_widths(groups, widths)
        smaller = made.to_module(seed)
        smaller.load_state_dict(carry_over(groups, state, widths, seed))
        done = train(smaller, dataset, epochs=fine, seed=seed, learning_rate=FINE_RATE)
        rows[label] = {"accuracy": done.accuracy, "parameters": made.parameters}
        nets[label] = made
    nets["uniform, again"] = nets["uniform"]
    rows["uniform, again"] = rows["uniform"].copy()
    times = measure(bench.clock, [NetRun(net) for net in nets.values()], precision=0.003)
    for label, time in zip(nets, times, strict=True):
        rows[label] |= {"latency_us": time.latency_us, "error_us": time.error_us}
    return {"seed": seed, "rows": rows, "environment": environment() | bench.clock.environment()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--runtime", default="torch-eager")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.5, help="of profiling")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    label = f"accuracy-{options.runtime}-{options.threads}" + ("-small" if options.small else "")
    folder = options.results / label
    dataset = load_dataset("fashion-mnist", INPUT)
    epochs, fine, minutes = EPOCHS, FINE_EPOCHS, options.minutes
    if options.small:
        dataset = few(dataset, int(SMALL["images"]))
        epochs, fine, minutes = int(SMALL["epochs"]), int(SMALL["fine"]), SMALL["minutes"]
    bench: Bench | None = None
    results = []
    for seed in SEEDS:
        path = folder / f"{seed}.json"
        if not path.exists():
            clock = open_clock("auto", Setting(runtime=options.runtime, threads=options.threads))
            bench = bench or Bench(clock, minutes, folder)
            found = one_seed(seed, bench, dataset, epochs, fine)
            write_text(path, json.dumps(found, indent=1))
        results.append(json.loads(path.read_text()))
        print(json.dumps(results[-1]["rows"]), file=sys.stderr, flush=True)
    print(table(results))
    return 0


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return ways down: accuracy and latency, mean and deviation over the seeds."""
    lines = ["| network | accuracy, % | latency, ms | parameters |", "|---|---|---|---|"]
    for label in dict.fromkeys(label for result in results for label in result["rows"]):
        rows = [result["rows"][label] for result in results if label in result["rows"]]
        accuracy = 100 * np.array([row["accuracy"] for row in rows])
        latency = np.array([row["latency_us"] for row in rows]) / 1e3
        parameters = np.mean([row["parameters"] for row in rows])
        lines.append(
            f"| {label} | {accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f} "
            f"| {latency.mean():.3f} ± {latency.std(ddof=1):.3f} | {parameters:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
