"""``start_from``: architectures that a study evaluates before anything else."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tadnn.errors import ArchitectureError, CorruptFile, RequestError, SpecError
from tadnn.files import read_json
from tadnn.search.spec import StudySpec

if TYPE_CHECKING:
    from optuna import Study

    from tadnn.spaces import Space

_SEEDED_ATTR: Final = "tadnn:start_from"


def read_seeds(path: Path, space: Space) -> list[dict[str, Any]]:
    """Read a list of architectures: CSV with a column per choice, or JSON.

    Columns that are no choice are ignored, so that what ``tadnn screen`` and ``tadnn search``
    write can be read. JSON is a list of architectures, of records with an ``arch``, or a record
    whose ``members`` are such a list.

    Returns:
        Distinct architectures, in the file's order.

    Raises:
        SpecError: the file cannot be read or holds no architecture of the space.
    """
    if path.suffix == ".csv":
        records: list[tuple[str, Mapping[str, Any]]] = _rows(path, space)
    elif path.suffix == ".json":
        records = _entries(path)
    else:
        raise SpecError(f"start_from is a .csv or a .json file; received {str(path)!r}")
    found: dict[str, dict[str, Any]] = {}
    for where, record in records:
        try:
            arch = space.canonical(record)
        except ArchitectureError as error:
            raise SpecError(f"start_from: {where}: {error}") from None
        found.setdefault(space.key(arch), arch)
    if not found:
        raise SpecError(f"start_from lists at least one architecture; {path} has none")
    return list(found.values())


def study_seeds(spec: StudySpec, space: Space) -> list[dict[str, Any]]:
    """Return the architectures that a study starts from; a relative path is the study file's."""
    if spec.start_from is None:
        return []
    base = spec.path.parent if spec.path is not None else Path()
    return read_seeds(base / spec.start_from, space)


def enqueue(study: Study, seeds: Sequence[Mapping[str, Any]]) -> None:
    """Make the study's first trials out of ``seeds``; once, however often it is resumed."""
    if not seeds or _SEEDED_ATTR in study.user_attrs:
        return
    waiting = [t.system_attrs.get("fixed_params") for t in study.get_trials(deepcopy=False)]
    for arch in seeds:
        # Who died in the middle of this has done a part of it.
        if dict(arch) not in waiting:
            study.enqueue_trial(dict(arch))
    study.set_user_attr(_SEEDED_ATTR, len(seeds))


def _rows(path: Path, space: Space) -> list[tuple[str, Mapping[str, Any]]]:
    texts = {
        name: {str(value): value for value in choice.values}
        for name, choice in space.choices.items()
    }
    records: list[tuple[str, Mapping[str, Any]]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                # A value that no choice has stays a text: the space says what is wrong with it.
                arch = {
                    name: texts[name].get(text, text)
                    for name, text in row.items()
                    if name in texts and text
                }
                records.append((f"{path}, line {reader.line_num}", arch))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"start_from: cannot read {path}: {error}") from None
    return records


def _entries(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        data = read_json(path)
    except (RequestError, CorruptFile) as error:
        raise SpecError(f"start_from: {error}") from None
    entries = data.get("members") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SpecError(f"start_from: {path} is a list of architectures or has members")
    records = []
    for number, entry in enumerate(entries, 1):
        arch = entry["arch"] if isinstance(entry.get("arch"), dict) else entry
        records.append((f"{path}, entry {number}", arch))
    return records
