r"""What stages are worth on a table: proxy, short and long training against long training alone.

    python benchmarks/search_stages.py TABLE.csv[.gz] --features 'block*' \
        --latency '1000/throughput_a100_ips' --accuracy val_top1 \
        [--noise 1.0,0.4] [--keep 0.25,0.4] [--budget 300] [--seeds 5] [--json]

The table's accuracy is that of a long training, 10 units of budget. A proxy (free) and a short
training (2 units) are that accuracy and normal noise of so many standard deviations; ``inf`` is
noise alone. Latency is known beforehand. Every search may spend the budget; its front is that of
the networks that were trained long, its hypervolume is against the table's worst corner, relative
to the whole table's. Searches: ``long`` (the frontier sampler, long training alone), ``stages``
(the sampler learns from every stage and foresees who is worth promoting), ``stages-told`` (promoted
by what the stage told alone), ``stages-last`` (as that, and the sampler learns from the dearest
stage alone) and ``stages-random`` (as that, drawn at random).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import TrialState
from search_table import evaluate, features, read_columns

from tadnn.errors import TadnnError
from tadnn.pareto import hypervolume
from tadnn.search.entrants import Entrant, Plan, StageResult
from tadnn.search.frontier import Candidate, Proposer
from tadnn.search.frontier.candidates import PoolCandidates
from tadnn.search.stage_history import foreseen_losses, stage_history
from tadnn.search.stages import Begin, End, Go, next_step, surplus

EPOCHS = (None, 2, 10)
SEARCHES = ("long", "stages", "stages-told", "stages-last", "stages-random")
MOST = 2000


@dataclass(frozen=True)
class Table:
    """Distinct points, their latency and their accuracy."""

    points: list[dict[str, Any]]
    latency: np.ndarray
    accuracy: np.ndarray

    @property
    def losses(self) -> np.ndarray:
        """Both, minimised, [n, 2]."""
        return np.stack([self.latency, -self.accuracy], axis=1)


def read(path: Path, patterns: str, latency: str, accuracy: str, rows: int) -> Table:
    columns = read_columns(path)
    chosen = features(columns, patterns)
    values = {name: evaluate(text, columns) for name, text in (("l", latency), ("a", accuracy))}
    n = len(values["l"])
    first: dict[Any, int] = {}
    for i in np.random.default_rng(0).permutation(n).tolist():
        first.setdefault(tuple(column[i] for column in chosen.values()), i)
    kept = sorted(first.values())[:rows]
    points = [{name: column[i] for name, column in chosen.items()} for i in kept]
    return Table(points, values["l"][kept], values["a"][kept])


class Search:
    """One search on a table; what it would train is looked up.

    Args:
        table: the networks.
        kind: see `SEARCHES`.
        noise: of proxy and short training, in standard deviations of the accuracy.
        keep: the shares that go on.
        budget: units.
        seed: of noise and search.
    """

    def __init__(
        self,
        table: Table,
        kind: str,
        noise: tuple[float, float],
        keep: tuple[float, float],
        budget: float,
        seed: int,
    ) -> None:
        rng = np.random.default_rng(seed)
        spread = table.accuracy.std()
        versions = [
            rng.normal(size=len(table.points))
            if math.isinf(share)
            else table.accuracy + rng.normal(size=len(table.points)) * share * spread
            for share in noise
        ]
        self._plan = Plan(EPOCHS, keep, budget) if kind != "long" else Plan(EPOCHS[2:], (), budget)
        self._versions = [*versions, table.accuracy][-len(self._plan.epochs) :]
        self._table, self._kind, self._rng = table, kind, rng
        self._rows = {Candidate.of(point).key: i for i, point in enumerate(table.points)}
        self._proposer = Proposer(
            PoolCandidates(table.points),
            2,
            seed,
            {0: lambda points: [table.latency[self._rows[Candidate.of(p).key]] for p in points]},
        )
        self._entrants: list[Entrant] = []
        self._taken: list[Candidate] = []

    def run(self) -> tuple[float, list[int]]:
        """Return the share of the table's hypervolume, and how many trials each stage ended."""
        while True:
            foresee = self._foresee if self._kind == "stages" else None
            for number in surplus(self._plan, self._entrants, foresee=foresee):
                stopped = replace(self._entrants[number], state=TrialState.PRUNED)
                self._entrants[number] = stopped
            step = next_step(self._plan, self._entrants, MOST, False, foresee)
            if isinstance(step, End):
                break
            if isinstance(step, Begin):
                step = Go(len(self._entrants), 0)
                self._taken.append(self._proposed())
                self._entrants.append(Entrant(step.number, TrialState.WAITING, 0, {}, flops=1))
            assert isinstance(step, Go)  # with one worker there is nothing to wait for
            self._go(step.number, step.stage)
        losses, last = self._table.losses, self._plan.last
        done = [self._row(e.number) for e in self._entrants if e.reached(last)]
        worst = losses.max(axis=0)
        share = hypervolume(losses[done], worst) / hypervolume(losses, worst)
        stages = range(len(self._plan.epochs))
        return share, [sum(e.reached(stage) for e in self._entrants) for stage in stages]

    def _foresee(self, stage: int) -> dict[int, tuple[float, ...]] | None:
        known = list(zip(self._entrants, self._taken, strict=True))
        return foreseen_losses(known, self._plan, stage, self._proposer)

    def _proposed(self) -> Candidate:
        if self._kind == "stages-random":
            left = [p for p in self._table.points if Candidate.of(p) not in self._taken]
            return Candidate.of(left[self._rng.integers(len(left))])
        known = list(zip(self._entrants, self._taken, strict=True))
        history = stage_history(known, self._plan, 2)
        if self._kind == "stages-last":
            history = replace(history, lower=())
        point = self._proposer.propose(history, len(known))
        assert point is not None
        return Candidate.of(point)

    def _go(self, number: int, stage: int) -> None:
        row, entrant = self._row(number), self._entrants[number]
        losses = (float(self._table.latency[row]), -float(self._versions[stage][row]))
        result = StageResult(losses, float(self._plan.epochs[stage] or 0))
        ended = stage == self._plan.last
        self._entrants[number] = replace(
            entrant,
            stage=stage,
            results={**entrant.results, stage: result},
            state=TrialState.COMPLETE if ended else TrialState.WAITING,
        )

    def _row(self, number: int) -> int:
        return self._rows[self._taken[number].key]


def summary(table: Table, kind: str, options: argparse.Namespace) -> Mapping[str, Any]:
    found = [
        Search(table, kind, options.noise, options.keep, options.budget, seed).run()
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    shares = np.array([share for share, _ in found])
    trials = np.mean([stages for _, stages in found], axis=0)
    return {
        "search": kind,
        "hv_ratio_mean": float(shares.mean()),
        "hv_ratio_std": float(shares.std()),
        "trials": trials.round(1).tolist(),
    }


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--features", required=True)
    parser.add_argument("--latency", required=True, metavar="EXPR")
    parser.add_argument("--accuracy", required=True, metavar="EXPR")
    parser.add_argument("--noise", type=numbers, default=(1.0, 0.4))
    parser.add_argument("--keep", type=numbers, default=(0.25, 0.4))
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--searches", default=",".join(SEARCHES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        arguments = (options.features, options.latency, options.accuracy, options.rows)
        table = read(options.table, *arguments)
    except TadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    results = []
    for kind in options.searches.split(","):
        results.append(summary(table, kind, options))
        if not options.json:
            line = results[-1]
            trials = ", ".join(f"{count:.0f}" for count in line["trials"])
            print(f"{kind:14} {line['hv_ratio_mean']:.4f} ± {line['hv_ratio_std']:.4f}  {trials}")
    if options.json:
        print(json.dumps({"results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
