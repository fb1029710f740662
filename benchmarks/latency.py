"""How well kernels are predicted, against baselines on the same rows and the same split.

    python benchmarks/latency.py [--data DIR] [--only WORD ...] [--seed N] [--quick] [--json FILE]

Two questions. *Shapes*: a fifth of the shapes of one device is held out, no shape on both sides.
*Devices*: everything of a GPU is held out; the model is fitted to the others. Tables are those of
``public_tables.py``; where they are absent there is nothing to measure, which is said. MAPE is the
mean absolute percentage error, near pairs the share of pairs within 30 % of each other that are
ordered rightly, 1/2 sigma the share of held-out kernels that lie within so many of the predicted
standard deviations. Speed is that of distinct kernels, mean and error bar, on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latency_baselines import BASELINES
from public_tables import DATA, read_device
from threadpoolctl import threadpool_limits

from tadnn.errors import TadnnError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import KernelRow
from tadnn.latency import LatencyModel, error_summary, fit_kernels
from tadnn.latency.batch import KernelBatch
from tadnn.runtimes import Setting

Table = tuple[DeviceSpec, list[KernelRow]]
FEW = 50  # measured kernels of a new device


@dataclass(frozen=True)
class Shapes:
    """A fifth of one device's shapes is held out."""

    table: str
    device: str
    op: str
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Devices:
    """A whole device is held out."""

    table: str
    device: str
    others: tuple[str, ...]
    ops: tuple[str, ...]


GPUS = ("p4", "p100", "v100", "t4", "a100-40gb")
TASKS: tuple[Shapes | Devices, ...] = (
    Shapes("neusight_gemm_fp32", "a100-40gb", "bmm"),
    Shapes("neusight_gemm_fp32", "a100-40gb", "linear"),
    Shapes("neusight_gemm_fp32", "v100", "bmm"),
    Shapes("neusight_gemm_fp32", "v100", "linear"),
    Shapes("cdecatapult_conv_fp32_forward", "v100", "conv2d"),
    Shapes("neusight_conv3x3_fp32", "a100-80gb", "conv2d"),
    Shapes("neusight_elementwise_fp32", "a100-40gb", "add"),
    Shapes("neusight_elementwise_fp32", "v100", "softmax"),
    Shapes("aiconfigurator_gemm_bf16", "h200", "linear"),
    Shapes("miopen_conv_fwd_amd", "mi100", "conv2d"),
    *(
        Devices("neusight_gemm_fp32", gpu, tuple(g for g in GPUS if g != gpu), ("linear", "bmm"))
        for gpu in ("a100-40gb", "v100", "p100")
    ),
)


def held_out_shapes(
    rows: Sequence[KernelRow], seed: int, share: float = 0.2
) -> tuple[list[KernelRow], list[KernelRow]]:
    """Return rows to fit and rows held out; a table has one row a shape."""
    out = set(np.random.default_rng(seed).permutation(len(rows))[: round(share * len(rows))])
    return [r for i, r in enumerate(rows) if i not in out], [rows[i] for i in sorted(out)]


def some(rows: list[KernelRow], most: int | None, seed: int) -> list[KernelRow]:
    """Return at most so many rows, drawn at random, in the table's order."""
    if most is None or len(rows) <= most:
        return rows
    return [rows[i] for i in sorted(np.random.default_rng(seed).permutation(len(rows))[:most])]


def judge(tables: Sequence[Table], test: Table, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the errors of the latency model and of each baseline on the test rows."""
    dtype = test[1][0].kernel.dtype
    setting = Setting(runtime="cuda-kernels", dtype=dtype)
    start = time.perf_counter()
    model = fit_kernels("bench", tables, setting, seed=seed).on(test[0])
    fitted = time.perf_counter() - start
    kernels = [row.kernel for row in test[1]]
    measured = np.array([row.latency_us for row in test[1]])
    predicted = model.predict(kernels)
    z = np.abs(predicted.latency_us - measured) / predicted.std_us
    yield {
        "predictor": "tadnn",
        **error_summary(predicted.latency_us, measured),
        "one_sigma": 100 * float(np.mean(z <= 1)),
        "two_sigma": 100 * float(np.mean(z <= 2)),
        "fit_s": fitted,
        "kernels_per_s": speed(model, test),
    }
    for name, fit in BASELINES.items():
        guess = np.empty(len(kernels))
        for op in sorted({k.op for k in kernels}):
            train = [batch for table in tables if (batch := _batch(table, op)) is not None]
            at = [i for i, k in enumerate(kernels) if k.op == op]
            batch, _ = _batch(test, op)  # type: ignore[misc]
            guess[at] = fit(train, seed)(batch)
        yield {"predictor": name, **error_summary(guess, measured)}


def speed(model: LatencyModel, test: Table) -> float:
    """Return how many distinct kernels a second are predicted, error bar included."""
    kernels = [row.kernel for row in test[1]]
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        model.predict(kernels)
        best = min(best, time.perf_counter() - start)
    return len(kernels) / best


def _batch(table: Table, op: str) -> tuple[KernelBatch, np.ndarray] | None:
    rows = [row for row in table[1] if row.kernel.op == op]
    if not rows:
        return None
    batch = KernelBatch.of([row.kernel for row in rows], table[0], 1)
    return batch, np.array([row.latency_us for row in rows])


def run(task: Shapes | Devices, data: Path, seed: int, most: int | None) -> dict[str, Any]:
    """Return the errors of one task.

    Raises:
        TadnnError: the table is absent.
    """
    if isinstance(task, Shapes):
        spec, rows = read_device(task.table, task.device, data, dict(task.where))
        of_op = some([r for r in rows if r.kernel.op == task.op], most, seed)
        train, test = held_out_shapes(of_op, seed)
        results = list(judge([(spec, train)], (spec, test), seed))
        title = f"{task.table}: {task.op} on {task.device}, shapes held out"
    else:
        tables = []
        for name in task.others:
            spec, rows = read_device(task.table, name, data)
            tables.append((spec, some([r for r in rows if r.kernel.op in task.ops], most, seed)))
        spec, rows = read_device(task.table, task.device, data)
        test = some([r for r in rows if r.kernel.op in task.ops], most or 6000, seed)
        results = list(judge(tables, (spec, test), seed))
        title = f"{task.table}: {' and '.join(task.ops)}, {task.device} never seen"
    return {"task": title, "fitted": results[0]["fit_s"], "held_out": len(test), "rows": results}


_COLUMNS = {
    "mape": "MAPE",
    "median_ape": "median",
    "within_10": "within 10 %",
    "bias": "bias",
    "near_pairs": "near pairs",
    "one_sigma": "1 sigma",
    "two_sigma": "2 sigma",
}


def markdown(result: dict[str, Any]) -> str:
    """Return one task's table, in percent."""
    fitted, speed = result["fitted"], result["rows"][0]["kernels_per_s"]
    lines = [
        f"{result['task']} ({result['held_out']:,} kernels; fitted in {fitted:.0f} s, "
        f"{speed:,.0f} kernels/s)",
        "",
        f"| predictor | {' | '.join(_COLUMNS.values())} |",
        f"|---|{'---:|' * len(_COLUMNS)}",
    ]
    for row in result["rows"]:
        cells = ["" if row.get(c) is None else f"{row[c]:.1f}" for c in _COLUMNS]
        lines.append(f"| {row['predictor']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the tables")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="tasks with all")
    parser.add_argument("--seed", type=int, default=0, help="of splits and fits")
    parser.add_argument("--quick", action="store_true", help="1,500 rows a device at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    args = parser.parse_args(argv)
    results = []
    with threadpool_limits(1):
        for task in TASKS:
            if not all(word in str(task) for word in args.only):
                continue
            try:
                results.append(run(task, args.data, args.seed, 1500 if args.quick else None))
            except TadnnError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            print(markdown(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
