"""Which proxy predicts? Agreement with accuracies, and a recommendation that studies use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError
from tadnn.files import STUDIES, ensure_writable, read_json, stable_hash, write_json
from tadnn.progress import SILENT, Progress
from tadnn.search.proxy_scores import NONE, Scored, Task, score_all
from tadnn.search.spec import AUTO, StudySpec, physical_cores, study_folder

if TYPE_CHECKING:
    from tadnn.spaces import Space

#: The proxy to beat, and those that cost nothing.
BASELINE = "flops"
FREE = ("flops", "parameters", "decoder_parameters")
#: What ``proxy: auto`` trains where nobody asked before.
SAMPLED, EPOCHS = 40, 1
MIN_SAMPLE = 5

CHOSEN_FILE = "proxy.json"


def proxy_values(scored: Sequence[Scored]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return each proxy's and ensemble's value of every network, and what was left out and why.

    A network without a value has minus infinity. Ensembles rank the networks among each other.
    """
    from tadnn.accuracy import ENSEMBLES, PROXIES, aggregate

    left_out = {name: reason for each in scored for name, reason in each.unfit.items()}
    values = {
        name: [each.values[name] for each in scored] for name in PROXIES if name not in left_out
    }
    for name, parts in ENSEMBLES.items():
        missing = [part for part in parts if part not in values]
        if missing:
            left_out[name] = f"it needs {missing[0]}: {left_out[missing[0]]}"
        else:
            values[name] = aggregate([values[part] for part in parts])
    return values, left_out


def proxy_records(
    scored: Sequence[Scored], accuracies: Sequence[float] | None, seed: int = 0
) -> dict[str, Any]:
    """Return what each proxy costs, and how well it orders the networks.

    Args:
        scored: the networks.
        accuracies: of each; None: nothing is known of them.
        seed: of the intervals' resampling.

    Returns:
        ``n``; ``proxies``, the best first, each with ``name``, ``spearman``, ``kendall``,
        ``interval`` and ``kendall_interval`` (95 %, [low, high]), ``over_flops`` (the interval of
        what its Spearman has over that of FLOPs), ``beats_flops`` (that interval is above 0),
        ``no_value`` (networks that it has no value for, ranked last) and ``seconds_per_net``;
        ``left_out``, proxies that cannot look at such networks, with the reason.
    """
    from tadnn.accuracy import ENSEMBLES, agreement, gain

    values, left_out = proxy_values(scored)
    records = []
    for name, ours in values.items():
        parts = ENSEMBLES.get(name, (name,))
        seconds = sum(each.seconds[part] for each in scored for part in parts) / len(scored)
        record: dict[str, Any] = {
            "name": name,
            "spearman": None,
            "kendall": None,
            "interval": None,
            "kendall_interval": None,
            "over_flops": None,
            "beats_flops": None,
            "no_value": sum(any(each.values[part] == NONE for part in parts) for each in scored),
            "seconds_per_net": seconds,
        }
        if accuracies is not None:
            found = agreement(ours, accuracies, seed)
            over = None
            if name != BASELINE and BASELINE in values:
                over = gain(ours, values[BASELINE], accuracies, seed)
            record |= {
                "spearman": found.spearman,
                "kendall": found.kendall,
                "interval": _listed(found.interval),
                "kendall_interval": _listed(found.kendall_interval),
                "over_flops": _listed(over),
                "beats_flops": None if over is None else over[0] > 0,
            }
        records.append(record)
    records.sort(key=lambda r: -2.0 if r["spearman"] is None else r["spearman"], reverse=True)
    return {"n": len(scored), "proxies": records, "left_out": left_out}


def recommend(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the recommended proxy's ``name``, and the ``reason`` in words.

    It is the best by Spearman among those that cost nothing and those that are better than
    FLOPs beyond doubt (the interval of the difference is above 0).

    Raises:
        RequestError: no proxy orders the networks, such as where all accuracies are equal.
    """
    able = [r for r in record["proxies"] if r["spearman"] is not None]
    chosen = next((r for r in able if r["beats_flops"] or r["name"] in FREE), None)
    if chosen is None:
        raise RequestError(
            "no proxy can be recommended: the accuracies, or all of a proxy's values, are equal"
        )
    best = able[0]
    if chosen is not best:
        reason = (
            f"{best['name']} is ahead ({best['spearman']:.2f}), but {record['n']} networks do not "
            f"show that it is better than flops; {chosen['name']} costs nothing"
        )
    elif chosen["name"] in FREE:
        reason = "no other proxy orders these networks better"
    else:
        reason = "it orders these networks better than flops"
    if chosen["interval"] is not None and chosen["interval"][0] <= 0:
        reason += "; even it may not predict at all here: short training is safer"
    return {"name": chosen["name"], "reason": reason}


def sample_agreement(
    task: Task, count: int, workers: int = 1, progress: Progress = SILENT
) -> dict[str, Any]:
    """Train a sample of a space for a short time, and see which proxy foretells the outcome.

    Networks that are done are kept, so that an interrupted run goes on. The recommendation is
    kept for `study_proxy`.

    Args:
        task: with a data set and epochs.
        count: the sample's size; the whole space where that is smaller.
        workers: processes.
        progress: told of every network.

    Returns:
        `proxy_records` with ``recommended``, what was sampled, and how many trainings ``failed``
        (such networks are ranked last).

    Raises:
        RequestError: the sample is too small.
    """
    space = task.space()
    count = min(count, space.size())
    if count < MIN_SAMPLE:
        raise RequestError(
            f"an order takes at least {MIN_SAMPLE} networks; received a sample of {count} of "
            f"{space.size()}"
        )
    folder = _folder(space, task)
    ensure_writable(folder)
    archs = space.sample(count, task.seed)
    settings = f"{task.epochs}-{task.seed}-{task.batch_size}"
    files = [folder / f"{space.key(arch)}-{settings}.json" for arch in archs]
    missing = [i for i, file in enumerate(files) if not file.is_file()]

    def keep(at: int, done: Scored) -> None:
        write_json(files[missing[at]], done.to_record())

    score_all(task, [archs[i] for i in missing], workers, progress, keep)
    scored = [Scored.from_record(read_json(file)) for file in files]
    # What cannot be trained is worse than anything that can.
    accuracies = [NONE if each.accuracy is None else each.accuracy for each in scored]
    found = proxy_records(scored, accuracies, task.seed)
    record = {
        "space": space.name,
        "dataset": task.dataset,
        "input_shape": list(task.input_shape),
        "epochs": task.epochs,
        "seed": task.seed,
        "failed": accuracies.count(NONE),
        **found,
        "recommended": recommend(found),
    }
    write_json(folder / CHOSEN_FILE, record)
    return record


def study_proxy(
    spec: StudySpec,
    space: Space,
    input_shape: tuple[int, ...],
    classes: int | None,
    frozen: Mapping[str, Any] | None,
    progress: Progress = SILENT,
) -> dict[str, Any] | None:
    """Return what stands behind the study's ``proxy: auto``; None where it says something else.

    A study that has begun keeps its choice. A new one takes what was recommended for its space,
    data set and input; where nothing was, a sample is trained first.

    Args:
        spec: the study.
        space: its space, narrowed.
        input_shape: of its networks.
        classes: their outputs.
        frozen: what the study began with; None where it is new.
        progress: told of the sample's training.
    """
    if spec.proxy != AUTO:
        return None
    if frozen is None:
        task = Task(
            spec.space, spec.overrides, input_shape, classes, spec.dataset, spec.seed, None, EPOCHS
        )
        known = _folder(space, task) / CHOSEN_FILE
        record = read_json(known) if known.is_file() else None
        if record is None:
            record = sample_agreement(task, SAMPLED, physical_cores(), progress)
        keys = ("n", "epochs", "seed")
        frozen = {**record["recommended"], **{key: record[key] for key in keys}}
    chosen = dict(frozen)
    write_json(study_folder(spec) / CHOSEN_FILE, chosen)
    return chosen


def chosen_proxy(spec: StudySpec) -> str:
    """Return the proxy of a study whose accuracy is one; that of ``auto`` as `study_proxy` left it.

    Raises:
        CorruptFile: the file is damaged.
    """
    assert spec.proxy is not None
    if spec.proxy != AUTO:
        return spec.proxy
    return str(read_json(study_folder(spec) / CHOSEN_FILE)["name"])


def _folder(space: Space, task: Task) -> Path:
    """Return where results for a space, a data set and an input are kept."""
    what = stable_hash([space.hash, task.dataset, list(task.input_shape), task.classes])
    return STUDIES.local / ".proxies" / what


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)
