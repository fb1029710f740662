"""How fast predicted latency is: networks and kernels per second on one core, and memory.

    python benchmarks/scoring.py [--quick] [--json]

ResNet-50-depth networks of the built-in resnet space (bottlenecks, depths 3-4-6-3, widths 64 to
512 in steps of 8, kernels 3 and 5, input 3x224x224) on a latency model learned from the fake
clock, so that it runs anywhere. *Cold* is a process that has scored nothing yet; *warm* are other
architectures of the same space once all of their blocks have been seen. Building the networks
counts in both. Shown are medians and their spread (1.4826 x the median absolute deviation).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from tadnn.files import environment
from tadnn.kernels import Kernel
from tadnn.latency import Budget, LatencyModel, learn, load_latency_model, score
from tadnn.profiling import FakeClock, ProfileDatabase, kernel_pool
from tadnn.runtimes import Setting, find_runtime
from tadnn.spaces import Space, load_space

NAME = "bench"
OVERRIDES = {
    "block": "bottleneck",
    "depth1": 3,
    "depth2": 4,
    "depth3": 6,
    "depth4": 3,
    "width": {"low": 64, "high": 512, "step": 8},
}
SEEN = 100_000  # each of the 57 x 57 x 2 first blocks of a stage is met 15 times
AT_A_TIME = 2_000
COLD = 1_500


def resnets() -> Space:
    return load_space("resnet").narrow(OVERRIDES)


def learned(space: Space, folder: Path) -> LatencyModel:
    nets = [space.build(arch) for arch in space.sample(300, 0)]
    with ProfileDatabase(folder / "profiles.db") as database:
        clock = FakeClock(Setting())
        path = folder / "latency_models" / NAME
        return learn(NAME, nets, 1, clock, database, path, budget=Budget(600, 12))


def rate(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def summary(rates: list[float]) -> dict[str, float]:
    middle = statistics.median(rates)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in rates)
    return {"median": middle, "spread": spread, "repeats": len(rates)}


def cold_once() -> float:
    """Score in this process, which has scored nothing, the model in the working directory."""
    space, model = resnets(), load_latency_model(NAME)
    archs = space.sample(COLD, os.getpid())
    return rate(lambda: score(space, archs, model), COLD)


def cold(folder: Path, repeats: int) -> list[float]:
    command = [sys.executable, str(Path(__file__).resolve()), "--cold-once"]
    found = []
    for _ in range(repeats):
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        found.append(float(done.stdout))
    return found


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def score_many(space: Space, model: LatencyModel, count: int, seed: int) -> list[float]:
    """Score architectures drawn as they are needed; return resident MB after each tenth."""
    rng = np.random.default_rng(seed)
    memory, done = [], 0
    for tenth in range(1, 11):
        while done < count * tenth // 10:
            archs = [space.sample_one(rng) for _ in range(min(AT_A_TIME, count - done))]
            score(space, archs, model)
            done += len(archs)
        memory.append(resident_mb())
    return memory


def warm(space: Space, model: LatencyModel, repeats: int) -> list[float]:
    batches = [space.sample(AT_A_TIME, 1_000 + i) for i in range(repeats)]
    return [rate(lambda archs=archs: score(space, archs, model), AT_A_TIME) for archs in batches]


def distinct_kernels(space: Space) -> list[Kernel]:
    nets = [space.build(arch) for arch in space.sample(400, 5)]
    return list(kernel_pool(nets, 1, "fp32", find_runtime("torch-eager")))


def measured(repeats: int, count: int) -> dict[str, Any]:
    space = resnets()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = learned(space, folder)
        cold_rates = cold(folder, repeats)
    kernels = distinct_kernels(space)
    means = [rate(lambda: model.predict_us(kernels), len(kernels)) for _ in range(repeats)]
    full = [rate(lambda: model.predict(kernels), len(kernels)) for _ in range(repeats)]
    score_many(space, model, SEEN, 1)
    before = resident_mb()
    warm_rates = warm(space, model, repeats)
    memory = score_many(space, model, count, 2)
    return {
        "environment": environment(),
        "kernels_fitted": model.card.data["rows"],
        "warm_nets_per_s": summary(warm_rates),
        "cold_nets_per_s": summary(cold_rates),
        "kernels_per_s": summary(means),
        "kernels_with_deviation_per_s": summary(full),
        "scored": count,
        "resident_mb": {"after_seen": before, "by_tenth": memory, "growth": memory[-1] - before},
    }


def show(result: dict[str, Any]) -> None:
    print(" ".join(f"{key}={value}" for key, value in result["environment"].items()))
    print(f"{'per second, one core':36}{'median':>10}{'spread':>9}")
    for key, label in (
        ("warm_nets_per_s", "networks, all blocks seen before"),
        ("cold_nets_per_s", f"networks, the first {COLD:,} of a process"),
        ("kernels_per_s", "distinct kernels, mean alone"),
        ("kernels_with_deviation_per_s", "distinct kernels, with deviation"),
    ):
        print(f"{label:36}{result[key]['median']:10,.0f}{result[key]['spread']:9,.0f}")
    memory = result["resident_mb"]
    print(f"resident memory after {SEEN:,} networks: {memory['after_seen']:.0f} MB")
    tenths = " ".join(f"{value:.0f}" for value in memory["by_tenth"])
    print(f"over {result['scored']:,} more: {memory['growth']:+.1f} MB (by tenths: {tenths})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scored", type=int, default=1_000_000, help="networks to watch memory by")
    parser.add_argument("--quick", action="store_true", help="watch memory by 100,000 only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cold-once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold_once:
        with threadpool_limits(1):
            print(cold_once())
        return
    with threadpool_limits(1):
        result = measured(options.repeats, 100_000 if options.quick else options.scored)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)


if __name__ == "__main__":
    main()
