"""The profile database: every measurement with the environment it was made in."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError

from tadnn.errors import CorruptFile, KernelError, Unwritable, WorkFailed
from tadnn.files import stable_hash
from tadnn.kernels import Kernel
from tadnn.profiling.measurement import Measurement
from tadnn.runtimes import Setting

SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x7AD22  # in the file's header: a profile database of tadnn
_PATIENCE_MS: Final = 30_000

_METADATA = sa.MetaData()
_ENVIRONMENTS = sa.Table(
    "environments",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hash", sa.String, nullable=False, unique=True),
    sa.Column("record", sa.String, nullable=False),
)


def _measured(*subject: sa.Column[Any]) -> list[sa.Column[Any]]:
    return [
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("setting", sa.String, nullable=False),
        *subject,
        sa.Column("latency_us", sa.Float, nullable=False),
        sa.Column("spread_us", sa.Float, nullable=False),
        sa.Column("repeats", sa.Integer, nullable=False),
        sa.Column("environment", sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("measured_at", sa.Float, nullable=False),  # seconds since 1970
    ]


_KERNELS = sa.Table(
    "kernel_measurements",
    _METADATA,
    *_measured(sa.Column("kernel", sa.String, nullable=False)),
    sa.Index("kernel_measurements_of", "device", "setting"),
)
_NETS = sa.Table(
    "net_measurements",
    _METADATA,
    *_measured(
        sa.Column("net_key", sa.String, nullable=False),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("net", sa.String, nullable=False),
    ),
    sa.Index("net_measurements_of", "device", "setting"),
)

NetRow = tuple[str, int, dict[str, Any], Measurement]
"""Net key, batch, the net's JSON, its measurement."""


class ProfileDatabase:
    """Measurements in one SQLite file, created when absent.

    Nothing is ever overwritten: measured again, the latest row counts and the
    older ones stay. Every ``add`` is one transaction that survives the process
    being killed (not the machine losing power). Several processes may use one
    file at a time; one object belongs to one process, so open it after a fork.

    Raises:
        CorruptFile: the file is damaged, something else, or of another version of tadnn.
        Unwritable: the folder cannot be written or the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unwritable(f"cannot write in {path.parent}: {error.strerror}") from error
        self._engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
        sa.event.listen(self._engine, "connect", _on_connect)
        sa.event.listen(self._engine, "begin", _on_begin)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the object is of no use after."""
        self._engine.dispose()

    def add_kernels(
        self,
        device: str,
        setting: Setting,
        environment: Mapping[str, str],
        measured: Mapping[Kernel, Measurement],
    ) -> None:
        """Store kernels measured on a device (its slug), all or none.

        Raises:
            Unwritable: the folder cannot be written or the disk is full.
        """
        rows = [{"kernel": kernel.key, **_values(m)} for kernel, m in measured.items()]
        self._add(_KERNELS, device, setting, environment, rows)

    def kernels(self, device: str, setting: Setting) -> dict[Kernel, Measurement]:
        """Return the latest measurement of every kernel of a device in a setting.

        Raises:
            CorruptFile: the file is damaged.
        """
        found: dict[Kernel, Measurement] = {}
        for row in self._rows(_KERNELS, device, setting):
            try:
                kernel = Kernel.parse(row.kernel)
            except KernelError as error:
                raise CorruptFile(f"{self.path} holds a damaged kernel: {error}") from error
            found[kernel] = Measurement(row.latency_us, row.spread_us, row.repeats)
        return found

    def add_net(
        self,
        device: str,
        setting: Setting,
        environment: Mapping[str, str],
        net_key: str,
        batch: int,
        net_json: Mapping[str, Any],
        measurement: Measurement,
    ) -> None:
        """Store a whole network measured on a device (its slug).

        Raises:
            Unwritable: the folder cannot be written or the disk is full.
        """
        net = json.dumps(net_json, separators=(",", ":"), allow_nan=False)
        row = {"net_key": net_key, "batch": batch, "net": net, **_values(measurement)}
        self._add(_NETS, device, setting, environment, [row])

    def nets(self, device: str, setting: Setting) -> list[NetRow]:
        """Return the latest measurement of every (net, batch) of a device in a setting.

        Raises:
            CorruptFile: the file is damaged.
        """
        found: dict[tuple[str, int], NetRow] = {}
        for row in self._rows(_NETS, device, setting):
            try:
                net = json.loads(row.net)
            except json.JSONDecodeError as error:
                raise CorruptFile(f"{self.path} holds a damaged network: {error}") from error
            measurement = Measurement(row.latency_us, row.spread_us, row.repeats)
            found[row.net_key, row.batch] = (row.net_key, row.batch, net, measurement)
        return list(found.values())

    def environments(self) -> list[dict[str, str]]:
        """Return every environment that something was measured in, oldest first."""
        with self._transaction() as connection:
            records = connection.execute(
                sa.select(_ENVIRONMENTS.c.record).order_by(_ENVIRONMENTS.c.id)
            ).scalars()
            return [json.loads(record) for record in records]

    def _open(self) -> None:
        with self._transaction(write=True) as connection:
            header = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
            version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
            tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar_one()
            if tables == 0 and header == 0:
                _METADATA.create_all(connection)
                connection.exec_driver_sql(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
                return
            if header != _APPLICATION_ID:
                raise CorruptFile(f"{self.path} is a database, but no profile database of tadnn")
            if version != SCHEMA_VERSION:
                raise CorruptFile(
                    f"{self.path} has version {version}, this tadnn reads version "
                    f"{SCHEMA_VERSION}: move it away, and it is measured anew"
                )
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if verdict != "ok":
                raise CorruptFile(f"{self.path} is damaged: {verdict}")

    def _add(
        self,
        table: sa.Table,
        device: str,
        setting: Setting,
        environment: Mapping[str, str],
        rows: list[dict[str, Any]],
    ) -> None:
        if not rows:
            return
        record = {"hash": stable_hash(dict(environment)), "record": _text(dict(environment))}
        of_hash = _ENVIRONMENTS.c.hash == record["hash"]
        with self._transaction(write=True) as connection:
            connection.execute(sa.insert(_ENVIRONMENTS).prefix_with("OR IGNORE"), record)
            found = connection.execute(sa.select(_ENVIRONMENTS.c.id).where(of_hash)).scalar_one()
            common = {
                "device": device,
                "setting": _text(setting.to_dict()),
                "environment": found,
                "measured_at": time.time(),
            }
            connection.execute(sa.insert(table), [{**common, **row} for row in rows])

    def _rows(self, table: sa.Table, device: str, setting: Setting) -> list[Any]:
        query = (
            sa.select(table)
            .where(table.c.device == device, table.c.setting == _text(setting.to_dict()))
            .order_by(table.c.id)
        )
        with self._transaction() as connection:
            return list(connection.execute(query))

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sa.Connection]:
        """Everything or nothing; SQLite's errors come out as ours."""
        try:
            with self._engine.connect().execution_options(write=write) as connection:
                with connection.begin():
                    yield connection
        except DatabaseError as error:
            cause = error.orig
            raise _explain(self.path, cause) from error


def _on_connect(connection: Any, _: object) -> None:
    # Transactions are opened by `_on_begin`: the driver would open them too late.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _on_begin(connection: sa.Connection) -> None:
    # A transaction that will write says so at once: upgraded later, it could fail as busy.
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _explain(path: Path, cause: BaseException | None) -> Exception:
    name = getattr(cause, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return CorruptFile(f"{path} is damaged, or no database: {cause}")
    if name.startswith(("SQLITE_READONLY", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
        return Unwritable(f"cannot write {path}: {cause}")
    if name.startswith("SQLITE_BUSY"):
        return WorkFailed(f"another process has kept {path} locked for {_PATIENCE_MS // 1000} s")
    if isinstance(cause, sqlite3.OperationalError) and "no such" in str(cause):
        return CorruptFile(f"{path} lacks a part of its schema: {cause}")
    return WorkFailed(f"{path}: {cause}")


def _values(measurement: Measurement) -> dict[str, Any]:
    return {
        "latency_us": measurement.latency_us,
        "spread_us": measurement.spread_us,
        "repeats": measurement.repeats,
    }


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
