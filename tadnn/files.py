"""Atomic writes, named folders, environment records and hashes.

A *named folder* is one of the user-facing folders (``search_spaces``,
``latency_models``, ``studies``): the built-in one that the package carries, and
the one of the same name in the working directory, which adds to it and
overrides it by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from tadnn.errors import CorruptFile, RequestError, UnknownName, Unwritable

_PACKAGE = Path(__file__).resolve().parent


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it over ``path`` on success.

    For writers that insist on opening a file by themselves. What stood at
    ``path`` stays untouched when the body raises.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix is kept because writers such as matplotlib choose the format by it.
        handle, temporary = tempfile.mkstemp(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
        yield Path(temporary)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


@contextmanager
def atomic_open(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` for writing so that it changes whole or not at all.

    ``mode`` is ``"w"`` (UTF-8) or ``"wb"``.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    with atomic_path(path) as temporary:
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
        with open(temporary, mode, **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic_open(path) as file:
        file.write(text)


def write_json(path: Path, value: object) -> None:
    """Write ``value`` to ``path`` as strict JSON (no NaN), atomically."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON from ``path``.

    Raises:
        RequestError: there is no such file, or it cannot be read.
        CorruptFile: it is not JSON; the message gives the line.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"{path} is not valid JSON: {error}") from error


def ensure_writable(folder: Path) -> None:
    """Create ``folder`` and prove that a file can be written in it.

    Raises:
        Unwritable: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
    except OSError as error:
        raise Unwritable(f"cannot write in {folder}: {error.strerror or error}") from error


class NamedFolder:
    """Entries found by name in the working directory first, then among the built-in ones.

    Args:
        folder: the folder's name, such as ``"search_spaces"``.
        what: what an entry is called in messages, such as ``"space"``.
        suffix: the entries' file suffix; ``""`` where each entry is a folder.
        marker: a file that a folder entry must hold to count, such as ``"card.yaml"``.
        own: names with this prefix belong to the working directory that made them; beside
            the package they don't count (and no wheel carries them).
    """

    def __init__(
        self, folder: str, what: str, suffix: str, marker: str = "", own: str = ""
    ) -> None:
        self.folder, self.what, self.suffix, self.marker = folder, what, suffix, marker
        self.own = own

    @property
    def local(self) -> Path:
        """The folder in the working directory (it need not exist)."""
        return Path.cwd() / self.folder

    def roots(self) -> tuple[Path, ...]:
        """The folders searched, in order of precedence."""
        # An installed wheel carries them inside the package; a checkout beside it.
        carried = _PACKAGE / "_builtin" / self.folder
        builtin = carried if carried.is_dir() else _PACKAGE.parent / self.folder
        return (self.local,) if self.local == builtin else (self.local, builtin)

    def entries(self) -> dict[str, Path]:
        """Every entry by name; the working directory's win."""
        found: dict[str, Path] = {}
        for root in reversed(self.roots()):
            if root.is_dir():
                for path in sorted(root.iterdir()):
                    elsewhere = root != self.local and self.own and path.name.startswith(self.own)
                    if self._counts(path) and not elsewhere:
                        found[path.name.removesuffix(self.suffix)] = path
        return dict(sorted(found.items()))

    def find(self, name: str) -> Path:
        """Return the path of the entry ``name``.

        Raises:
            UnknownName: there is none; near matches are shown.
        """
        entries = self.entries()
        if name not in entries:
            raise UnknownName(self.what, name, entries)
        return entries[name]

    def _counts(self, path: Path) -> bool:
        if path.name.startswith((".", "_")) or not path.name.endswith(self.suffix):
            return False
        if self.suffix:
            return path.is_file()
        return path.is_dir() and (not self.marker or (path / self.marker).is_file())


SEARCH_SPACES = NamedFolder("search_spaces", "space", ".py")
AUTO_PREFIX = "auto-"
"""How the latency models that studies learn by themselves are called."""
LATENCY_MODELS = NamedFolder(
    "latency_models", "latency model", "", marker="card.yaml", own=AUTO_PREFIX
)
STUDIES = NamedFolder("studies", "study", ".yaml")


def stable_hash(value: object) -> str:
    """Return 16 hex digits that depend only on ``value`` (JSON-able), not on key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """Describe this machine and the versions that decide a measurement."""
    record = {
        "tadnn": _version("tadnn"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
    }
    for package in ("torch", "numpy", "onnxruntime", "optuna"):
        record[package] = _version(package)
    return record


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside ``path``; it takes the place of ``path`` on success.

    What stood at ``path`` stays untouched when the body raises, and is gone
    afterwards when it doesn't.

    Raises:
        Unwritable: the folder cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from error
    old = made.with_name(made.name + ".old")
    try:
        made.chmod(0o777 & ~_umask())
        yield made
        if path.exists():
            path.rename(old)
        made.rename(path)
    except OSError as error:
        if old.exists() and not path.exists():
            old.rename(path)
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        for leftover in (made, old):
            if leftover.exists():
                shutil.rmtree(leftover)
