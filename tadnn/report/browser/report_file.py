"""A study as one HTML file that needs no server and no network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from tadnn.errors import TadnnError
from tadnn.files import environment, write_text
from tadnn.report.browser import pages
from tadnn.report.browser.assets import PLOTLY, assets
from tadnn.report.browser.records import study_json
from tadnn.report.library import Library
from tadnn.report.model_view import ModelView
from tadnn.report.study_view import FRONT, StudyView

_NETWORKS = 8


def write_report(library: Library, key: str, path: Path) -> Path:
    """Write a study's report: its page, its best networks and its latency model in one file.

    Args:
        library: what holds the study.
        key: the study's name there.
        path: the file to write.

    Returns:
        The path.

    Raises:
        UnknownName: there is no such study.
        TadnnError: it cannot be read.
        Unwritable: the folder cannot be written or the disk is full.
    """
    shelf = library.shelf(key)
    view = shelf.view()
    text = pages.render(
        "report.html",
        active="",
        key=view.name,
        view=view,
        text=study_json(view),
        networks=[shelf.network(trial) for trial in chosen_networks(view)],
        model=_model(library, view),
        columns=pages.held_out_columns(),
        style=_inline("style.css"),
        script=_inline("app.js"),
        plotly=_inline(PLOTLY),
        version=environment()["tadnn"],
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_text(path, text)
    return path


def chosen_networks(view: StudyView) -> list[int]:
    """Return the trials that a report shows whole: the knee, finalists, then the front's others.

    At most eight, by number; the front's are spread evenly.
    """
    first = ([] if view.knee is None else [view.knee]) + sorted(view.finalists)
    front = [int(trial) for trial in view.trials[view.status == FRONT]]
    step = max(1, len(front) // _NETWORKS)
    return sorted(list(dict.fromkeys([*first, *front[::step]]))[:_NETWORKS])


def _model(library: Library, view: StudyView) -> ModelView | None:
    name = str(view.front["latency_model"] or "").partition("@")[0]
    if not name:
        return None
    try:
        return library.model(name)
    except TadnnError:
        return None  # it was deleted since, or is damaged; each network says why it shows less


def _inline(name: str) -> Markup:
    text = assets()[name].plain.decode("utf-8")
    # A text in a script that looks like its end must not end it.
    return Markup(text.replace("</script", "<\\/script"))
