"""What the pages read: studies and latency models by name, each read once and kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError, TadnnError, UnknownName
from tadnn.report.compare_view import CompareView, compare_view
from tadnn.report.model_view import ModelView, model_view
from tadnn.report.network_gather import frozen_model, network_view
from tadnn.report.network_view import NetworkView
from tadnn.report.study_gather import progress_view, study_view
from tadnn.report.study_view import StudyView

if TYPE_CHECKING:
    from tadnn.latency import LatencyModel
    from tadnn.search import Study, StudySpec

_NETWORKS = 256


class StudyShelf:
    """One study, opened once; safe to ask from several threads.

    Args:
        key: how it is named in links.
        spec: the study.
    """

    def __init__(self, key: str, spec: StudySpec) -> None:
        self.key, self.spec = key, spec
        self.where = spec.name if spec.path is None else _where(spec)
        self._lock = RLock()
        self._study: Study | None = None
        self._seen: object = None
        self._view: StudyView | None = None
        self._model: tuple[LatencyModel | None, str] | None = None
        self._networks: dict[int, NetworkView] = {}

    def study(self) -> Study:
        """Return the study, opened to be read.

        Raises:
            TadnnError: it has no results yet, or its database cannot be read.
        """
        from tadnn.search import read_study

        with self._lock:
            if self._study is None:
                self._study = read_study(self.spec)
            return self._study

    def view(self) -> StudyView:
        """Return the study as it is now; made anew only where something changed.

        Raises:
            TadnnError: it has no results yet, or its database cannot be read.
        """
        with self._lock:
            try:
                study = self.study()
                states = tuple((t.number, t.state) for t in study.get_trials(deepcopy=False))
                seen = hash((states, repr(study.user_attrs)))
                if self._view is None or seen != self._seen:
                    self._networks.clear()
                    self._view, self._seen = study_view(study), seen
                elif self._view.progress.running:  # its processes may have died since
                    progress = progress_view(study)
                    if progress != self._view.progress:
                        self._view = replace(self._view, progress=progress)
            except TadnnError:
                # What was read before may be of another file: the next request opens it anew.
                self._study = self._view = self._seen = None
                raise
            return self._view

    def network(self, trial: int) -> NetworkView:
        """Return one trial's network.

        Raises:
            TargetError: there is no evaluated trial of that number.
            TadnnError: the study cannot be read.
        """
        with self._lock:
            view = self.view()
            if trial not in self._networks:
                if self._model is None:
                    self._model = frozen_model(self.study())
                if len(self._networks) >= _NETWORKS:
                    self._networks.clear()
                self._networks[trial] = network_view(
                    view, self.study(), trial, *self._model, self.where
                )
            return self._networks[trial]


@dataclass(frozen=True)
class StudyRow:
    """A line of the list of studies: the view, or why there is none."""

    key: str
    view: StudyView | None
    error: str = ""


@dataclass
class Library:
    """Studies and latency models by name.

    Args:
        studies: names or YAML files; every study of the working directory and built in when
            empty, looked for anew each time.
    """

    studies: tuple[str, ...] = ()
    _shelves: dict[str, StudyShelf] = field(default_factory=dict)
    _models: dict[str, tuple[object, ModelView]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        from tadnn.search import load_spec

        for name in self.studies:  # a mistyped name is refused before anything is served
            self._add(load_spec(name))

    def rows(self) -> list[StudyRow]:
        """Return every study that has been searched, or cannot be read."""
        from tadnn.search import has_results

        rows = []
        for key, shelf in self.shelves().items():
            if not self.studies and not has_results(shelf.spec):
                continue
            try:
                rows.append(StudyRow(key, shelf.view()))
            except TadnnError as error:
                rows.append(StudyRow(key, None, str(error)))
        return rows

    def shelf(self, key: str) -> StudyShelf:
        """Return a study by its name.

        Raises:
            UnknownName: there is none; near matches are shown.
        """
        shelves = self.shelves()
        if key not in shelves:
            raise UnknownName("study", key, shelves)
        return shelves[key]

    def shelves(self) -> dict[str, StudyShelf]:
        """Return every study by the name that links use."""
        from tadnn.files import STUDIES
        from tadnn.search import load_spec

        if not self.studies:
            known = {shelf.spec.path for shelf in self._shelves.values()}
            for path in STUDIES.entries().values():
                if path in known:
                    continue
                try:
                    self._add(load_spec(path))
                except TadnnError:
                    continue  # a half-written YAML; `tadnn search` says what is wrong with it
        return dict(self._shelves)

    def compare(self, keys: Iterable[str]) -> CompareView:
        """Return several studies' fronts beside each other.

        Raises:
            UnknownName: there is no such study.
            TadnnError: one cannot be read, or they share no objective.
        """
        chosen = [self.shelf(key) for key in dict.fromkeys(keys)]
        if not chosen:
            raise RequestError(
                f"name studies to compare: compare?study=A&study=B, of {', '.join(self.shelves())}"
            )
        return compare_view([(shelf.key, shelf.view()) for shelf in chosen])

    def models(self) -> list[str]:
        """Return the names of every latency model."""
        from tadnn.files import LATENCY_MODELS

        return list(LATENCY_MODELS.entries())

    def model(self, name: str) -> ModelView:
        """Return a latency model by its name, without a device.

        Raises:
            UnknownName: there is none; near matches are shown.
            CorruptFile: it is damaged.
        """
        from tadnn.files import LATENCY_MODELS
        from tadnn.latency import load_latency_model

        folder = LATENCY_MODELS.find(name)
        stamp = (folder, (folder / "card.yaml").stat().st_mtime_ns)
        with self._lock:
            known = self._models.get(name)
            if known is None or known[0] != stamp:
                table = folder / "kernels.csv.gz"
                model = load_latency_model(_with_device(name, folder))
                view = model_view(model, table if table.is_file() else None)
                known = self._models[name] = (stamp, view)
            return known[1]

    def _add(self, spec: StudySpec) -> None:
        key, again = spec.name, 2
        while key in self._shelves:
            key, again = f"{spec.name}-{again}", again + 1
        self._shelves[key] = StudyShelf(key, spec)


def _with_device(name: str, folder: Path) -> str:
    """Return the model's name with the first of its devices, where it serves several."""
    from tadnn.latency import read_card

    devices: tuple[Any, ...] = read_card(folder).devices
    return name if len(devices) == 1 else f"{name}@{devices[0].slug}"


def _where(spec: StudySpec) -> str:
    """Return how a study is named on the command line of this working directory."""
    from tadnn.files import STUDIES

    assert spec.path is not None
    if STUDIES.entries().get(spec.path.stem, Path()).resolve() == spec.path.resolve():
        return spec.path.stem
    here = Path.cwd()
    path = spec.path.resolve()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
