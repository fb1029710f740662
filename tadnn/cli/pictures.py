"""Gathering what a study's plots show, and drawing them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.progress import Progress

if TYPE_CHECKING:
    from tadnn.latency import LatencyModel
    from tadnn.report import BreakdownView, StairView
    from tadnn.search import StudySpec

FORMATS = ("png", "svg", "pdf")


def draw_study(
    spec: StudySpec,
    formats: Sequence[str],
    progress: Progress,
    *,
    folder: Path | None = None,
    trial: int | None = None,
) -> dict[str, Path]:
    """Draw front, predicted against measured, and one network's breakdown and stairs.

    Returns:
        What was drawn: the paths by name, such as ``pareto.png``.
    """
    from tadnn.report import (
        FrontView,
        PredictionView,
        breakdown_figure,
        pareto_figure,
        prediction_figure,
        stairs_figure,
    )
    from tadnn.search import find_study, front_record, knee_trial, study_folder, trial_records

    study = find_study(spec)
    record = front_record(study)
    knee = knee_trial(record)
    folder = folder or study_folder(spec)
    with progress.task("drawing", None):
        view = FrontView.from_records(record, trial_records(study), knee=knee)
        files = _save(pareto_figure(view), folder, "pareto", formats)
        for phase in view.phases:
            if phase == view.score_phase:
                continue  # the other latency is drawn against it
            figure = pareto_figure(view.in_phase(phase))
            files |= _save(figure, folder, f"pareto-{phase}", formats)
        for named in (None, *view.phases):
            pairs = PredictionView.from_front(record, named)
            if pairs.pairs:
                name = "prediction" if named is None else f"prediction-{named}"
                files |= _save(prediction_figure(pairs), folder, name, formats)
        number = knee if trial is None else trial
        model = _frozen_model(spec, progress) if number is not None else None
        if number is not None and model is not None:
            breakdown, stair = _network_views(spec, number, model, record)
            files |= _save(breakdown_figure(breakdown), folder, "breakdown", formats)
            if stair is not None:
                files |= _save(stairs_figure(stair), folder, "stairs", formats)
    return files


def _save(figure: Any, folder: Path, name: str, formats: Sequence[str]) -> dict[str, Path]:
    from tadnn.report import save_figure

    files = {}
    for suffix in formats:
        path = folder / f"{name}.{suffix}"
        save_figure(figure, path)
        files[path.name] = path
    return files


def _frozen_model(spec: StudySpec, progress: Progress) -> LatencyModel | None:
    """Return the latency model that the study began with; None where it has none, or lost it."""
    from tadnn.errors import CorruptFile, UnknownName
    from tadnn.latency import load_latency_model
    from tadnn.search import frozen_model

    facts = frozen_model(spec)
    if facts is None:
        return None
    try:
        model = load_latency_model(facts["name"])
    except (UnknownName, CorruptFile) as error:
        progress.note(f"no breakdown and no stairs: {error}")
        return None
    if model.hash != facts["hash"]:
        progress.note(
            f"no breakdown and no stairs: latency model {model.name} is not the one that the "
            "study began with"
        )
        return None
    return model


def _network_views(
    spec: StudySpec, trial: int, model: LatencyModel, record: dict[str, Any]
) -> tuple[BreakdownView, StairView | None]:
    from tadnn.latency import sweep, to_json, width_of
    from tadnn.report import BreakdownView, StairView, setting_text
    from tadnn.search import resolve_trial

    net = resolve_trial(spec, trial).net
    prediction = model.predict_net(net, spec.batch)
    title, subtitle = f"{spec.name} #{trial}", setting_text(record)
    breakdown = BreakdownView.from_prediction(title, subtitle, to_json(prediction, model))
    # The staircase of the layer that costs most among those with a width of their own.
    sizes = [(s.kernel, width_of(s.kernel)) for s in prediction.kernels if s.in_range]
    kernel, size = next(((k, size) for k, size in sizes if size is not None), (None, None))
    if kernel is None or size is None:
        return breakdown, None
    present = kernel.dim(size)
    low, high = model.ops[kernel.op].box[size]
    step = max(1, (high - low) // 128)
    widths = sorted({*range(low, high + 1, step), present})
    predicted = sweep(model, kernel, size, widths)
    stair = StairView(
        title=f"{title}: one layer's latency against its width",
        subtitle=kernel.key,
        axis="output channels" if kernel.op == "conv2d" else "output features",
        widths=tuple(widths),
        latency_us=tuple(float(v) for v in predicted.latency_us),
        std_us=tuple(float(v) for v in predicted.std_us),
        present=present,
        label=title,
    )
    return breakdown, stair
