"""How much of a GPU's latencies is which tile its library takes.

    python benchmarks/tile_habits.py [--data DIR] [--seed N]

``neusight_gemm_fp32`` names the tile of every kernel. For each GPU, a physical model of batched
products (launch, whole waves of whole tiles by contraction, by area, traffic) is fitted to that
GPU's own latencies: once with the tiles that its library took, once with those that another GPU's
library takes for the same shape. What the second errs is mostly not about speed: it indicates
what a prediction lacks that doesn't know a library's choice of tiles. Linear layers are left out:
they split contractions in ways that this model doesn't have.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from latency import GPUS
from public_tables import DATA, find_table, read_rows
from scipy.optimize import nnls

from tadnn.errors import TadnnError
from tadnn.hardware import find_device

Shape = tuple[int, int, int, int]
Known = dict[Shape, tuple[float, int, int]]
"""Microseconds and tile (along n, along m) by shape (batch, m, n, k)."""
_SHAPES = 4000


def read(data: Path) -> dict[str, Known]:
    """Return what each GPU takes for a shape; rows without a tile are left out.

    Raises:
        TadnnError: the table is absent.
    """
    known: dict[str, Known] = {gpu: {} for gpu in GPUS}
    for row in read_rows(find_table("neusight_gemm_fp32", data)[1]):
        gpu = find_device(row["device"]).slug
        if row["op"] != "bmm" or gpu not in known or not int(row["tile_a"] or 0):
            continue
        shape = (int(row["batch"]), int(row["m"]), int(row["n"]), int(row["k"]))
        us = float(row["latency_ms"]) * 1e3
        known[gpu].setdefault(shape, (us, int(row["tile_a"]), int(row["tile_b"])))
    return known


def error(own: Known, tiles: Known, shapes: Sequence[Shape], units: int) -> float:
    """Return the MAPE, percent, of a physical model that reckons with these tiles."""
    us = np.array([own[shape][0] for shape in shapes])
    design = []
    for batch, m, n, k in shapes:
        _, a, b = tiles[batch, m, n, k]
        area = -(-(batch * -(-m // b) * -(-n // a)) // units) * a * b
        design.append([1, area * k, area, batch * m * n, batch * (m + n) * k])
    relative = np.array(design, dtype=float) / us[:, None]
    relative /= np.abs(relative).max(axis=0)
    weight = np.ones(len(us))
    for _ in range(5):  # towards least absolute errors
        solution, _ = nnls(relative * weight[:, None], weight)
        off = np.abs(relative @ solution - 1)
        weight = 1 / np.sqrt(np.maximum(off, 0.02))
    return 100 * float(off.mean())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the tables")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes")
    args = parser.parse_args(argv)
    try:
        known = read(args.data)
    except TadnnError as reason:
        print(f"left out: {reason}", file=sys.stderr)
        return 1
    common = sorted(set.intersection(*(set(of) for of in known.values())))
    pick = np.random.default_rng(args.seed).permutation(len(common))[:_SHAPES]
    shapes = [common[i] for i in sorted(pick)]
    print("| GPU | its own tiles | those of another GPU (share alike) |\n|---|---:|---|")
    for gpu in ("a100-40gb", "v100", "p100"):
        own, units = known[gpu], find_device(gpu).units
        others = []
        for other in GPUS:
            if other != gpu:
                alike = np.mean([own[s][1:] == known[other][s][1:] for s in shapes])
                off = error(own, known[other], shapes, units)
                others.append(f"{other} {off:.1f} ({100 * alike:.0f} %)")
        print(f"| {gpu} | {error(own, own, shapes, units):.1f} | {', '.join(others)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
