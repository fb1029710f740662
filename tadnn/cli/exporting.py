"""Writing an export, measured again or not: the one way of `export` and of the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.cli.output import Bars, say

if TYPE_CHECKING:
    from tadnn.export import CardFacts, ExportRequest
    from tadnn.search import Study, StudySpec


def write_export(
    spec: StudySpec, study: Study, trial: int, folder: Path, *, measure_on: str | None
) -> tuple[ExportRequest, list[Path]]:
    """Write the export of one trial; say how its latency was measured and what it comes to.

    Args:
        spec: the study.
        study: the study, opened to be read.
        trial: an evaluated trial.
        folder: to write, or to replace where it is an export.
        measure_on: the device to measure on again; None leaves that out.

    Returns:
        What was exported, and the files.

    Raises:
        RequestError: there is no such trial, device or place to write.
        WorkFailed: an exported form does not give the module's outputs.
    """
    from tadnn.export import check_replaceable, export_network
    from tadnn.search import export_request

    check_replaceable(folder)  # before anything is measured for it
    progress = Bars()
    request = export_request(spec, study, trial, measure_on=measure_on, progress=progress)
    with progress.task(f"exporting trial {trial}", None):
        files = export_network(folder, request)
    _say_latency(request.card)
    say_agreement(request.card)
    return request, files


def say_agreement(card: CardFacts) -> None:
    """Say on the terminal how prediction and measurement agree, loudly where they don't."""
    trial = f"trial {card.trial}"
    disagreement, remark = card.disagreement(), card.remark()
    if disagreement is not None:
        say(f"WARNING, {trial}: {disagreement}. Trust the measurement.")
    if remark is not None:
        say(f"NOTE, {trial}: {remark}")


def _say_latency(card: CardFacts) -> None:
    predicted, measured = card.predicted, card.measured
    parts = []
    if measured is not None:
        when = "measured in the search" if card.unmeasured is not None else "measured"
        parts.append(f"{when} {measured.latency_ms:.4g} ± {measured.spread_ms:.2g} ms")
    if predicted is not None:
        parts.append(f"predicted {predicted.latency_ms:.4g} ± {predicted.std_ms:.2g} ms")
    if card.unmeasured is not None:
        say(f"not measured for this export: {card.unmeasured}")
    say(f"trial {card.trial}, batch {card.batch}: {', '.join(parts) or 'no latency is known'}")


def export_record(request: ExportRequest, files: Sequence[Path]) -> dict[str, Any]:
    """Return an export as plain data, for ``--json``."""
    card = request.card
    return {
        "trial": card.trial,
        "files": [str(path) for path in files],
        "predicted": None if card.predicted is None else asdict(card.predicted),
        "measured": None if card.measured is None else asdict(card.measured),
        "unmeasured": card.unmeasured,
        "warning": card.disagreement(),
        "note": card.remark(),
    }
