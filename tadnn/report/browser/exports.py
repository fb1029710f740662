"""Exports as zip files, built on demand: one at a time, each once."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tadnn.search import StudySpec

BuildExport = Callable[["StudySpec", int, Path], None]
"""Writes the export of a study's trial as a folder."""


class Exports:
    """Builds and keeps zip files until it is closed.

    Args:
        build: what writes an export's folder.
    """

    def __init__(self, build: BuildExport) -> None:
        self._build, self._lock = build, Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="tadnn-export-")
        self._made: dict[tuple[str, int, object], Path] = {}

    def zipped(self, key: str, spec: StudySpec, trial: int, facts: object) -> Path:
        """Return the zip of one trial's export; others wait while it is built.

        Args:
            key: how the study is named in links.
            spec: the study.
            trial: the trial's number.
            facts: what the export depends on beside the trial; another value builds it anew.

        Raises:
            TadnnError: it cannot be built.
        """
        asked = (key, trial, facts)
        with self._lock:
            if asked not in self._made:
                place = Path(tempfile.mkdtemp(dir=self._folder.name))
                folder = place / f"{spec.name}-{trial}"
                self._build(spec, trial, folder)
                packed = place / f"{folder.name}.zip"
                with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                    for path in sorted(folder.iterdir()):
                        archive.write(path, f"{folder.name}/{path.name}")
                self._made[asked] = packed
            return self._made[asked]

    def close(self) -> None:
        """Delete what was built."""
        self._folder.cleanup()
