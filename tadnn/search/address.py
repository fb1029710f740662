"""Where a study is stored: opening Optuna's storages, and saying in our terms what went wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import optuna

from tadnn.errors import (
    CorruptFile,
    MissingPackage,
    RequestError,
    TadnnError,
    Unwritable,
    WorkFailed,
)
from tadnn.files import ensure_writable
from tadnn.search.spec import StudySpec, study_storage

_SQLITE = "sqlite:///"
_BUSY_TIMEOUT_S = 60.0


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
            RequestError: the database cannot be reached, holds something else, or was made by
                another version of Optuna.
        """
        # Optuna reports every study it opens on stderr; the command line says it better.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Optuna fills {SCHEMA_VERSION} into URLs; folders with braces must survive that.
        url = self.url.replace("{", "{{").replace("}", "}}")
        with storage_errors(self.url, opening=True):
            creator: dict[str, Callable[[], sqlite3.Connection]] = {}
            if self.path is not None:
                ensure_writable(self.path.parent)
                if not checked:
                    check_sqlite(self.path)
                path = str(self.path.resolve())
                creator = {"creator": lambda: _connect(path)}
            try:
                return optuna.storages.RDBStorage(url, engine_kwargs=creator)
            except RuntimeError as error:  # what Optuna raises for tables that it doesn't know
                raise RequestError(
                    f"the storage {self.url} has tables of another version of Optuna: {error}"
                ) from error


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
