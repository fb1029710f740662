"""A whole study: latency model, search, finalists, front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from tadnn.errors import RequestError
from tadnn.files import write_json, write_text
from tadnn.profiling import open_clock
from tadnn.progress import SILENT, Progress
from tadnn.search.address import StorageAddress, storage_errors
from tadnn.search.finalists import finalists_clock, prediction_check, run_finalists
from tadnn.search.front import front_csv, front_record, infeasible_warning
from tadnn.search.learned import study_latency_model, study_setting
from tadnn.search.names import require_names, require_phases
from tadnn.search.objective import Evaluator, build_evaluator, network_shape
from tadnn.search.proxy_choice import study_proxy
from tadnn.search.runner import Worker
from tadnn.search.seeds import enqueue, study_seeds
from tadnn.search.spec import AUTO, StudySpec, require_same
from tadnn.search.stage_report import budget_note, stages_note, stages_record
from tadnn.search.storage import (
    MODEL_ATTR,
    PROXY_ATTR,
    SPACE_ATTR,
    create_study,
    find_study,
    is_begun,
    results_folder,
    study_lock,
)
from tadnn.search.taking import Ended
from tadnn.search.workers import Job, run_workers
from tadnn.spaces import Space, load_space, union

if TYPE_CHECKING:
    from tadnn.latency import Budget, LatencyModel

#: How a worker process makes its evaluator; see `Job.setup`.
SETUP = "tadnn.search.run:worker_evaluator"


@dataclass(frozen=True)
class SearchResult:
    """What a search left behind.

    Attributes:
        folder: where its files are.
        record: the content of ``front.json``.
        complete: distinct completed trials; where there are stages, those that ended the first.
        notes: what is worth saying, such as that the space is exhausted.
        files: what was written, by what it is.
        check: predicted against measured finalists, see `prediction_check`; None without any.
        phase_checks: the same for every phase of the study.
    """

    folder: Path
    record: Mapping[str, Any]
    complete: int
    notes: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    check: Mapping[str, Any] | None = None
    phase_checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def study_space(spec: StudySpec) -> tuple[Space, dict[str, str]]:
    """Return the space that the study searches, and the hash of each space in it by name.

    Raises:
        SpaceError: a space does not load, or an override does not fit.
        SpecError: an objective or a constraint is on a phase that a space has not.
    """
    spaces = [load_space(name) for name in spec.space]
    joined = union(spaces)
    require_phases(spec, joined)
    return joined.narrow(spec.overrides), {space.name: space.hash for space in spaces}


def model_facts(model: LatencyModel | None) -> dict[str, Any] | None:
    """Return what a study freezes of its latency model."""
    if model is None:
        return None
    return {
        "name": model.name,
        "hash": model.hash,
        "device": model.device.slug,
        "setting": model.setting.to_dict(),
    }


def worker_evaluator(spec: StudySpec, latency_model: str | None) -> Evaluator:
    """Make the evaluator of a worker process."""
    from tadnn.latency import load_latency_model

    model = None if latency_model is None else load_latency_model(latency_model)
    return build_evaluator(spec, study_space(spec)[0], model)


def search(
    spec: StudySpec,
    evaluator: Evaluator,
    spaces: Mapping[str, str],
    facts: Mapping[str, Any] | None,
    progress: Progress = SILENT,
    setup: str = SETUP,
    proxy: Mapping[str, Any] | None = None,
) -> tuple[optuna.Study, Ended]:
    """Create or resume the study and run it until it has its trials.

    Args:
        spec: the study.
        evaluator: makes trials; with several workers each makes its own by ``setup``.
        spaces: hash of every space by name.
        facts: of the latency model; see `model_facts`.
        progress: told of completed trials.
        setup: see `Job.setup`.
        proxy: what stands behind ``proxy: auto``; see `study_proxy`.

    Raises:
        StudyMismatch: the study began with another spec, space, latency model or proxy.
        CorruptFile: its database is damaged.
        Unwritable: its folder or database takes no writes.
        WorkFailed: architecture after architecture fails.
    """
    seeds = study_seeds(spec, evaluator.space)
    folder = results_folder(spec)
    address = StorageAddress.of(spec)
    lock = study_lock(folder)
    with storage_errors(address.url), _reporting(progress, spec.trials) as report:
        with lock:
            study = create_study(spec, address.open(), spaces, facts, evaluator.input_shape, proxy)
            enqueue(study, seeds)
        if spec.workers == 1:
            ended = Worker(study, evaluator, lock, address.path is None, report).run()
        else:
            job = Job.of(spec, None if facts is None else str(facts["name"]), setup)
            ended = run_workers(job, spec.workers, study, evaluator.space, report)
    return study, ended


def run_search(
    spec: StudySpec,
    *,
    device: str = "auto",
    budget: Budget | None = None,
    fresh: bool = False,
    progress: Progress = SILENT,
) -> SearchResult:
    """Run a whole study: learn the device, search, train and re-measure, write the front.

    Whatever was finished by an earlier run is not done again.

    Args:
        spec: the study.
        device: where ``latency_model: auto`` learns and finalists are measured; see
            ``open_clock``.
        budget: how much to measure for ``latency_model: auto``.
        fresh: measure again what is known already, for a study that hasn't begun: the machine
            was busy when it was learned.
        progress: told of every stage.

    Raises:
        RequestError: the spec names what is not there, or the study began with another one.
        WorkFailed: architecture after architecture fails.
    """
    require_names(spec)
    results_folder(spec)
    space, spaces = study_space(spec)
    study_seeds(spec, space)  # what is wrong with it shows before anything is measured
    begun = find_study(spec).user_attrs if is_begun(spec) else None
    if begun is not None:
        if fresh:
            raise RequestError(
                f"the study {spec.name!r} has begun on the latency model it has; to learn the "
                f"machine afresh, move {results_folder(spec)} away or give the study another name"
            )
        _require_begun(spec, begun, spaces, device)
    shape, classes = network_shape(spec, space)
    model = study_latency_model(
        spec, space, shape, classes, device=device, budget=budget, fresh=fresh, progress=progress
    )
    frozen = None if begun is None else begun.get(PROXY_ATTR)
    proxy = study_proxy(spec, space, shape, classes, frozen, progress)
    evaluator = build_evaluator(spec, space, model)
    study, ended = search(spec, evaluator, spaces, model_facts(model), progress, proxy=proxy)
    said = (_proxy_note(proxy), _noise_note(spec), _ending_note(spec, study, ended))
    notes = [note for note in said if note is not None]
    for note in notes:
        progress.note(note)  # what follows may take long
    calibrated_on = () if model is None else model.card.data.get("calibration_nets", ())
    clock = finalists_clock(spec, model, device)
    for note in run_finalists(spec, study, clock, calibrated_on, progress):
        notes.append(note)
        progress.note(note)
    record, files = write_front(spec, study)
    if spec.tail_aware:
        notes.append(_snapping_note(record))
        progress.note(notes[-1])
    warning = infeasible_warning(record)
    if warning is not None:
        notes.append(warning)  # the caller shows it beside the least infeasible
    checks = {phase: prediction_check(record, study, phase) for phase in (None, *spec.phases)}
    return SearchResult(
        results_folder(spec),
        record,
        ended.complete,
        tuple(notes),
        files,
        checks.pop(None),
        {phase: check for phase, check in checks.items() if phase and check},
    )


def write_front(spec: StudySpec, study: optuna.Study) -> tuple[dict[str, Any], dict[str, Path]]:
    """Write ``front.json`` and ``front.csv``; return the record and the paths.

    Raises:
        Unwritable: the study's folder takes no more.
    """
    record = front_record(study)
    folder = results_folder(spec)
    files = {"front": folder / "front.json", "table": folder / "front.csv"}
    write_json(files["front"], record)
    write_text(files["table"], front_csv(record))
    return record, files


def _require_begun(
    spec: StudySpec, begun: Mapping[str, Any], spaces: Mapping[str, str], device: str
) -> None:
    """Refuse what a begun study can't go on with, before anything is measured for it.

    Learning another device first would also replace the model that the study needs.
    """
    require_same("space", begun[SPACE_ATTR], dict(spaces))
    frozen = begun.get(MODEL_ATTR)
    if frozen is not None and spec.latency_model == AUTO:
        clock = open_clock(device, study_setting(spec))
        here = {"device": clock.device.slug, "setting": clock.setting.to_dict()}
        require_same("device and setting", {key: frozen[key] for key in here}, here)


def _proxy_note(proxy: Mapping[str, Any] | None) -> str | None:
    return None if proxy is None else f"the proxy is {proxy['name']}: {proxy['reason']}"


def _snapping_note(record: Mapping[str, Any]) -> str:
    counts = record["tail_aware"]
    return (
        f"tail-aware: {counts['sampled']} architectures were sampled and snapped to efficient "
        f"widths; {counts['distinct']} distinct networks remained"
    )


def _noise_note(spec: StudySpec) -> str | None:
    if spec.dataset is not None or spec.proxy is None:
        return None
    from tadnn.accuracy import ENSEMBLES, find_proxy

    if spec.proxy in ENSEMBLES:
        return None
    proxy = find_proxy(spec.proxy)
    if "dataset" not in proxy.needs or proxy.makes_inputs:
        return None
    return f"there is no data set: the proxy {proxy.name} looked at noise"


def _ending_note(spec: StudySpec, study: optuna.Study, ended: Ended) -> str | None:
    if ended.why == "budget":
        return budget_note(spec, study)
    if ended.why == "exhausted":
        return (
            f"the space is exhausted: every architecture was taken up, {ended.complete} of the "
            f"{spec.trials} trials asked for completed"
        )
    if ended.why == "elsewhere":
        return f"{ended.complete} of {spec.trials} trials are done; other machines have the rest"
    return None if spec.stages is None else stages_note(stages_record(spec, study))


@contextmanager
def _reporting(progress: Progress, total: int) -> Iterator[Callable[[int], None]]:
    with progress.task("search", total) as advance:
        shown = 0

        def report(complete: int) -> None:
            nonlocal shown
            done = min(complete, total)
            if done > shown:
                advance(done - shown)
                shown = done

        yield report
