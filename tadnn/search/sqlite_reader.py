"""An Optuna storage that only reads: nothing is locked, created or changed.

The file is opened with ``mode=ro`` and read table by table. Optuna's own storage would create
what is missing, and takes half a minute for 20,000 trials where this takes a second.
"""

from __future__ import annotations

import copy
import json
import math
import sqlite3
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

import optuna
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tadnn.errors import CorruptFile, RequestError, WorkFailed
from tadnn.search.address import storage_errors

SCHEMA_VERSION: Final = 12
"""The version of Optuna's tables that is read here."""

_PATIENCE_S: Final = 2.0
_UNWRITTEN: Final = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}

Rows = list[tuple[Any, ...]]


class SqliteReader(optuna.storages.BaseStorage):
    """An Optuna storage that only reads, from one SQLite file.

    Not thread-safe: it remembers the trials that are finished.

    Raises:
        CorruptFile: the file is damaged.
        RequestError: it is no Optuna storage, or one of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._finished: dict[int, dict[int, FrozenTrial]] = {}
        with self._reading() as query:
            verdict = query("PRAGMA quick_check(1)")[0][0]
            if verdict != "ok":
                raise CorruptFile(f"the study database {path} is damaged: {verdict}")
            tables = {name for (name,) in query("SELECT name FROM sqlite_master")}
            if not {"studies", "version_info"} <= tables:
                raise RequestError(f"{path} is a SQLite database, but no Optuna storage")
            version = query("SELECT schema_version FROM version_info")
        if version != [(SCHEMA_VERSION,)]:
            found = version[0][0] if version else "none"
            raise RequestError(
                f"{path} has Optuna's tables in version {found}; this tadnn reads version "
                f"{SCHEMA_VERSION}: `optuna storage upgrade` brings older ones up to date"
            )

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return a study's id."""
        with self._reading() as query:
            found = query("SELECT study_id FROM studies WHERE study_name = ?", study_name)
        if not found:
            raise KeyError(study_name)
        return int(found[0][0])

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return a study's name."""
        with self._reading() as query:
            return str(query("SELECT study_name FROM studies WHERE study_id = ?", study_id)[0][0])

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return the directions in the order of the objectives."""
        with self._reading() as query:
            return _directions(query, study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return a study's user attributes."""
        return self._study_attributes("study_user_attributes", study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return a study's system attributes."""
        return self._study_attributes("study_system_attributes", study_id)

    def get_all_studies(self) -> list[optuna.study._frozen.FrozenStudy]:
        """Return every study of the file."""
        with self._reading() as query:
            return [
                optuna.study._frozen.FrozenStudy(
                    name,
                    None,
                    _attributes(query, "study_user_attributes", "study_id", [number])[number],
                    _attributes(query, "study_system_attributes", "study_id", [number])[number],
                    number,
                    directions=_directions(query, number),
                )
                for number, name in query("SELECT study_id, study_name FROM studies")
            ]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return one trial."""
        with self._reading() as query:
            found = _trials(query, [trial_id])
        if not found:
            raise KeyError(trial_id)
        return found[0]

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return a study's trials by number; those that were finished before are not read again."""
        known = self._finished.setdefault(study_id, {})
        with self._reading() as query:
            every = [i for (i,) in query("SELECT trial_id FROM trials WHERE study_id=?", study_id)]
            fresh = {t._trial_id: t for t in _trials(query, [i for i in every if i not in known])}
        known |= {i: trial for i, trial in fresh.items() if trial.state.is_finished()}
        trials = [fresh.get(i) or known[i] for i in every]
        trials.sort(key=lambda trial: trial.number)
        chosen = [t for t in trials if states is None or t.state in states]
        return copy.deepcopy(chosen) if deepcopy else chosen

    def _study_attributes(self, table: str, study_id: int) -> dict[str, Any]:
        with self._reading() as query:
            return _attributes(query, table, "study_id", [study_id])[study_id]

    @contextmanager
    def _reading(self) -> Iterator[Callable[..., Rows]]:
        """Yield a function that runs a query; all of them see the file at one moment."""
        try:
            with storage_errors(str(self.path)):
                connection = _connect(self.path)
                try:
                    connection.execute("BEGIN")
                    yield lambda sql, *values: connection.execute(sql, values).fetchall()
                finally:
                    connection.close()
        except WorkFailed as error:
            if "no such column" in str(error) or "no such table" in str(error):
                raise RequestError(
                    f"{self.path} has tables of another version of Optuna: `optuna storage "
                    "upgrade` brings older ones up to date"
                ) from error
            if "locked" in str(error):
                raise WorkFailed(
                    f"another process keeps {self.path} locked; try again when it is done"
                ) from error
            raise

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise WorkFailed(f"{self.path} is open for reading only")

    create_new_study = delete_study = set_study_user_attr = set_study_system_attr = _refuse
    create_new_trial = set_trial_param = set_trial_state_values = _refuse
    set_trial_intermediate_value = set_trial_user_attr = set_trial_system_attr = _refuse


def _connect(path: Path) -> sqlite3.Connection:
    connection: sqlite3.Connection
    uri = path.resolve().as_uri() + "?mode=ro"
    options: dict[str, Any] = {"uri": True, "timeout": _PATIENCE_S, "isolation_level": None}
    connection = sqlite3.connect(uri, **options)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        connection.close()
        # In a folder that takes no files, the log's index cannot be made. Without a log nobody
        # has written since, and the file alone is everything.
        if error.sqlite_errorname != "SQLITE_CANTOPEN" or Path(f"{path}-wal").exists():
            raise
        connection = sqlite3.connect(uri + "&immutable=1", **options)
    return connection


def _directions(query: Callable[..., Rows], study_id: int) -> list[StudyDirection]:
    rows = query(
        "SELECT direction FROM study_directions WHERE study_id = ? ORDER BY objective", study_id
    )
    return [StudyDirection[name] for (name,) in rows]


def _trials(query: Callable[..., Rows], ids: Sequence[int]) -> list[FrozenTrial]:
    if not ids:
        return []
    rows = _of(query, "trials", "number, state, datetime_start, datetime_complete", ids)
    user = _attributes(query, "trial_user_attributes", "trial_id", ids)
    system = _attributes(query, "trial_system_attributes", "trial_id", ids)
    values: dict[int, list[float]] = {}
    for i, value, kind in _of(query, "trial_values", "value, value_type", ids, "objective"):
        values.setdefault(i, []).append(_number(value, kind))
    params: dict[int, dict[str, Any]] = {i: {} for i in ids}
    distributions: dict[int, dict[str, BaseDistribution]] = {i: {} for i in ids}
    columns = "param_name, param_value, distribution_json"
    for i, name, value, text in _of(query, "trial_params", columns, ids, "param_id"):
        distribution = _distribution(text)
        params[i][name] = distribution.to_external_repr(value)
        distributions[i][name] = distribution
    steps: dict[int, dict[int, float]] = {i: {} for i in ids}
    columns = "step, intermediate_value, intermediate_value_type"
    for i, step, value, kind in _of(query, "trial_intermediate_values", columns, ids):
        steps[i][step] = _number(value, kind)
    return [
        FrozenTrial(
            number=number,
            state=TrialState[state],
            value=None,
            values=values.get(i),
            datetime_start=_time(start),
            datetime_complete=_time(end),
            params=params[i],
            distributions=distributions[i],
            user_attrs=user[i],
            system_attrs=system[i],
            intermediate_values=steps[i],
            trial_id=i,
        )
        for i, number, state, start, end in rows
    ]


def _of(
    query: Callable[..., Rows], table: str, columns: str, ids: Sequence[int], order: str = ""
) -> Rows:
    """Return a table's rows that belong to some trials, the trial's id first."""
    order = f" ORDER BY {order}" if order else ""
    # json_each takes any number of ids, where a list of placeholders would be limited.
    return query(
        f"SELECT trial_id, {columns} FROM {table} "
        f"WHERE trial_id IN (SELECT value FROM json_each(?)){order}",
        json.dumps(list(ids)),
    )


def _attributes(
    query: Callable[..., Rows], table: str, owner: str, ids: Sequence[int]
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {i: {} for i in ids}
    rows = query(
        f"SELECT {owner}, key, value_json FROM {table} "
        f"WHERE {owner} IN (SELECT value FROM json_each(?))",
        json.dumps(list(ids)),
    )
    for i, key, text in rows:
        found[i][key] = json.loads(text)
    return found


@lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)


def _number(value: float | None, kind: str) -> float:
    """Return a stored number: SQL has no infinities, so their kind stands beside an empty value."""
    return float(_UNWRITTEN[kind] if value is None else value)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
