"""Reading a list of architectures, with or without their accuracies."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tadnn.errors import ArchitectureError, TableError, near_matches

if TYPE_CHECKING:
    from tadnn.spaces import Space

ACCURACY = "accuracy"
ARCH_STR = "arch_str"
MIN_ROWS = 5


@dataclass(frozen=True)
class ArchList:
    """Architectures of one space.

    Attributes:
        archs: in the order of the file.
        lines: of the file, of each.
        accuracies: of each; None where the list has none.
    """

    archs: tuple[Mapping[str, Any], ...]
    lines: tuple[int, ...]
    accuracies: tuple[float, ...] | None


def read_archs(path: Path, space: Space) -> ArchList:
    """Read a CSV with a column per choice, or ``arch_str``, and maybe ``accuracy``.

    A choice without effect is left empty or out. ``arch_str`` is what the space's file reads by
    its function ``arch_of``.

    Raises:
        TableError: a rule is broken; the message has file and line.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise TableError(f"no such file: {path}") from None
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: a list of architectures is CSV in UTF-8; {error}") from None
    if not rows:
        raise TableError(f"{path}: a list of architectures begins with its columns; it is empty")
    columns = [name.strip() for name in rows[0][1]]
    _check_columns(path, columns, space)
    archs, lines, accuracies = [], [], []
    for line, row in rows[1:]:
        where = f"{path}, line {line}"
        if len(row) != len(columns):
            raise TableError(
                f"{where}: every row has a value for each of the {len(columns)} columns; "
                f"this one has {len(row)}"
            )
        texts = {name: text.strip() for name, text in zip(columns, row, strict=True)}
        if ACCURACY in texts:
            accuracies.append(_accuracy(where, texts.pop(ACCURACY)))
        archs.append(_arch(where, texts, space))
        lines.append(line)
    if len(archs) < MIN_ROWS:
        raise TableError(
            f"{path}: an order takes at least {MIN_ROWS} architectures; this list has {len(archs)}"
        )
    found = tuple(accuracies) if ACCURACY in columns else None
    return ArchList(tuple(archs), tuple(lines), found)


def _check_columns(path: Path, columns: Sequence[str], space: Space) -> None:
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise TableError(f"{path}, line 1: columns are named once; repeated: {repeated[0]!r}")
    valid = [ACCURACY, *([ARCH_STR] if space.arch_of is not None else []), *space.choices]
    for name in columns:
        if name == ARCH_STR and space.arch_of is None:
            raise TableError(
                f"{path}, line 1: the space {space.name} reads no {ARCH_STR} (its file has no "
                f"arch_of). Valid: {', '.join(valid)}."
            )
        if name not in valid:
            near = near_matches(name, valid)
            hint = f"; did you mean {' or '.join(near)}?" if near else "."
            raise TableError(
                f"{path}, line 1: unknown column {name!r}{hint} Valid: {', '.join(valid)}."
            )
    if ARCH_STR in columns and any(name in space.choices for name in columns):
        raise TableError(
            f"{path}, line 1: an architecture is told by {ARCH_STR} or by a column per choice; "
            "received both"
        )
    if not any(name != ACCURACY for name in columns):
        raise TableError(f"{path}, line 1: no column tells architectures. Valid: {valid}.")


def _accuracy(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TableError(f"{where}: an accuracy is a finite number; got {text!r}")
    return value


def _arch(where: str, texts: Mapping[str, str], space: Space) -> Mapping[str, Any]:
    try:
        if ARCH_STR in texts:
            assert space.arch_of is not None  # checked with the columns
            return space.canonical(space.arch_of(texts[ARCH_STR]))
        return space.canonical(
            {name: _value(name, text, space) for name, text in texts.items() if text}
        )
    except ArchitectureError as error:
        raise TableError(f"{where}: {error}") from None


def _value(name: str, text: str, space: Space) -> Any:
    values = space.choices[name].values
    for value in values:
        if str(value) == text:
            return value
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    try:
        number = float(text)  # programs write whole numbers as 8.0 where a column has gaps
    except ValueError:
        return text
    return next((value for value in numbers if value == number), text)
