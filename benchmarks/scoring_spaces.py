"""Whether every built-in space is scored about as fast per layer as the resnet space.

    python benchmarks/scoring_spaces.py [--networks N] [--runtime R] [--json]

One core, a latency model learned from the fake clock for each space. *First* are the first
networks that a process scores; *later* are other networks of the space, after as many again have
been scored twice over. Batches of the spaces take turns, so that a noisy machine disturbs all
alike. Shown are microseconds per layer, building included, and the ratio to resnet's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from tadnn.latency import BlockScorer, Budget, LatencyModel, learn
from tadnn.profiling import FakeClock, ProfileDatabase
from tadnn.runtimes import Setting
from tadnn.spaces import Space, load_space

SPACES = ("resnet", "mbconv", "vit", "nasbench201", "transformer")


def learned(space: Space, runtime: str, folder: Path) -> LatencyModel:
    """Return a latency model of a space's kernels, of times that the fake clock computes."""
    nets = [space.build(arch) for arch in space.sample(120, 0)]
    with ProfileDatabase(folder / "profiles.db") as database:
        clock = FakeClock(Setting(runtime=runtime))
        budget = Budget(600, 12)
        return learn(space.name, nets, 1, clock, database, folder / space.name, budget=budget)


def per_layer_us(space: Space, scorer: BlockScorer, archs: list[dict[str, Any]]) -> float:
    """Return microseconds per layer of building and scoring architectures."""
    start = time.perf_counter()
    nets = [space.build(arch) for arch in archs]
    scorer.latency_ms(nets)
    took = time.perf_counter() - start
    return 1e6 * took / sum(len(block.nodes) for net in nets for _, block in net.blocks)


def main() -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, default=400, help="per batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--runtime", default="torch-eager")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in SPACES}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        spaces = {name: load_space(name) for name in SPACES}
        models = {
            name: learned(space, options.runtime, Path(folder)) for name, space in spaces.items()
        }
        scorers = {name: BlockScorer(model) for name, model in models.items()}
        count = options.networks * options.batches
        archs = {name: space.sample(count, 7) for name, space in spaces.items()}
        for i in range(options.batches):
            for name, space in spaces.items():
                part = archs[name][i * options.networks : (i + 1) * options.networks]
                times[name].append(per_layer_us(space, scorers[name], part))
    record = {
        name: {"first_us": took[0], "later_us": statistics.median(took[len(took) // 2 :])}
        for name, took in times.items()
    }
    if options.json:
        print(json.dumps(record, indent=1))
        return 0
    print(f"{'space':14}{'first us':>10}{'ratio':>7}{'later us':>10}{'ratio':>7}")
    base = record["resnet"]
    for name, row in record.items():
        ratios = [row[key] / base[key] for key in ("first_us", "later_us")]
        print(
            f"{name:14}{row['first_us']:10.2f}{ratios[0]:7.2f}"
            f"{row['later_us']:10.2f}{ratios[1]:7.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
