"""Trials per second of tadnn's search loop against bare Optuna, same sampler and storage.

    python benchmarks/search_loop.py [--trials N] [--rounds N] [--sampler NAME ...]

Both search the built-in resnet space (about 23 active choices) with two objectives that cost
nothing: tadnn builds every network, prices it by its FLOPs and scores it by the proxy
``parameters``; Optuna's objective only asks for the choices. The rounds alternate; shown are
medians and their spread (1.4826 x the median absolute deviation), and the median of the ratios
within rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import optuna

from tadnn.files import environment
from tadnn.nets import Net
from tadnn.search import Evaluator, Worker, parse_spec
from tadnn.search.address import StorageAddress
from tadnn.search.judges import ProxyJudge
from tadnn.search.storage import directions, study_lock
from tadnn.spaces import Int, Space, load_space

OBJECTIVES = ("latency", "accuracy")


@dataclass(frozen=True)
class Priced:
    """A prediction that costs nothing."""

    latency_ms: float
    std_ms: float = 0.0
    in_range: bool = True


class ByFlops:
    """A latency model that costs nothing."""

    def predict_net(self, net: Net, batch: int = 1) -> Priced:
        """Price a network by its FLOPs."""
        return Priced(net.flops(batch) * 1e-9)


def bare_sampler(kind: str) -> optuna.samplers.BaseSampler:
    if kind == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=0)
    if kind == "tpe":
        return optuna.samplers.TPESampler(seed=0, multivariate=True, group=True)
    return optuna.samplers.RandomSampler(seed=0)


def bare(study: optuna.Study, space: Space, kind: str, trials: int) -> None:
    def objective(trial: optuna.Trial) -> tuple[float, float]:
        arch: dict[str, object] = {}
        for name, choice in space.choices.items():
            if not space.active(arch, name):
                continue
            if isinstance(choice, Int):
                arch[name] = trial.suggest_int(name, choice.low, choice.high, step=choice.step)
            else:
                arch[name] = trial.suggest_categorical(name, choice.values)
        return float(len(arch)), float(trial.params["width4"])

    study.sampler = bare_sampler(kind)
    study.optimize(objective, n_trials=trials)


def ours(study: optuna.Study, space: Space, kind: str, trials: int, folder: Path) -> None:
    spec = parse_spec(
        {
            "name": "bench",
            "space": "resnet",
            "dataset": "digits",
            "latency_model": "auto",
            "objectives": list(OBJECTIVES),
            "accuracy": {"proxy": "parameters"},
            "sampler": kind,
            "trials": trials,
        }
    )
    judge = ProxyJudge("parameters", None, None, 0)
    evaluator = Evaluator(spec, space, ByFlops(), judge, (1, 32, 32), 10)
    evaluator.prepare()
    on_disk = not isinstance(study._storage, optuna.storages.InMemoryStorage)
    Worker(study, evaluator, study_lock(folder) if on_disk else nullcontext()).run()


def new_study(folder: Path, on_disk: bool) -> optuna.Study:
    storage: optuna.storages.BaseStorage = optuna.storages.InMemoryStorage()
    if on_disk:
        path = folder / "study.db"
        storage = StorageAddress(f"sqlite:///{path}", path).open()
    return optuna.create_study(storage=storage, directions=directions(OBJECTIVES))


def rate(run: Callable[[optuna.Study, Path], None], on_disk: bool, trials: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        study = new_study(Path(name), on_disk)
        start = time.perf_counter()
        run(study, Path(name))
        return trials / (time.perf_counter() - start)


def spread(values: list[float]) -> float:
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sampler", nargs="*", default=["random", "nsga2", "tpe"])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    space, trials = load_space("resnet"), options.trials
    print(" ".join(f"{key}={value}" for key, value in environment().items()))
    print(f"{trials} trials, {options.rounds} rounds; trials per second")
    for storage, on_disk in (("sqlite", True), ("memory", False)):
        for kind in options.sampler:

            def run_bare(study: optuna.Study, folder: Path, kind: str = kind) -> None:
                bare(study, space, kind, trials)

            def run_ours(study: optuna.Study, folder: Path, kind: str = kind) -> None:
                ours(study, space, kind, trials, folder)

            rate(run_ours, on_disk, trials)  # warms what is memoised and imported
            theirs, mine = [], []
            for _ in range(options.rounds):
                theirs.append(rate(run_bare, on_disk, trials))
                mine.append(rate(run_ours, on_disk, trials))
            ratios = [m / t for m, t in zip(mine, theirs, strict=True)]
            print(
                f"{storage:7}{kind:7}"
                f" Optuna {statistics.median(theirs):7.1f} ± {spread(theirs):5.1f}"
                f"   tadnn {statistics.median(mine):7.1f} ± {spread(mine):5.1f}"
                f"   ratio {statistics.median(ratios):.2f} ± {spread(ratios):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
