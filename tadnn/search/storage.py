"""Opening a study's Optuna storage, and what a study may never change once it began."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock

from tadnn.errors import (
    CorruptFile,
    MissingPackage,
    RequestError,
    StudyMismatch,
    TadnnError,
    Unwritable,
    WorkFailed,
)
from tadnn.files import ensure_writable, environment
from tadnn.search.spec import StudySpec, require_same, study_folder, study_storage

SPEC_ATTR = "tadnn:spec"
SPACE_ATTR = "tadnn:space"
MODEL_ATTR = "tadnn:latency_model"
ENVIRONMENT_ATTR = "tadnn:environment"
INPUT_ATTR = "tadnn:input_shape"

_SQLITE = "sqlite:///"
_BUSY_TIMEOUT_S = 60.0
_DIRECTIONS = {"accuracy": optuna.study.StudyDirection.MAXIMIZE}


@dataclass(frozen=True)
class StorageAddress:
    """Where a study is stored: a SQLite file of this machine, or any other database."""

    url: str
    path: Path | None

    @classmethod
    def of(cls, spec: StudySpec) -> StorageAddress:
        """Return where ``spec`` is stored.

        Raises:
            RequestError: the URL is of no kind that Optuna opens.
        """
        url = study_storage(spec)
        if "://" not in url:
            raise RequestError(
                "a storage is a database URL that Optuna opens, such as sqlite:///study.db or "
                f"postgresql://user@host/name; received {url!r}"
            )
        if not url.startswith("sqlite:"):
            return cls(url, None)
        file = url.removeprefix(_SQLITE).partition("?")[0]
        if not url.startswith(_SQLITE) or file in ("", ":memory:") or file.startswith("file:"):
            raise RequestError(
                "a study is stored in a file, so that it can be resumed: sqlite:///PATH; "
                f"received {url!r}"
            )
        return cls(url, Path(file))

    def open(self, checked: bool = False) -> optuna.storages.RDBStorage:
        """Open the storage, creating what is missing.

        Args:
            checked: whether somebody has just read the SQLite file through.

        Raises:
            CorruptFile: the SQLite file is damaged; it is left as it is.
            Unwritable: its folder or the file takes no writes.
            MissingPackage: the database's driver is not installed.
            RequestError: the database cannot be reached, or holds something else.
        """
        # Optuna reports every study it opens on stderr; the command line says it better.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Optuna fills {SCHEMA_VERSION} into URLs; folders with braces must survive that.
        url = self.url.replace("{", "{{").replace("}", "}}")
        with storage_errors(self.url, opening=True):
            if self.path is None:
                return optuna.storages.RDBStorage(url)
            ensure_writable(self.path.parent)
            if not checked:
                check_sqlite(self.path)
            path = str(self.path.resolve())
            return optuna.storages.RDBStorage(
                url, engine_kwargs={"creator": lambda: _connect(path)}
            )


def check_sqlite(path: Path) -> None:
    """Read a SQLite file through, without changing it; a missing or empty one is fine.

    Raises:
        CorruptFile: it is damaged, or no SQLite file.
        RequestError: it holds something that is no Optuna storage.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    with storage_errors(str(path), opening=True):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)
        try:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        finally:
            connection.close()
    if verdict != "ok":
        raise CorruptFile(f"the study database {path} is damaged: {verdict}")
    if tables and "studies" not in tables:
        raise RequestError(f"{path} is a SQLite database, but no Optuna storage")


@contextmanager
def storage_errors(where: str, opening: bool = False) -> Iterator[None]:
    """Say in our terms what a storage did not do.

    Raises:
        CorruptFile: a damaged SQLite file.
        Unwritable: a folder, file or disk that takes no writes.
        RequestError: a storage that could not be opened for another reason.
        WorkFailed: a storage that failed later for another reason.
    """
    # Optuna imports it when it opens a storage; reading a study file should not wait for it.
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError) as error:
        raise _translated(where, error, opening) from error
    except ImportError as error:
        raise MissingPackage(
            f"the storage {where} needs a database driver that is not installed: {error}"
        ) from error


def study_lock(folder: Path) -> FileLock:
    """Return the lock that serialises who takes which trial; released when its holder dies."""
    return FileLock(folder / ".lock", poll_interval=0.005)


def directions(objectives: Sequence[str]) -> list[optuna.study.StudyDirection]:
    """Return Optuna's directions: accuracy is maximised, everything else minimised."""
    minimise = optuna.study.StudyDirection.MINIMIZE
    return [_DIRECTIONS.get(objective, minimise) for objective in objectives]


def create_study(
    spec: StudySpec,
    storage: optuna.storages.BaseStorage,
    spaces: Mapping[str, str],
    latency_model: Mapping[str, Any] | None,
    input_shape: Sequence[int],
) -> optuna.Study:
    """Create the study or resume it, and freeze what it may never change.

    Args:
        spec: the study.
        storage: an open storage.
        spaces: hash of every space by name.
        latency_model: name, hash, device and setting; None without one.
        input_shape: (C, H, W) of the networks.

    Raises:
        StudyMismatch: the study began with another spec, space or latency model.
    """
    study = optuna.create_study(
        storage=storage,
        study_name=spec.name,
        sampler=_ANY,
        directions=directions(spec.objectives),
        load_if_exists=True,
    )
    frozen = study.user_attrs
    if SPEC_ATTR not in frozen:
        if study.get_trials(deepcopy=False):
            raise StudyMismatch(
                f"the storage {study_storage(spec)} has a study {spec.name!r} that tadnn did not "
                "make; give this one another name or storage"
            )
        _freeze(study, spec, spaces, latency_model, input_shape)
        return study
    _require_frozen(study, spec, frozen)
    require_same("space", frozen[SPACE_ATTR], dict(spaces))
    require_same("latency model", frozen.get(MODEL_ATTR) or {}, dict(latency_model or {}))
    return study


def find_study(spec: StudySpec) -> optuna.Study:
    """Open the study to read it.

    Raises:
        RequestError: it was not searched yet.
        CorruptFile: its database is damaged.
        StudyMismatch: it began with another spec.
    """
    address = StorageAddress.of(spec)
    unsearched = f"the study {spec.name!r} has no results yet: tadnn search comes first"
    if address.path is not None and not address.path.exists():
        raise RequestError(unsearched)
    try:
        with storage_errors(address.url):
            study = optuna.load_study(study_name=spec.name, storage=address.open(), sampler=_ANY)
    except KeyError:
        raise RequestError(unsearched) from None
    if SPEC_ATTR not in study.user_attrs:
        raise RequestError(unsearched)
    _require_frozen(study, spec, study.user_attrs)
    return study


def is_begun(spec: StudySpec) -> bool:
    """Tell whether the study was begun by an earlier search.

    Raises:
        CorruptFile: its database is damaged.
    """
    address = StorageAddress.of(spec)
    if address.path is not None and not address.path.exists():
        return False
    with storage_errors(address.url):
        summaries = optuna.get_all_study_summaries(address.open(), include_best_trial=False)
    return any(s.study_name == spec.name and SPEC_ATTR in s.user_attrs for s in summaries)


def frozen_model(spec: StudySpec) -> dict[str, Any] | None:
    """Return the latency model that the study froze; None before it began, or without one."""
    address = StorageAddress.of(spec)
    if address.path is not None and not address.path.exists():
        return None
    with storage_errors(address.url):
        for summary in optuna.get_all_study_summaries(address.open(), include_best_trial=False):
            if summary.study_name == spec.name:
                model: dict[str, Any] | None = summary.user_attrs.get(MODEL_ATTR)
                return model
    return None


def results_folder(spec: StudySpec) -> Path:
    """Return the study's folder, created and writable.

    Raises:
        Unwritable: it cannot be written.
    """
    folder = study_folder(spec)
    ensure_writable(folder)
    return folder


def _freeze(
    study: optuna.Study,
    spec: StudySpec,
    spaces: Mapping[str, str],
    latency_model: Mapping[str, Any] | None,
    input_shape: Sequence[int],
) -> None:
    study.set_user_attr(SPACE_ATTR, dict(spaces))
    study.set_user_attr(MODEL_ATTR, None if latency_model is None else dict(latency_model))
    study.set_user_attr(INPUT_ATTR, list(input_shape))
    study.set_user_attr(ENVIRONMENT_ATTR, environment())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(spec.objectives))
    # Last: it marks the study as begun.
    study.set_user_attr(SPEC_ATTR, spec.canonical())


def _require_frozen(study: optuna.Study, spec: StudySpec, attributes: Mapping[str, Any]) -> None:
    old = StudySpec.model_validate(attributes[SPEC_ATTR])
    require_same("spec", old.frozen(), spec.frozen())
    # Optuna ignores other directions without a word.
    if study.directions != directions(spec.objectives):
        raise StudyMismatch(
            f"the storage's study {spec.name!r} has the directions "
            f"{', '.join(d.name.lower() for d in study.directions)}, which the objectives "
            f"{', '.join(spec.objectives)} do not have"
        )


def _connect(path: str) -> sqlite3.Connection:
    # Write transactions take their lock at once: one that read first and then finds the file
    # changed would fail without waiting.
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level="IMMEDIATE")
    # Readers and the writer do not wait for each other. NORMAL loses nothing to a killed
    # process; a power cut may lose the last trials, never the file.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _translated(where: str, error: BaseException, opening: bool) -> TadnnError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = getattr(cause, "orig", None) or cause.__cause__
    reason = cause if cause is not None else (error.__cause__ or error)
    first_line = str(reason).strip().splitlines()[0] if str(reason).strip() else repr(reason)
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CorruptFile(f"the study database {where} is damaged: {first_line}")
        unwritable = (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_PERM,
        )
        if code in unwritable:
            return Unwritable(f"cannot write the study database {where}: {first_line}")
    kind = RequestError if opening else WorkFailed
    return kind(f"the storage {where} {'cannot be opened' if opening else 'failed'}: {first_line}")


# Reading a study samples nothing; Optuna's default sampler would warn about what it guesses.
_ANY = optuna.samplers.RandomSampler()
