"""How well timm's networks are predicted on a GPU that nobody profiled, by timings of others.

    python benchmarks/zoo.py [--data DIR] [--seeds N] [--read DIR] [--minutes M] [--json FILE]

``timm_benchmark`` (RTX 3090, inference, automatic mixed precision, NCHW, torch 2.4), networks from
timm itself at the batch of each row. *calibrated* is ``tadnn calibrate`` of
``physics-torch-eager-amp@rtx3090`` (nothing but the data sheet) by a random half of the models,
judged on the other half; a model's rows of several sizes are on one side. Beside it, on the same
halves: physics times one factor; a line through log GMACs; boosted trees on GMACs, activations,
parameters and family (the letters that a name begins with).

Reading a network takes about half a second on a free core. What was read is kept in ``--read``
(build/zoo); ``--minutes`` ends the reading early, at a random part of the models.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from public_tables import DATA, find_table, read_rows, select
from threadpoolctl import threadpool_limits

from tadnn.errors import TadnnError
from tadnn.files import atomic_path
from tadnn.latency import LatencyModel, NetTiming, calibrate, load_latency_model
from tadnn.latency.errors import calibrated_summary, error_summary
from tadnn.nets import Net
from tadnn.nets.published import published_net

MODEL = "physics-torch-eager-amp@rtx3090"
ROOT = Path(__file__).resolve().parents[1]
_SIGMAS = ("one_sigma", "two_sigma")
_FEWEST_OF_FAMILY = 8


@dataclass(frozen=True)
class Timed:
    """One row: a network, timed, and what the table says of it."""

    model: str
    timing: NetTiming
    facts: tuple[float, float, float]

    @property
    def family(self) -> str:
        return re.match("[a-z]*", self.model)[0]  # type: ignore[index]


def read_once(target: str, folder: Path) -> Net:
    """Return a published network, kept from the last time or read.

    Raises:
        TadnnError: it can't be read, or couldn't the last time.
    """
    path = folder / f"{target.partition(':')[2]}.json.gz"
    if path.is_file():
        with gzip.open(path, "rt") as file:
            data = json.load(file)
    else:
        try:
            data = {"net": published_net(target).to_json()}
        except TadnnError as error:
            data = {"error": str(error)}
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as made, gzip.open(made, "wt", compresslevel=3) as file:
            json.dump(data, file)
    if "error" in data:
        raise TadnnError(data["error"])
    return Net.from_json(data["net"])


def timed(data: Path, folder: Path, minutes: float) -> list[Timed]:
    """Return the table's rows with their networks; what can't be read is told.

    Raises:
        TadnnError: the table is absent.
    """
    adapter, path = find_table("timm_benchmark", data)
    _, rows = select(read_rows(path), adapter, "rtx3090", {})
    random.Random(1).shuffle(rows)
    end, found, left = time.monotonic() + 60 * minutes, [], Counter[str]()
    for row in rows:
        target, batch = f"timm:{row['model']}@{int(row['img_size'])}", int(float(row["batch_size"]))
        kept = (folder / f"{target.partition(':')[2]}.json.gz").is_file()
        if not kept and time.monotonic() > end:
            left["not read yet (--minutes)"] += 1
            continue
        try:
            net = read_once(target, folder)
        except TadnnError as error:
            left[f"{target}: {error}"] += 1
            continue
        facts = facts_of(row)
        latency_ms = batch / float(row["samples_per_sec"]) * 1e3
        found.append(Timed(row["model"], NetTiming(net, batch, latency_ms), facts))
    for why, count in left.items():
        print(f"left out {count}: {why}", file=sys.stderr)
    return sorted(found, key=lambda t: (t.model, t.timing.net.input_shape))


def facts_of(row: Mapping[str, str]) -> tuple[float, float, float]:
    """Return GMACs, 1e6 activations and parameters; not a number where the table has none."""
    gmacs, activations, parameters = (
        float(row[name] or "nan") for name in ("gmacs", "macts_m", "params_m")
    )
    return gmacs, activations, parameters


def line(train: Sequence[Timed], test: Sequence[Timed], seed: int) -> np.ndarray:
    """A line through log GMACs, of the time an image takes; of typical GMACs where unknown."""
    x, y = (np.log(np.maximum([t.facts[0] for t in part], 1e-3)) for part in (train, test))
    y = np.where(np.isnan(y), np.nanmedian(x), y)
    known = ~np.isnan(x)
    slope, offset = np.polyfit(x[known], np.log([_image_ms(t) for t in train])[known], 1)
    return np.exp(slope * y + offset) * _batches(test)


def trees(train: Sequence[Timed], test: Sequence[Timed], seed: int) -> np.ndarray:
    """LightGBM on logarithms of GMACs, activations and parameters, and the family."""
    import lightgbm

    families = sorted({t.family for t in train})

    def table(part: Sequence[Timed]) -> np.ndarray:
        known = [families.index(t.family) if t.family in families else -1 for t in part]
        return np.column_stack([np.log(np.maximum([t.facts for t in part], 1e-3)), known])

    settings = {"num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 5, "seed": seed}
    quiet = {"verbosity": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True}
    y = np.log([_image_ms(t) for t in train])
    rows = lightgbm.Dataset(table(train), y, categorical_feature=[3])
    booster = lightgbm.train({**settings, **quiet}, rows, num_boost_round=400)
    return np.exp(booster.predict(table(test), num_threads=1)) * _batches(test)


def _image_ms(t: Timed) -> float:
    return t.timing.latency_ms / t.timing.batch


def _batches(part: Sequence[Timed]) -> np.ndarray:
    return np.array([t.timing.batch for t in part])


def _measured(part: Sequence[Timed]) -> np.ndarray:
    return np.array([t.timing.latency_ms for t in part])


def judge(physics: LatencyModel, rows: Sequence[Timed], seed: int) -> dict[str, Any]:
    """Return errors on the half that wasn't calibrated by, per predictor, and per network."""
    models = sorted({t.model for t in rows})
    half = set(np.random.default_rng(seed).permutation(models)[: len(models) // 2].tolist())
    train = [t for t in rows if t.model in half]
    test = [t for t in rows if t.model not in half]
    measured = _measured(test)
    plain = {id(t): physics.predict_net(t.timing.net, t.timing.batch).latency_ms for t in rows}
    factor = np.median([t.timing.latency_ms / plain[id(t)] for t in train])
    model = calibrate("zoo", physics, [t.timing for t in train], seed=seed)
    said = [model.predict_net(t.timing.net, t.timing.batch) for t in test]
    latency, std = np.array([[p.latency_ms, p.std_ms] for p in said]).T
    others = {
        "log-linear in GMACs": line(train, test, seed),
        "boosted trees": trees(train, test, seed),
        "physics times a factor": np.array([plain[id(t)] for t in test]) * factor,
    }
    summaries = {name: error_summary(p, measured) for name, p in others.items()}
    summaries["calibrated"] = calibrated_summary(latency, std, measured)
    networks = [
        (t.model, t.family, float(e)) for t, e in zip(test, latency / measured - 1, strict=True)
    ]
    return {"seed": seed, "n": len(test), "errors": summaries, "networks": networks}


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return errors as tables: per predictor, and the families that are predicted worst."""
    columns = ("mape", "median_ape", "within_5", "within_10", "within_20", "near_pairs", *_SIGMAS)
    lines = [
        "| predictor | MAPE | median | <5% | <10% | <20% | near pairs | 1 sigma | 2 sigma |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for name in results[0]["errors"]:
        cells = []
        for column in columns:
            values = [r["errors"][name][column] for r in results if column in r["errors"][name]]
            cells.append(_with_range(values) if values else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    by_family: dict[str, list[float]] = {}
    for result in results:
        for _, family, error in result["networks"]:
            by_family.setdefault(family, []).append(error)
    # Every network is left out about half of the times.
    least = _FEWEST_OF_FAMILY * len(results) / 2
    judged = {f: np.array(e) for f, e in by_family.items() if len(e) >= least}
    worst = sorted(judged, key=lambda f: -np.abs(judged[f]).mean())[:12]
    lines += ["", "| family | networks | MAPE | bias | <10% |", "|---|---:|---:|---:|---:|"]
    for family in worst:
        e = judged[family] * 100
        count = round(2 * len(e) / len(results))
        lines.append(
            f"| {family} | {count} | {np.abs(e).mean():.1f} | {e.mean():+.1f} | "
            f"{(np.abs(e) <= 10).mean() * 100:.0f} |"
        )
    return "\n".join([*lines, ""])


def _with_range(values: Sequence[float]) -> str:
    middle = f"{np.mean(values):.1f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.1f} to {max(values):.1f})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the tables")
    parser.add_argument("--seeds", type=int, default=5, help="how many random halves")
    parser.add_argument("--read", type=Path, default=ROOT / "build" / "zoo", metavar="DIR")
    parser.add_argument("--minutes", type=float, default=1e6, help="at most, to read networks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    args = parser.parse_args(argv)
    with threadpool_limits(1):
        try:
            rows = timed(args.data, args.read, args.minutes)
            physics = load_latency_model(MODEL)
            results = [judge(physics, rows, seed) for seed in range(args.seeds)]
        except TadnnError as error:
            print(f"zoo: {error}", file=sys.stderr)
            return error.exit_code
    models = len({t.model for t in rows})
    print(f"{len(rows)} rows of {models} models; about {results[0]['n']} judged a seed\n")
    print(markdown(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
