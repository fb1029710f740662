"""Gathering what a study's plots show, and drawing them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.progress import Progress

if TYPE_CHECKING:
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
    """Draw front, history, predicted against measured, one network's breakdown and stairs.

    Returns:
        What was drawn: the paths by name, such as ``pareto.png``.
    """
    from tadnn.report import (
        FrontView,
        PredictionView,
        breakdown_figure,
        breakdown_view,
        costliest_stair,
        frozen_model,
        history_figure,
        pareto_figure,
        prediction_figure,
        setting_text,
        stairs_figure,
        study_view,
    )
    from tadnn.search import read_study, resolve_trial, study_folder, trial_records

    study = read_study(spec, unchanged=True)
    folder = folder or study_folder(spec)
    with progress.task("drawing", None):
        seen = study_view(study)
        record, knee = seen.front, seen.knee
        number = knee if trial is None else trial
        # Looked up first: a trial that isn't there is refused before anything is drawn.
        net = None if number is None else resolve_trial(spec, number, study=study).net
        view = FrontView.from_records(record, trial_records(study), knee=knee)
        files = _save(pareto_figure(view), folder, "pareto", formats)
        for phase in view.phases:
            if phase == view.score_phase:
                continue  # the other latency is drawn against it
            figure = pareto_figure(view.in_phase(phase))
            files |= _save(figure, folder, f"pareto-{phase}", formats)
        if seen.history.volumes:
            files |= _save(history_figure(seen.history), folder, "history", formats)
        for named in (None, *view.phases):
            pairs = PredictionView.from_front(record, named)
            if pairs.pairs:
                name = "prediction" if named is None else f"prediction-{named}"
                files |= _save(prediction_figure(pairs), folder, name, formats)
        if number is None or net is None:
            return files
        model, note = frozen_model(study)
        if model is None:
            if record["latency_model"] is not None:
                progress.note(f"no breakdown and no stairs: {note}")
            return files
        subtitle = setting_text(record)
        breakdown = breakdown_view(spec.name, number, subtitle, net, spec.batch, model)
        files |= _save(breakdown_figure(breakdown), folder, "breakdown", formats)
        stair = costliest_stair(spec.name, number, net, spec.batch, model)
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
