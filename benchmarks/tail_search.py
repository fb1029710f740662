"""What snapping to efficient widths is worth in a search: measured fronts, three seeds.

    python benchmarks/tail_search.py [--small] [--trials N] [--runtime R] [--threads N]
                                     [--results DIR]

The same space (residual networks for Fashion-MNIST, widths in steps of 8), the same number of
trials, the same sampler and short training. Three searches: for low latency as it is predicted,
the same with ``tail_aware: true``, and for few FLOPs. The members of all fronts of a seed are
measured in turns, each in a clean process, and the hypervolume of what each search found is taken
over measured latency and validation accuracy, from one reference point for all, as a share of the
box between that and (0, 100 %).

An hour on a quiet machine with two cores; a few minutes with ``--small``. A search that was
stopped goes on where it was, and what was measured isn't measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from tail_accuracy import few

from tadnn.accuracy import load_dataset
from tadnn.files import environment, write_text
from tadnn.latency import Budget
from tadnn.pareto import hypervolume
from tadnn.profiling import NetRun, measure, open_clock
from tadnn.runtimes import Setting
from tadnn.search import SAMPLED_NETS, learn_space, parse_spec, run_search, study_space
from tadnn.spaces import Space

RESULTS: Final = Path("build/bench-tail")
INPUT: Final = (1, 28, 28)
SEEDS: Final = (0, 1, 2)
SEARCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {"objectives": ["latency", "accuracy"]},
    "tail-aware": {"objectives": ["latency", "accuracy"], "tail_aware": True},
    "FLOPs": {"objectives": ["flops", "accuracy"]},
}
OVERRIDES: Final = {
    "block": "basic",
    "depth": {"low": 1, "high": 2},
    "width": {"low": 8, "high": 64},
    "kernel": 3,
}
MODEL: Final = "tail-search"
LEAST_ACCURACY: Final = 0.1  # of ten classes: chance


def spec_of(search: str, seed: int, options: argparse.Namespace) -> Any:
    """Return the study of one search."""
    return parse_spec(
        {
            "name": f"{search.lower()}-{seed}",
            "space": "resnet",
            "overrides": OVERRIDES,
            "dataset": "npz:few.npz",
            "input_shape": list(INPUT),
            "latency_model": MODEL,
            "runtime": options.runtime,
            "threads": options.threads,
            "accuracy": {"train": {"epochs": 1}},
            "sampler": "nsga2",
            "trials": options.trials,
            "seed": seed,
            **SEARCHES[search],
        }
    )


def prepare(options: argparse.Namespace, space: Space) -> None:
    """Write a part of Fashion-MNIST, and learn the space's latency, where not done yet."""
    if not Path("few.npz").exists():
        data = few(load_dataset("fashion-mnist", INPUT), options.images)
        splits = {name: split for name, split in data.splits.items()}
        np.savez(
            "few.npz",
            images=np.concatenate([split.images.numpy() for split in splits.values()]),
            labels=np.concatenate([split.labels.numpy() for split in splits.values()]),
            splits=np.concatenate([[name] * len(split) for name, split in splits.items()]),
        )
    if not (Path("latency_models") / MODEL / "card.yaml").exists():
        clock = open_clock("auto", Setting(runtime=options.runtime, threads=options.threads))
        nets = [space.build(arch, INPUT, 10) for arch in space.sample(SAMPLED_NETS, 0)]
        budget = Budget(kernels=1_000_000, minutes=options.minutes)
        learn_space(MODEL, nets, 1, clock, budget=budget)


def one_seed(seed: int, options: argparse.Namespace, space: Space) -> dict[str, Any]:
    """Search in every way and measure the fronts."""
    fronts: dict[str, list[Mapping[str, Any]]] = {}
    facts: dict[str, Any] = {}
    for search in SEARCHES:
        result = run_search(spec_of(search, seed, options))
        fronts[search] = list(result.record["members"])
        facts[search] = {"trials": result.complete, **result.record.get("tail_aware", {})}
    nets = {
        member["key"]: space.build(member["arch"], INPUT, 10)
        for members in fronts.values()
        for member in members
    }
    clock = open_clock("auto", Setting(runtime=options.runtime, threads=options.threads))
    first = next(iter(nets.values()))
    runs = [NetRun(first), *(NetRun(net) for net in nets.values())]
    again, *times = measure(clock, runs, max_repeats=40)
    latency = {key: time.latency_us / 1e3 for key, time in zip(nets, times, strict=True)}
    reference = 1.05 * max(latency.values())
    found = {}
    for search, members in fronts.items():
        points = [(latency[member["key"]], 1 - member["trained"]["accuracy"]) for member in members]
        box = reference * (1 - LEAST_ACCURACY)
        volume = hypervolume(np.array(points), np.array([reference, 1 - LEAST_ACCURACY])) / box
        found[search] = {"hypervolume": volume, "front": points, **facts[search]}
    return {
        "seed": seed,
        "reference_ms": reference,
        "again": again.latency_us / 1e3 / next(iter(latency.values())) - 1,
        "searches": found,
        "environment": environment() | clock.environment(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=3.0, help="of profiling")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.small:
        options.trials, options.images, options.minutes = 6, 300, 0.3
    label = f"search-{options.runtime}-{options.threads}" + ("-small" if options.small else "")
    folder = options.results / label
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)  # studies and latency models belong to the working directory
    space, _ = study_space(spec_of("plain", 0, options))
    prepare(options, space)
    results = []
    for seed in SEEDS:
        path = Path(f"{seed}.json")
        if not path.exists():
            write_text(path, json.dumps(one_seed(seed, options, space), indent=1))
        results.append(json.loads(path.read_text()))
        volumes = {name: row["hypervolume"] for name, row in results[-1]["searches"].items()}
        print(f"seed {seed}: {json.dumps(volumes)}", file=sys.stderr, flush=True)
    print(table(results))
    return 0


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return searches down, seeds across."""
    seeds = [f"seed {result['seed']}" for result in results]
    lines = [
        f"| search | {' | '.join(seeds)} | mean | networks on the front |",
        "|---" * (len(seeds) + 3) + "|",
    ]
    for search in SEARCHES:
        rows = [result["searches"][search] for result in results]
        volumes = [row["hypervolume"] for row in rows]
        cells = " | ".join(f"{volume:.4f}" for volume in volumes)
        counts = ", ".join(str(len(row["front"])) for row in rows)
        lines.append(f"| {search} | {cells} | {np.mean(volumes):.4f} | {counts} |")
    noise = ", ".join(f"{100 * result['again']:+.1f} %" for result in results)
    lines.append(f"\nA network against itself: {noise}.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
