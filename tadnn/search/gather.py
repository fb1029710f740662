"""Gathering what an export needs of a trial: network, weights, facts."""

from __future__ import annotations

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
from tadnn.search.finalists import trained_module
from tadnn.search.front import member_record
from tadnn.search.judges import arch_seed
from tadnn.search.objective import NET_ATTR, RESULT_ATTR, unpack_net
from tadnn.search.spec import StudySpec
from tadnn.search.storage import ENVIRONMENT_ATTR, MODEL_ATTR
from tadnn.search.trials import evaluated_trial

if TYPE_CHECKING:
    from optuna import Study

_SAMPLE = 16


def export_request(spec: StudySpec, study: Study, number: int) -> ExportRequest:
    """Return the export of one evaluated trial.

    Weights are those of the finalist's training where there was one; else the network
    is exported untrained, and says so.

    Raises:
        TargetError: there is no evaluated trial of that number.
    """
    trial = evaluated_trial(study, number)
    member = member_record(trial, study.user_attrs)
    net = unpack_net(trial.user_attrs[NET_ATTR])
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
        phases=tuple(
            PhaseLatency(
                phase,
                Predicted(**facts["predicted"]) if facts["predicted"] else None,
                Measured(**facts["measured"]) if facts["measured"] else None,
            )
            for phase, facts in member.get("phases", {}).items()
        ),
        trained=Trained(**member["trained"]) if module is not None else None,
        proxy=ProxyScore(**member["proxy"]) if member["proxy"] else None,
        environment=study.user_attrs[ENVIRONMENT_ATTR],
    )
    result = trial.user_attrs[RESULT_ATTR]
    preprocess, sample = None, None
    if spec.dataset is not None:
        from tadnn.accuracy import load_dataset

        dataset = load_dataset(spec.dataset, spec.input_shape)
        preprocess = dataset.preprocess()
        sample = dataset.splits["test"].images[:_SAMPLE]
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
