"""The study fashion-mnist as shipped, beside other samplers with the same time.

    python benchmarks/fashion_mnist.py [--study STUDY] [--samplers random tpe] [--results DIR]

The study is run whole. Then each of the other samplers searches the same space on the same latency
model for as long as the study's search took by the clock (learning the machine and finalists aside)
with as many workers: without stages, every trial trained as the study's last stage trains. What
all fronts hold is measured in turns, each network in a clean process, and compared by the
hypervolume over measured latency and validation error, from one reference point for all. One run
each, which is an example and no statistics: those come from tables (``make bench-search``).

Two hours on two cores. What was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from tadnn.files import STUDIES, environment, write_text
from tadnn.pareto import front_mask, hypervolume
from tadnn.profiling import NetRun, measure, open_clock
from tadnn.search import StudySpec, find_study, parse_spec, run_search, study_space
from tadnn.search.learned import auto_name, study_setting
from tadnn.spaces import Space

RESULTS: Final = Path("build/bench-fashion")
LEAST_ACCURACY: Final = 0.5
"""Of the reference point: networks below it are worth nothing."""

Points = dict[str, list[dict[str, Any]]]
"""By sampler, the members of its front."""


def other(shipped: Mapping[str, Any], sampler: str, seconds: float) -> StudySpec:
    """Return the study of another sampler with the same time."""
    spec = {key: value for key, value in shipped.items() if key not in ("stages", "finalists")}
    workers = spec.get("workers", 1)
    return parse_spec(
        spec
        | {
            "name": f"{shipped['name']}-{sampler}",
            "sampler": sampler,
            "latency_model": auto_name(parse_spec(shipped)),  # not learned once more
            "accuracy": {"train": shipped["stages"][-1]["train"]},
            "budget": {"train_minutes": workers * seconds / 60},
        }
    )


def clock_seconds(spec: StudySpec) -> float:
    """Return how long a search took by the clock, from its first trial to its last."""
    trials = find_study(spec).trials
    begun = [trial.datetime_start for trial in trials if trial.datetime_start is not None]
    ended = [trial.datetime_complete for trial in trials if trial.datetime_complete is not None]
    return (max(ended) - min(begun)).total_seconds()


def facts(spec: StudySpec, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a search did and found, latencies aside."""
    trials = find_study(spec).trials
    states = [trial.state.name for trial in trials]
    # Finalists have another accuracy, too: after more epochs.
    accuracy = spec.objectives.index("accuracy")
    return {
        "seconds": clock_seconds(spec),
        "finished": states.count("COMPLETE"),
        "stopped": states.count("PRUNED"),
        "members": [
            {
                "key": member["key"],
                "arch": member["arch"],
                "predicted_ms": member["predicted"]["latency_ms"],
                "accuracy": trials[member["trial"]].values[accuracy],
            }
            for member in record["members"]
        ],
    }


def measured(
    found: Mapping[str, dict[str, Any]], space: Space, spec: StudySpec
) -> tuple[dict[str, float], float]:
    """Return every member's latency in milliseconds by key, and a network's from itself."""
    nets = {
        member["key"]: space.build(member["arch"], spec.input_shape)
        for search in found.values()
        for member in search["members"]
    }
    clock = open_clock("auto", study_setting(spec))
    first = next(iter(nets.values()))
    runs = [NetRun(net, spec.batch) for net in (first, *nets.values())]
    again, *times = measure(clock, runs)
    latency = {key: time.latency_us / 1e3 for key, time in zip(nets, times, strict=True)}
    return latency, again.latency_us / times[0].latency_us - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--study", type=Path, default=STUDIES.roots()[0] / "fashion-mnist.yaml")
    parser.add_argument("--samplers", nargs="+", default=["random", "tpe"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    shipped = yaml.safe_load(options.study.read_text())
    options.results.mkdir(parents=True, exist_ok=True)
    os.chdir(options.results)  # studies and latency models belong to the working directory
    spec = parse_spec({key: value for key, value in shipped.items() if key != "finalists"})
    space, _ = study_space(spec)
    found = {spec.sampler: facts(spec, run_search(spec).record)}
    seconds = found[spec.sampler]["seconds"]
    for sampler in options.samplers:
        its = other(shipped, sampler, seconds)
        found[sampler] = facts(its, run_search(its).record)
        print(f"{sampler}: {found[sampler]['finished']} trained", file=sys.stderr, flush=True)
    finalists = run_search(parse_spec(shipped)).record["members"]
    latency, again = measured(found, space, spec)
    reference = 1.05 * max(latency.values())
    for search in found.values():
        for member in search["members"]:
            member["measured_ms"] = latency[member["key"]]
        points = np.array([(m["measured_ms"], 1 - m["accuracy"]) for m in search["members"]])
        box = reference * (1 - LEAST_ACCURACY)
        edge = np.array([reference, 1 - LEAST_ACCURACY])
        search["hypervolume"] = hypervolume(points, edge) / box
    record = {
        "reference_ms": reference,
        "again": again,
        "searches": found,
        # Members of the first front: all of them were measured with it.
        "finalists": [
            {**m, "measured_ms": latency[m["key"]]}
            for m in finalists
            if m["measured"] is not None and m["trained"]["split"] == "test"
        ],
        "environment": environment(),
    }
    write_text(Path("results.json"), json.dumps(record, indent=1))
    draw(record, Path("fashion-mnist.png"))
    print(table(record))
    return 0


def table(record: Mapping[str, Any]) -> str:
    """Return the searches, and the finalists of the study, as tables in Markdown."""
    lines = [
        "| sampler | by the clock, s | finished | stopped early | on the front | best validation "
        "accuracy, % | hypervolume |",
        "|---" * 7 + "|",
    ]
    for sampler, search in record["searches"].items():
        best = 100 * max(member["accuracy"] for member in search["members"])
        lines.append(
            f"| {sampler} | {search['seconds']:.0f} | {search['finished']} | {search['stopped']} "
            f"| {len(search['members'])} | {best:.2f} | {search['hypervolume']:.4f} |"
        )
    lines += [
        f"\nA network against itself: {100 * record['again']:+.1f} %.\n",
        "| finalist | test error, % | measured with the fronts, ms | as a finalist, ms | "
        "predicted, ms | parameters |",
        "|---" * 6 + "|",
    ]
    for member in sorted(record["finalists"], key=lambda m: m["measured_ms"]):
        error = 100 * (1 - member["trained"]["accuracy"])
        lines.append(
            f"| {member['arch']['space']} {member['trial']} | {error:.2f} "
            f"| {member['measured_ms']:.3f} | {member['measured']['latency_ms']:.3f} "
            f"| {member['predicted']['latency_ms']:.3f} | {member['parameters']:,} |"
        )
    return "\n".join(lines)


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw the measured fronts of all searches."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for sampler, search in record["searches"].items():
        points = np.array(
            [(m["measured_ms"], 100 * (1 - m["accuracy"])) for m in search["members"]]
        )
        points = points[np.argsort(points[:, 0])]
        front = points[front_mask(points)]
        (line,) = axes.step(*front.T, where="post", label=sampler)
        axes.plot(*points.T, "o", color=line.get_color())
    finalists = [
        (m["measured_ms"], 100 * (1 - m["trained"]["accuracy"])) for m in record["finalists"]
    ]
    label = "finalists of the study: test error, trained longer"
    axes.plot(*np.array(finalists).T, "k*", markersize=11, label=label)
    axes.set_xlabel("measured latency, ms")
    axes.set_ylabel("validation error, %")
    figure.legend(loc="outside upper center", ncols=2)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
