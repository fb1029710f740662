"""The exceptions that tadnn raises on purpose.

::

    TadnnError                    what tadnn says about the work; exit code 1
    ├── WorkFailed                the request was right, carrying it out failed; exit code 1
    └── RequestError              the request was wrong; exit code 2
        ├── UnknownName           a name nobody answers to; near matches are shown
        ├── SpecError             a study file that breaks a rule
        ├── StudyMismatch         a study resumed with another spec, space or latency model
        ├── SpaceError            a search space that cannot be loaded or narrowed
        ├── ArchitectureError     an architecture that is not a point of its space
        ├── ShapeError            layers whose shapes do not fit
        ├── TraceError            a module that cannot be read as a network
        ├── KernelError           a kernel key that does not parse
        ├── TableError            a measurement table that breaks a rule, with its line
        ├── TargetError           a TARGET that names no network
        ├── SettingMismatch       a latency model fitted for another setting or device
        ├── DataError             a data set that cannot be read
        ├── CorruptFile           a file of ours that is damaged
        ├── Unwritable            a folder or disk that takes no more
        └── MissingPackage        an optional package that is not installed

Messages say the rule, then the value received, then the valid choices.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TadnnError(Exception):
    """Root of the tree; ``exit_code`` is what the command line returns."""

    exit_code = 1


class WorkFailed(TadnnError):
    """The request was right, carrying it out failed."""


class RequestError(TadnnError):
    """The request was wrong."""

    exit_code = 2


class UnknownName(RequestError):
    """A name that nobody answers to.

    Args:
        what: the sort of thing looked for, such as ``"space"``.
        name: the name received.
        choices: every valid name.
        aliases: further names that are valid but not worth listing.
    """

    def __init__(
        self, what: str, name: str, choices: Iterable[str], aliases: Iterable[str] = ()
    ) -> None:
        self.what, self.name, self.choices = what, name, sorted(choices)
        self.aliases = sorted(aliases)
        near = near_matches(name, [*self.choices, *self.aliases])
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
        text = f"unknown {what} {name!r}{hint} Valid: {', '.join(self.choices) or 'none'}."
        super().__init__(text)


class SpecError(RequestError):
    """A study file that breaks a rule."""


class StudyMismatch(RequestError):
    """A study resumed with another spec, space or latency model."""


class SpaceError(RequestError):
    """A search space that cannot be loaded or narrowed."""


class ArchitectureError(RequestError):
    """An architecture that is not a point of its space."""


class ShapeError(RequestError):
    """Layers whose shapes do not fit; the message names the layer."""


class TraceError(RequestError):
    """A module that cannot be read as a network; the message names operator and source line."""


class KernelError(RequestError):
    """A kernel key that does not parse, or an impossible kernel."""


class TableError(RequestError):
    """A measurement table that breaks a rule; the message gives file and line."""


class TargetError(RequestError):
    """A TARGET that names no network."""


class SettingMismatch(RequestError):
    """A latency model fitted for another setting or device."""


class DataError(RequestError):
    """A data set that cannot be read."""


class CorruptFile(RequestError):
    """A file of ours (database, latency model, study) that is damaged."""


class Unwritable(RequestError):
    """A folder or disk that takes no more."""


class MissingPackage(RequestError):
    """An optional package that is not installed; the message gives the command."""


def near_matches(name: str, choices: Iterable[str]) -> list[str]:
    """Return up to three of ``choices`` that look like ``name``, best first."""
    by_folded: dict[str, str] = {}
    for choice in choices:
        by_folded.setdefault(choice.casefold(), choice)
    found = difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.6)
    return [by_folded[key] for key in found]
