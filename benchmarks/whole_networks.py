"""How well whole networks are predicted from kernels, and by a few timings of others.

    python benchmarks/whole_networks.py [--data DIR] [--seed N] [--quick] [--json FILE]

The transformers of ``neusight_e2e_transformers`` (fp32 inference, unfused), per GPU. The model is
fitted to that GPU's rows of ``neusight_gemm_fp32`` and ``neusight_elementwise_fp32``; what they
lack (embeddings, transpositions, scaled and masked scores) is priced by the physical core.
*kernels alone* is their sum. *calibrated* is ``tadnn calibrate`` by the GPU's timings of the other
transformers: all batches of the one judged are left out. *roofline* is each kernel's arithmetic or
memory at nominal speed. Mixtures of experts and AMD's GPUs are left out, for which there are no
networks or no kernels here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from latency import some
from public_tables import DATA, read_device
from threadpoolctl import threadpool_limits

from tadnn.errors import TadnnError
from tadnn.kernels import KernelRow, TimingRow
from tadnn.latency import LatencyModel, NetTiming, calibrate, error_summary, fit_kernels
from tadnn.latency.calibrating import FEWEST_TIMINGS
from tadnn.latency.checking import BEATEN_BY, floor_us
from tadnn.nets.published.configurations import CONFIGS
from tadnn.nets.published.transformers import network
from tadnn.runtimes import Setting

GPUS = ("a100-40gb", "v100", "p100", "t4", "p4")
_ROWS_OF_PRODUCTS, _ROWS_OF_OTHERS = 2000, 90  # an op


def fitted(gpu: str, data: Path, seed: int, quick: bool) -> LatencyModel:
    """Return a model of a GPU's kernels.

    Raises:
        TadnnError: a table is absent.
    """
    rows: list[KernelRow] = []
    tables = {"neusight_gemm_fp32": _ROWS_OF_PRODUCTS, "neusight_elementwise_fp32": _ROWS_OF_OTHERS}
    for table, most in tables.items():
        device, found = read_device(table, gpu, data)
        for op in sorted({row.kernel.op for row in found}):
            rows += some([row for row in found if row.kernel.op == op], most // (1 + quick), seed)
    return fit_kernels(gpu, [(device, rows)], Setting(runtime="cuda-kernels"), seed=seed)


def timings_of(gpu: str, data: Path) -> list[tuple[str, NetTiming]]:
    """Return a GPU's transformers by name, measured."""
    _, rows = read_device("neusight_e2e_transformers", gpu, data)
    found = []
    for row in rows:
        assert isinstance(row, TimingRow)
        model, _, tokens = row.target.partition(":")[2].partition("@")
        if model in CONFIGS:
            net = network(model, int(tokens))
            found.append((model, NetTiming(net, row.batch, row.latency_ms)))
    return found


def roofline_ms(model: LatencyModel, timing: NetTiming) -> float:
    """Return the milliseconds of a network at nominal arithmetic and bandwidth."""
    counts = model.launched(timing.net, timing.batch)
    least = floor_us(list(counts), model.device, model.setting.threads) * BEATEN_BY
    return float(least @ np.array(list(counts.values()), dtype=float)) / 1e3


def judge(gpu: str, data: Path, seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return measured and predicted milliseconds per transformer of a GPU."""
    model, timings = fitted(gpu, data, seed, quick), timings_of(gpu, data)
    rows = []
    for name, timing in timings:
        others = [t for other, t in timings if other != name]
        row = {
            "device": gpu,
            "network": name,
            "batch": timing.batch,
            "measured": timing.latency_ms,
            "roofline": roofline_ms(model, timing),
            "kernels alone": model.predict_net(timing.net, timing.batch).latency_ms,
        }
        if len(others) >= FEWEST_TIMINGS:
            calibrated = calibrate("whole", model, others, seed=seed)
            predicted = calibrated.predict_net(timing.net, timing.batch)
            row |= {"calibrated": predicted.latency_ms, "std": predicted.std_ms}
        rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return errors per GPU and in all, MAPE in percent (and bias)."""
    predictors = ("roofline", "kernels alone", "calibrated")
    lines = [f"| GPU | networks | {' | '.join(predictors)} |", "|---|---:|---:|---:|---:|"]
    for gpu in (*dict.fromkeys(row["device"] for row in rows), "all"):
        of = [row for row in rows if gpu in (row["device"], "all")]
        cells = []
        for predictor in predictors:
            known = [row for row in of if predictor in row]
            if not known:
                cells.append("too few timings")
                continue
            s = error_summary(
                np.array([row[predictor] for row in known]),
                np.array([row["measured"] for row in known]),
            )
            of_some = "" if len(known) == len(of) else f", {len(known)} of them"
            cells.append(f"{s['mape']:.1f} ({s['bias']:+.1f}{of_some})")
        lines.append(f"| {gpu} | {len(of)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the tables")
    parser.add_argument("--seed", type=int, default=0, help="of rows and fits")
    parser.add_argument("--quick", action="store_true", help="half of the kernels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with threadpool_limits(1):
        for gpu in GPUS:
            try:
                rows += judge(gpu, args.data, args.seed, args.quick)
            except TadnnError as error:
                print(f"left out: {error}", file=sys.stderr)
    if rows:
        print(markdown(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
