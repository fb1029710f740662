"""Whether every built-in space is scored about as fast per layer as the resnet space.

    python benchmarks/scoring_spaces.py [--networks N] [--batches N] [--rounds N] [--json]

One core, a latency model learned from the fake clock for each space, each space in a process of
its own. *First* are the first networks that the process scores, *all* are all of its batches,
*later* is the median of the second half of them. Shown are microseconds per layer, building
included, and the ratio to resnet's: medians over rounds in which the spaces take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from threadpoolctl import threadpool_limits

from tadnn.latency import Budget, LatencyModel, learn, score
from tadnn.profiling import FakeClock, ProfileDatabase
from tadnn.runtimes import Setting
from tadnn.spaces import Space, load_space

SPACES = ("resnet", "mbconv", "vit", "nasbench201", "transformer")
PARTS = ("first", "all", "later")


def learned(space: Space, runtime: str, folder: Path) -> LatencyModel:
    """Return a latency model of a space's kernels, of times that the fake clock computes."""
    nets = [space.build(arch) for arch in space.sample(120, 0)]
    with ProfileDatabase(folder / "profiles.db") as database:
        clock = FakeClock(Setting(runtime=runtime))
        budget = Budget(600, 12)
        return learn(space.name, nets, 1, clock, database, folder / space.name, budget=budget)


def per_layer_us(name: str, runtime: str, networks: int, batches: int) -> dict[str, float]:
    """Return microseconds per layer of building and scoring, by part."""
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        space = load_space(name)
        model = learned(space, runtime, Path(folder))
        archs = space.sample(networks * batches, 7)
        seconds, layers = [], []
        for start in range(0, len(archs), networks):
            part = archs[start : start + networks]
            begun = time.perf_counter()
            score(space, part, model)
            seconds.append(time.perf_counter() - begun)
            nets = [space.build(arch) for arch in part]
            layers.append(sum(len(block.nodes) for net in nets for _, block in net.blocks))
    each = [1e6 * s / count for s, count in zip(seconds, layers, strict=True)]
    overall = 1e6 * sum(seconds) / sum(layers)
    return {"first": each[0], "all": overall, "later": statistics.median(each[len(each) // 2 :])}


def main() -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, default=400, help="per batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtime", default="torch-eager")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    asked = (options.runtime, options.networks, options.batches)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SPACES}
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with fresh as pool:
        for _ in range(options.rounds):
            for name in SPACES:
                rounds[name].append(pool.submit(per_layer_us, name, *asked).result())
    record = {
        name: {part: statistics.median(row[part] for row in rows) for part in PARTS}
        for name, rows in rounds.items()
    }
    if options.json:
        print(json.dumps({"rounds": rounds, "median_us": record}, indent=1))
        return 0
    print(f"{'space':14}" + "".join(f"{part + ' us':>10}{'ratio':>7}" for part in PARTS))
    for name, row in record.items():
        shown = (f"{row[p]:10.2f}{row[p] / record['resnet'][p]:7.2f}" for p in PARTS)
        print(f"{name:14}" + "".join(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
