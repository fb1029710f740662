"""A GPU that a fit never saw, and the same GPU by a few of its kernels.

    python benchmarks/adapting.py [--data DIR] [--gpus SLUG ...] [--rows N] [--few N] [--draws N]
        [--seed N] [--json FILE]

Each GPU of ``neusight_gemm_fp32`` is left out in turn: a model is fitted to N rows of each of
the others, judged on 4,000 rows of the one left out (``tadnn evaluate``), then adapted by a few
of its rows (``tadnn adapt``), drawn at random several times, and judged on rows that aren't among
them.
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
from latency import GPUS, some
from public_tables import DATA, read_device
from threadpoolctl import threadpool_limits

from tadnn.errors import TadnnError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import KernelRow
from tadnn.latency import LatencyModel, adapt, evaluate_kernels, fit_kernels
from tadnn.runtimes import Setting

TABLE = "neusight_gemm_fp32"
_JUDGED = 4000


def judge(
    gpu: str, tables: dict[str, tuple[DeviceSpec, list[KernelRow]]], args: argparse.Namespace
) -> dict[str, Any]:
    """Return the errors on a GPU left out, and those after adapting, by draw."""
    others = [
        (spec, some(rows, args.rows, args.seed)) for g, (spec, rows) in tables.items() if g != gpu
    ]
    spec, rows = tables[gpu]
    start = time.perf_counter()
    model = fit_kernels("others", others, Setting(runtime="cuda-kernels"), seed=args.seed).on(spec)
    result: dict[str, Any] = {"gpu": gpu, "fit_s": time.perf_counter() - start}
    judged = some(rows, _JUDGED, args.seed + 7)
    result["unseen"] = evaluate_kernels(model, judged)
    result["adapted"] = []
    for draw in range(args.draws):
        few = some(rows, args.few, args.seed + 100 + draw)
        known = {row.kernel for row in few}
        adapted = adapt("few", model, few, seed=args.seed)
        result["adapted"].append(
            evaluate_kernels(adapted, [row for row in judged if row.kernel not in known])
        )
    result["kernels_per_s"] = kernels_per_s(adapted, judged)
    return result


def kernels_per_s(model: LatencyModel, rows: Sequence[KernelRow]) -> float:
    """Return how many distinct kernels a second are predicted, error bar included."""
    kernels = [row.kernel for row in rows]
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        model.predict(kernels)
        best = min(best, time.perf_counter() - start)
    return len(kernels) / best


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Return MAPE (bias), all in percent, and shares inside one and two deviations."""
    lines = [
        "| GPU | unseen: all | linear | bmm | 1, 2 sigma "
        "| adapted: all | linear | bmm | 1, 2 sigma |",
        "|---|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for result in results:
        cells = [result["gpu"]]
        for kind in ([result["unseen"]], result["adapted"]):
            if not kind:
                continue

            def mean(key: str, op: str | None = None, kind: list[Any] = kind) -> float:
                parts = [e["overall"] if op is None else e["by_op"][op] for e in kind]
                return float(np.mean([part[key] for part in parts]))

            cells.append(f"{mean('mape'):.1f} ({mean('bias'):+.1f})")
            cells += [f"{mean('mape', op):.1f}" for op in ("linear", "bmm")]
            cells.append(f"{mean('one_sigma'):.0f}, {mean('two_sigma'):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the tables")
    parser.add_argument("--gpus", nargs="+", default=["a100-40gb", "v100", "p100"], choices=GPUS)
    parser.add_argument("--rows", type=int, default=1500, help="of each GPU of the fit")
    parser.add_argument("--few", type=int, default=50, help="measured kernels of the one left out")
    parser.add_argument("--draws", type=int, default=4, help="of these few")
    parser.add_argument("--seed", type=int, default=0, help="of rows and fits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    args = parser.parse_args(argv)
    try:
        tables = {gpu: read_device(TABLE, gpu, args.data) for gpu in GPUS}
    except TadnnError as error:
        print(f"left out: {error}", file=sys.stderr)
        return 1
    results = []
    with threadpool_limits(1):
        for gpu in args.gpus:
            results.append(judge(gpu, tables, args))
            print(markdown(results[-1:]), flush=True)
    print(markdown(results))
    for result in results:
        fit, speed = result["fit_s"], result["kernels_per_s"]
        print(f"{result['gpu']}: fitted in {fit:.0f} s, {speed:,.0f} kernels/s adapted")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
