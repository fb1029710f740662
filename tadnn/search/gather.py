"""Gathering what an export needs of a trial: network, weights, facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tadnn.errors import UnknownName
from tadnn.export import (
    CardFacts,
    ExportRequest,
    Measured,
    PhaseLatency,
    Predicted,
    ProxyScore,
    Trained,
)
from tadnn.latency import load_latency_model
from tadnn.progress import SILENT, Progress
from tadnn.search.finalists import trained_module
from tadnn.search.front import member_record
from tadnn.search.judges import arch_seed
from tadnn.search.objective import NET_ATTR, RESULT_ATTR, unpack_net
from tadnn.search.remeasuring import remeasured
from tadnn.search.spec import StudySpec
from tadnn.search.storage import ENVIRONMENT_ATTR, MODEL_ATTR
from tadnn.search.trials import evaluated_trial

if TYPE_CHECKING:
    from optuna import Study

_SAMPLE = 16


def export_request(
    spec: StudySpec,
    study: Study,
    number: int,
    *,
    measure_on: str | None = None,
    progress: Progress = SILENT,
) -> ExportRequest:
    """Return the export of one evaluated trial.

    Weights are those of the finalist's training where there was one; else the network
    is exported untrained, and says so.

    Args:
        spec: the study.
        study: the study, opened to be read.
        number: the trial's.
        measure_on: the device to measure the network on again, see `remeasured`; None keeps
            what the search measured.
        progress: told of measurements.

    Raises:
        TargetError: there is no evaluated trial of that number.
        RequestError: ``measure_on`` names what isn't here, or another device than predicted for.
    """
    trial = evaluated_trial(study, number)
    member = member_record(trial, study.user_attrs)
    net = unpack_net(trial.user_attrs[NET_ATTR])
    result = trial.user_attrs[RESULT_ATTR]
    trained = Trained(**member["trained"]) if member["trained"] else None
    module = trained_module(spec, number, net)
    model = study.user_attrs.get(MODEL_ATTR) or {}
    setting = model.get("setting") or {}
    card = CardFacts(
        study=spec.name,
        trial=number,
        study_seed=spec.seed,
        device=model.get("device"),
        setting=", ".join(f"{k} {v}" for k, v in setting.items()) or None,
        batch=spec.batch,
        latency_model=model.get("name"),
        latency_model_error=_model_error(model.get("name"), model.get("hash")),
        predicted=Predicted(**member["predicted"]) if member["predicted"] else None,
        measured=Measured(**member["measured"]) if member["measured"] else None,
        measuring="in the search, among its finalists" if member["measured"] else None,
        unmeasured="the search had measured it" if member["measured"] else "it was not asked for",
        phases=tuple(
            PhaseLatency(
                phase,
                Predicted(**facts["predicted"]) if facts["predicted"] else None,
                Measured(**facts["measured"]) if facts["measured"] else None,
            )
            for phase, facts in member.get("phases", {}).items()
        ),
        search=_search(spec),
        trained=trained if module is not None else None,
        trained_in_search=trained if module is None else None,
        proxy=ProxyScore(**member["proxy"]) if member["proxy"] else None,
        environment=study.user_attrs[ENVIRONMENT_ATTR],
    )
    if measure_on is not None:
        card = remeasured(card, study, measure_on, progress)
    preprocess, sample = None, None
    if spec.dataset is not None:
        from tadnn.accuracy import load_dataset

        dataset = load_dataset(spec.dataset, spec.input_shape)
        preprocess = dataset.preprocess()
        sample = dataset.splits["test"].images[:_SAMPLE]
        if card.trained is not None:
            images = len(dataset.splits[card.trained.split])
            card = replace(card, trained=replace(card.trained, images=images))
    return ExportRequest(
        net=net,
        card=card,
        arch=result["arch"],
        space=result["space"],
        module=module,
        weights_seed=arch_seed(spec.seed, net.key),
        preprocess=preprocess,
        sample=sample,
    )


def _search(spec: StudySpec) -> str:
    """Say what a study searches for, in one line."""
    bounds = [f"{name} at most {bound:g}" for name, bound in spec.constraints.bounds().items()]
    how = f"sampler {spec.sampler}, up to {spec.trials:,} trials"
    return "; ".join([", ".join(spec.objectives), *bounds, how])


def _model_error(name: str | None, digest: str | None) -> float | None:
    """Return the latency model's own error on networks it was not fitted on, in percent."""
    if name is None:
        return None
    try:
        model = load_latency_model(name)
    except UnknownName:
        return None  # the model was deleted since; the card says less then
    if digest is not None and model.hash != digest:
        return None
    held_out = model.nets.held_out.get("mape")
    return None if held_out is None else float(held_out)
