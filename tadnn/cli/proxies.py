"""``tadnn proxies``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tadnn.cli.app import app
from tadnn.cli.options import Input, input_shape
from tadnn.cli.output import Bars, Json, print_json, print_table, say
from tadnn.errors import RequestError, UnknownName

if TYPE_CHECKING:
    from tadnn.search import ArchList, Scored, StudySpec, Task

#: Images per minibatch for a list: enough to rank, and several times as fast as in studies.
_LIST_BATCH = 8


@app.command()
def proxies(
    target: Annotated[
        str, typer.Argument(metavar="SPACE", help="A space, or a study for its narrowed space.")
    ],
    archs: Annotated[
        Path | None,
        typer.Option("--archs", metavar="LIST.csv", help="Score these, not a sample."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Whose images are looked at.")] = None,
    n: Annotated[int, typer.Option("--n", help="Size of the sample that is trained.")] = 40,
    epochs: Annotated[
        float, typer.Option(help="How long each is trained; below 1, on a share of the images.")
    ] = 1,
    shape: Input = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Outputs, without data.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=2, help="Images per minibatch: 8 for a list, as in studies otherwise."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one per core when absent.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of sample, weights and images.")] = 0,
    json: Json = False,
) -> None:
    """Score networks by every proxy; tell which predict accuracy.

    Of a list (a column per choice or arch_str) where it has a column accuracy; of a sample after
    a short training on the data set: then one is recommended, and studies with proxy: auto use it.
    """
    from tadnn.accuracy import checked_epochs
    from tadnn.search import (
        physical_cores,
        proxy_records,
        proxy_values,
        read_archs,
        sample_agreement,
        score_all,
    )

    count = physical_cores() if workers is None else workers
    if archs is not None:
        task = _task(target, dataset, input_shape(shape), classes, seed, batch or _LIST_BATCH)
        listed = read_archs(archs, task.space())
        scored = score_all(task, listed.archs, count, Bars())
        record = proxy_records(scored, listed.accuracies, seed)
        if json:
            print_json({**record, "nets": _nets(listed, proxy_values(scored)[0])})
        elif listed.accuracies is None:
            _print_scores(record, listed, scored)
        else:
            _print_agreement(record, f"{archs}: {record['n']} networks of {target}")
        return
    length = checked_epochs(epochs)
    task = _task(target, dataset, input_shape(shape), classes, seed, batch, length)
    if task.dataset is None:
        raise RequestError(
            "proxies takes --archs LIST.csv to score a list, or --dataset D to train a sample; "
            "received neither"
        )
    record = sample_agreement(task, n, count, Bars())
    if json:
        print_json(record)
        return
    title = f"{record['n']} networks of {target} after {length} epoch(s) on {task.dataset}"
    _print_agreement(record, title)
    if record["failed"]:
        say(f"note: {record['failed']} networks could not be trained; they are ranked last")
    chosen = record["recommended"]
    print(f"recommended: {chosen['name']} ({chosen['reason']}); proxy: auto uses it")


def _task(
    target: str,
    dataset: str | None,
    shape: tuple[int, ...] | None,
    classes: int | None,
    seed: int,
    batch: int | None,
    epochs: float | None = None,
) -> Task:
    """Return what is scored, with the shapes that its networks have.

    Raises:
        UnknownName: neither a space nor a study, or no such data set.
        RequestError: classes are given beside a data set.
    """
    from tadnn.accuracy import load_dataset
    from tadnn.search import Task
    from tadnn.spaces import load_space, union

    study = _study(target)
    names, overrides = ((target,), {}) if study is None else (study.space, dict(study.overrides))
    space = union([load_space(name) for name in names])
    if study is not None:
        dataset = dataset or study.dataset
        shape = shape or study.input_shape
        classes = classes or (study.classes if dataset is None else None)
    if dataset is not None:
        if classes is not None:
            raise RequestError(f"the classes are those of the data set; received {classes}")
        data = load_dataset(dataset, shape)
        shape, classes = data.input_shape, data.classes
    return Task(
        names, overrides, shape or space.default_input, classes, dataset, seed, batch, epochs
    )


def _study(target: str) -> StudySpec | None:
    """Return the study that a target names; None where it names a space.

    Raises:
        UnknownName: it names neither.
    """
    from tadnn.files import SEARCH_SPACES, STUDIES
    from tadnn.search import load_spec

    if target.endswith(".py") or target in SEARCH_SPACES.entries():
        return None
    if not target.endswith((".yaml", ".yml")) and target not in STUDIES.entries():
        raise UnknownName("space or study", target, {*SEARCH_SPACES.entries(), *STUDIES.entries()})
    return load_spec(target)


def _nets(listed: ArchList, values: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    from math import isfinite

    return [
        {
            "line": line,
            "arch": dict(arch),
            "scores": {n: v[i] if isfinite(v[i]) else None for n, v in values.items()},
        }
        for i, (line, arch) in enumerate(zip(listed.lines, listed.archs, strict=True))
    ]


def _print_scores(record: Mapping[str, Any], listed: ArchList, scored: Sequence[Scored]) -> None:
    from tadnn.search import proxy_values

    nets = _nets(listed, proxy_values(scored)[0])
    names = [proxy["name"] for proxy in record["proxies"]]
    rows = [(net["line"], *(net["scores"][name] for name in names)) for net in nets]
    print_table(["line", *names], rows)
    _say_exceptions(record)


def _print_agreement(record: Mapping[str, Any], title: str) -> None:
    rows = [
        (
            proxy["name"],
            proxy["spearman"],
            _interval(proxy["interval"]),
            proxy["kendall"],
            _interval(proxy["kendall_interval"]),
            _verdict(proxy),
            1e3 * proxy["seconds_per_net"],
        )
        for proxy in record["proxies"]
    ]
    columns = ["proxy", "Spearman", "95 %", "Kendall", "95 %", "than FLOPs", "ms a net"]
    print_table(columns, rows, title)
    _say_exceptions(record)


def _interval(pair: Sequence[float] | None) -> str | None:
    return None if pair is None else f"{pair[0]:.2f} to {pair[1]:.2f}"


def _verdict(proxy: Mapping[str, Any]) -> str | None:
    if proxy["beats_flops"] is None:
        return None
    return "better" if proxy["beats_flops"] else "no better"


def _say_exceptions(record: Mapping[str, Any]) -> None:
    for name, reason in record["left_out"].items():
        say(f"note: {name} is left out: {reason}")
    for proxy in record["proxies"]:
        if proxy["no_value"]:
            say(
                f"note: {proxy['name']} has no value for {proxy['no_value']} networks; they are "
                "ranked last"
            )
    constant = [p["name"] for p in record["proxies"] if p["spearman"] is None]
    if constant and len(constant) < len(record["proxies"]):
        say(f"note: one value for all networks: {', '.join(constant)}")
