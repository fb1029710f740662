"""Finalists: members of the front, trained and re-measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tadnn.latency import LatencyModel, error_summary, pairs_ordered
from tadnn.nets import Net, load_weights, save_weights
from tadnn.profiling import Clock, clock_device, open_clock
from tadnn.progress import SILENT, Progress
from tadnn.search.front import FINALIST_ATTR, front_record
from tadnn.search.judges import arch_seed
from tadnn.search.objective import NET_ATTR, PHASE_NET_ATTR, unpack_net
from tadnn.search.side_by_side import drift_note, drifted, measure_nets
from tadnn.search.spec import StudySpec, study_folder
from tadnn.search.spec_parts import FinalistsSpec
from tadnn.search.trials import evaluated_trials

if TYPE_CHECKING:
    from optuna import Study
    from torch import nn

CHECK_ATTR = "tadnn:check"
_CLEARLY_APART = 0.10
# Few epochs want many steps.
_BATCH = 32
_CURVE = ("epoch", "validation_accuracy", "validation_loss")


def choose(members: Sequence[Mapping[str, Any]], count: int, skip: set[str]) -> list[int]:
    """Return the trial numbers of ``count`` members spread evenly over the front.

    Spread is over the logarithm of latency (of FLOPs without a latency model), both
    ends included. Networks in ``skip`` (keys) are left out: a latency model isn't
    judged by what it was fitted on.
    """
    able = [m for m in members if m["net_key"] not in skip]
    if len(able) <= count:
        return [m["trial"] for m in able]
    cost = np.log([m["cost"] for m in able])
    chosen: list[int] = []
    for goal in np.linspace(cost.min(), cost.max(), count):
        free = [i for i in range(len(able)) if i not in chosen]
        chosen.append(min(free, key=lambda i: (abs(cost[i] - goal), i)))
    return sorted(able[i]["trial"] for i in chosen)


def run_finalists(
    spec: StudySpec,
    study: Study,
    clock: Clock | None,
    calibration_nets: Sequence[str] = (),
    progress: Progress = SILENT,
) -> list[str]:
    """Train and re-measure the finalists; what is done already is not done again.

    Args:
        spec: the study; without ``finalists`` nothing happens.
        study: its trials are searched for the front; results are stored on it.
        clock: of the device that the latency model is for; None where it is absent.
        calibration_nets: keys of the networks that the latency model was fitted on.
        progress: told of every training and measurement.

    Returns:
        Notes worth saying.

    Raises:
        WorkFailed: a training failed.
    """
    wanted = spec.finalists
    if wanted is None:
        return []
    nets = _chosen_nets(study, wanted, set(calibration_nets))
    notes = []
    if wanted.measure and clock is None:
        notes.append("finalists are predicted, not measured: the model's device isn't here")
    elif wanted.measure and clock is not None:
        _measure(study, nets, spec, clock, progress)
        notes += filter(None, [drift_note(_check(study).get("drift"))])
    if wanted.epochs is not None:
        for number, net in nets.items():
            _train(spec, study, number, net, wanted.epochs, progress)
    return notes


def finalists_clock(spec: StudySpec, model: LatencyModel | None, device: str) -> Clock | None:
    """Return the clock that finalists are measured by; None where the model's device is absent.

    Args:
        spec: the study.
        model: its latency model.
        device: the device of this machine to use; see ``open_clock``.
    """
    if spec.finalists is None or not spec.finalists.measure or model is None:
        return None
    present = clock_device(device, model.setting)
    return open_clock(device, model.setting) if present.slug == model.device.slug else None


def weights_path(spec: StudySpec, trial: int) -> Path:
    """Return where a finalist's trained weights are kept."""
    return study_folder(spec) / "finalists" / f"trial-{trial}.safetensors"


def trained_module(spec: StudySpec, trial: int, net: Net) -> nn.Module | None:
    """Return a finalist's module with its trained weights; None where it wasn't trained."""
    path = weights_path(spec, trial)
    if not path.is_file():
        return None
    module = net.to_module()
    load_weights(module, path)
    return module.eval()


def prediction_check(
    record: Mapping[str, Any], study: Study, phase: str | None = None
) -> dict[str, Any] | None:
    """Compare predicted with measured latencies of a front's finalists.

    Args:
        record: the front.
        study: the study.
        phase: of which phase; the networks themselves when None.

    Returns:
        ``n``, ``mape`` and ``bias`` (percent), ``pairs_ordered`` (percent of the pairs that
        differ by more than 10 %), ``span`` (slowest over fastest), ``against_itself``
        (largest relative difference, in percent, of finalists measured twice), ``drift`` (see
        `SideBySide`); None without measurements.
    """
    seen = [m if phase is None else m["phases"][phase] for m in record["members"]]
    pairs = [
        (m["predicted"]["latency_ms"], m["measured"]["latency_ms"])
        for m in seen
        if m["predicted"] and m["measured"]
    ]
    if not pairs:
        return None
    predicted, measured = np.array(pairs).T
    summary = error_summary(predicted, measured)
    return {
        "n": len(pairs),
        "mape": summary["mape"],
        "bias": summary["bias"],
        "pairs_ordered": pairs_ordered(predicted, measured, _CLEARLY_APART),
        "span": float(measured.max() / measured.min()),
        "against_itself": _check(study).get("against_itself"),
        "drift": _check(study).get("drift"),
    }


def _chosen_nets(study: Study, wanted: FinalistsSpec, skip: set[str]) -> dict[int, Net]:
    trials = evaluated_trials(study)
    members = []
    for member in front_record(study)["members"]:
        net = unpack_net(trials[member["trial"]].user_attrs[NET_ATTR])
        cost = member["predicted"]["latency_ms"] if member["predicted"] else member["flops"]
        members.append({**member, "net": net, "net_key": net.key, "cost": cost})
    by_trial = {m["trial"]: m["net"] for m in members}
    return {number: by_trial[number] for number in choose(members, wanted.count, skip)}


def _measure(
    study: Study, nets: Mapping[int, Net], spec: StudySpec, clock: Clock, progress: Progress
) -> None:
    """Measure all finalists and their phases side by side, each twice: a network against itself.

    They are measured together or not at all, so that the machine's mood is the same for all; and
    again where that mood was another one than when the machine was learned.
    """
    known = all("measured" in _stored(study, number) for number in nets)
    if known and not drifted(_check(study).get("drift")):
        return
    trials = evaluated_trials(study)
    runs: dict[tuple[int, str | None], Net] = {}
    for number, net in nets.items():
        runs[number, None] = net
        for phase in spec.phases:
            stored = trials[number].user_attrs[PHASE_NET_ATTR + phase]
            runs[number, phase] = unpack_net(stored)
    done = measure_nets(clock, runs.values(), spec.batch, "re-measuring finalists", progress)
    records = dict(zip(runs, done.records, strict=True))
    for number in nets:
        facts: dict[str, Any] = {"measured": records[number, None]}
        if spec.phases:
            facts["phases"] = {phase: records[number, phase] for phase in spec.phases}
        _store(study, number, facts)
    study.set_user_attr(CHECK_ATTR, done.check())


def _train(
    spec: StudySpec, study: Study, number: int, net: Net, epochs: int, progress: Progress
) -> None:
    from tadnn.accuracy import load_dataset, train

    assert spec.dataset is not None  # the spec's own rule
    known = _stored(study, number).get("trained")
    path = weights_path(spec, number)
    if known is not None and known.get("asked") == epochs and path.is_file():
        return
    dataset = load_dataset(spec.dataset, spec.input_shape)
    seed = arch_seed(spec.seed, net.key)
    module = net.to_module(seed)
    result = train(
        module,
        dataset,
        epochs=epochs,
        seed=seed,
        batch_size=_BATCH,
        patience=max(3, epochs // 3),
        progress=_Labelled(progress, f"training finalist #{number}"),
    )
    # Weights first: a stored accuracy always has its weights.
    save_weights(module, path)
    trained = {"accuracy": result.accuracy, "epochs": result.epochs, "split": result.split}
    curve = [{name: epoch[name] for name in _CURVE} for epoch in result.history]
    _store(study, number, {"trained": {**trained, "asked": epochs, "history": curve}})


class _Labelled(Progress):
    """Says which finalist a training belongs to."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress, self._label = progress, label

    def task(self, label: str, total: int | None) -> Any:
        return self._progress.task(self._label, total)


def _check(study: Study) -> dict[str, float]:
    return dict(study.user_attrs.get(CHECK_ATTR) or {})


def _stored(study: Study, number: int) -> dict[str, Any]:
    return dict(study.user_attrs.get(f"{FINALIST_ATTR}{number}") or {})


def _store(study: Study, number: int, facts: Mapping[str, Any]) -> None:
    study.set_user_attr(f"{FINALIST_ATTR}{number}", {**_stored(study, number), **facts})
