"""A search space: its choices, its architectures, and how one becomes a network."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tadnn.errors import ArchitectureError, SpaceError, TadnnError, UnknownName, near_matches
from tadnn.files import stable_hash
from tadnn.nets import Net, Shape
from tadnn.spaces.choices import Choice, Value
from tadnn.spaces.conditions import check_choices, is_active, reachable
from tadnn.spaces.counting import count_points
from tadnn.spaces.reading import Reading

if TYPE_CHECKING:
    from torch import nn

Arch = dict[str, Any]
Build = Callable[[Arch, Shape, int], "Net | nn.Module"]

_PHASE_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Space:
    """What may vary, and how an architecture becomes a network; immutable.

    Args:
        name: the space's name.
        choices: by name; parents stand before the choices that depend on them.
        build: ``(arch, input_shape, classes) -> Net``; an ``nn.Module`` is traced.
        default_input: (C, H, W) used where none is given.
        default_classes: outputs used where none are given.
        source_hash: what identifies the code behind ``build``.
        phases: further networks that an architecture runs as, by name; builders like ``build``.
            The network of ``build`` is what is trained, counted and exported; a phase has a
            latency of its own, such as a language model's next token beside its prompt.
        arch_of: reads an architecture that is written as one text, as a benchmark may; raises
            ``ArchitectureError`` where it isn't one.

    Raises:
        SpaceError: the choices contradict each other.
    """

    def __init__(
        self,
        name: str,
        choices: Mapping[str, Choice],
        build: Build,
        default_input: Shape = (3, 224, 224),
        default_classes: int = 1000,
        source_hash: str = "",
        phases: Mapping[str, Build] | None = None,
        arch_of: Callable[[str], Arch] | None = None,
    ) -> None:
        self.name, self.choices = name, dict(choices)
        self.arch_of = arch_of
        self.default_input, self.default_classes = _shape(default_input), default_classes
        self.source_hash = source_hash
        # A narrowed space remembers what was read for the whole one.
        builds: dict[str | None, Build] = {None: build}
        builds.update(_checked(name, phases or {}))
        self._builds = {
            phase: made if isinstance(made, Reading) else Reading(name, made)
            for phase, made in builds.items()
        }
        check_choices(name, self.choices)
        if type(default_classes) is not int or default_classes < 1:
            raise SpaceError(f"default_classes is a positive whole number; got {default_classes!r}")
        # What stays plain for the hot path: scoring checks thousands of architectures a second.
        self._plan = [(n, c, tuple(c.when.items())) for n, c in self.choices.items()]

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {len(self.choices)} choices)"

    @property
    def phases(self) -> tuple[str, ...]:
        """The names of the phases beside the network itself."""
        return tuple(phase for phase in self._builds if phase is not None)

    @cached_property
    def hash(self) -> str:
        """A stable hash of the space: its choices, defaults and code."""
        choices = {
            name: [list(c.values), {k: list(v) for k, v in c.when.items()}]
            for name, c in self.choices.items()
        }
        return stable_hash(
            [self.name, choices, list(self.default_input), self.default_classes, self.source_hash]
        )

    def active(self, values: Mapping[str, Any], name: str) -> bool:
        """Tell whether a choice has an effect, given the values of its parents.

        A parent that is itself without effect makes its children so.
        """
        return is_active(self.choices, values, name)

    def canonical(self, values: Mapping[str, Any]) -> Arch:
        """Return the architecture with the choices that have an effect, in declared order.

        Values of known choices without effect are dropped.

        Raises:
            ArchitectureError: a choice is unknown or missing, or its value isn't one.
        """
        if not isinstance(values, Mapping):
            raise ArchitectureError(
                f"an architecture is a mapping of choices to values; got {values!r}"
            )
        arch: Arch = {}
        for name, choice, when in self._plan:
            if when and any(arch.get(parent) not in allowed for parent, allowed in when):
                continue
            if name not in values:
                self._refuse_unknown(values)
                raise ArchitectureError(
                    f"an architecture of {self.name} has a value for {name} "
                    f"({choice.describe()}); got none"
                )
            value = values[name]
            if not choice.holds(value):
                raise ArchitectureError(f"{name} is one of {choice.describe()}; got {value!r}")
            arch[name] = value
        if len(arch) < len(values):
            self._refuse_unknown(values)
        return arch

    def _refuse_unknown(self, values: Mapping[str, Any]) -> None:
        for name in values:
            if name not in self.choices:
                raise ArchitectureError(_unknown_choice(self.name, name, self.choices))

    def check(self, arch: Mapping[str, Any]) -> None:
        """Check that ``arch`` is a point of the space.

        Raises:
            ArchitectureError: it isn't.
        """
        self.canonical(arch)

    def key(self, arch: Mapping[str, Any]) -> str:
        """Return the stable hash of an architecture; choices without effect don't count."""
        return stable_hash([self.name, self.canonical(arch)])

    def build(
        self,
        arch: Mapping[str, Any],
        input_shape: Shape | None = None,
        classes: int | None = None,
        phase: str | None = None,
    ) -> Net:
        """Return the network of an architecture.

        Where the space builds modules, the network is read from one; weights that the
        module came with are left behind.

        Args:
            arch: a point of the space.
            input_shape: (C, H, W); the space's default when None.
            classes: outputs; the space's default when None.
            phase: one of `phases`; the network itself when None.

        Raises:
            UnknownName: the space has no such phase.
            ArchitectureError: ``arch`` isn't a point of the space.
            ShapeError: shapes don't fit; the layer is named.
            SpaceError: the space's own code raised.
            TraceError: the module that it built cannot be read.
        """
        build = self._builds.get(phase)
        if build is None:
            raise UnknownName(f"phase of space {self.name}", str(phase), self.phases)
        point = self.canonical(arch)
        shape = self.default_input if input_shape is None else _shape(input_shape)
        outputs = self.default_classes if classes is None else classes
        try:
            net = build(point, shape, outputs)
        except TadnnError:
            raise
        except Exception as error:  # any exception may come out of a user's code
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise SpaceError(
                f"{_called(phase)} of space {self.name} raised {type(error).__name__}: {error} "
                f"({last.filename}, line {last.lineno}) for {point}"
            ) from error
        if not isinstance(net, Net):
            raise SpaceError(
                f"{_called(phase)} of space {self.name} returns a tadnn Net or a torch nn.Module; "
                f"got {type(net).__name__}"
            )
        return net

    def sample_one(self, rng: np.random.Generator) -> Arch:
        """Return one architecture, every active choice drawn uniformly."""
        arch: Arch = {}
        for name, choice, when in self._plan:
            if all(arch.get(parent) in allowed for parent, allowed in when):
                arch[name] = choice.values[int(rng.integers(len(choice.values)))]
        return arch

    def sample(self, n: int, seed: int) -> list[Arch]:
        """Return ``n`` distinct architectures, or all of them where the space has fewer."""
        size = self.size()
        rng = np.random.default_rng(seed)
        # Where few are left over, or some are rare, drawing until enough are distinct stalls.
        if size <= max(2 * n, 1024):
            points = list(self.enumerate())
            return [points[i] for i in rng.permutation(len(points))[:n]]
        found: dict[tuple[tuple[str, Any], ...], Arch] = {}
        while len(found) < n:
            arch = self.sample_one(rng)
            found.setdefault(tuple(arch.items()), arch)
        return list(found.values())

    def neighbours(self, arch: Mapping[str, Any]) -> list[Arch]:
        """Return the architectures that differ in one choice.

        Numbers move to the next lower or higher value, other values to any. Where
        a move gives further choices an effect, they take their first value.
        """
        point = self.canonical(arch)
        found = []
        for name, value in point.items():
            choice = self.choices[name]
            if choice.is_ordered:
                values = choice.ordered
                at = values.index(value)
                moves = [values[i] for i in (at - 1, at + 1) if 0 <= i < len(values)]
            else:
                moves = [other for other in choice.values if other != value]
            found += [self._completed({**point, name: other}) for other in moves]
        return found

    def encode(self, archs: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return architectures as vectors, float64 [n, d] in 0..1.

        A number takes one column, its position in its range; any other choice one
        column per value. Choices without effect are 0.5 in number columns, 0 elsewhere.

        Raises:
            ArchitectureError: one of them isn't a point of the space.
        """
        points = [self.canonical(arch) for arch in archs]
        rows = [
            [x for name, codes in self._codes.items() for x in codes[point.get(name)]]
            for point in points
        ]
        width = sum(len(codes[None]) for codes in self._codes.values())
        return np.array(rows, dtype=float).reshape(len(points), width)

    @cached_property
    def _codes(self) -> dict[str, dict[Value | None, tuple[float, ...]]]:
        return {name: choice.columns() for name, choice in self.choices.items()}

    def size(self) -> int:
        """Return the number of distinct architectures, exactly."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return count_points(self.choices)

    def enumerate(self) -> Iterator[Arch]:
        """Yield every architecture once."""
        return self._points(list(self.choices), {})

    def narrow(self, overrides: Mapping[str, Any]) -> Space:
        """Return the space with some choices narrowed or fixed.

        Args:
            overrides: by choice or group name; see :meth:`Int.narrowed`. A choice
                named by itself wins over its group.

        Raises:
            SpaceError: a name is unknown, or values lie outside.
        """
        groups = {c.group for c in self.choices.values() if c.group}
        for name in overrides:
            if name not in self.choices and name not in groups:
                valid = [*sorted(groups), *self.choices]
                raise SpaceError(_unknown_choice(self.name, name, valid))
        choices: dict[str, Choice] = {}
        for name, choice in self.choices.items():
            if name in overrides:
                choices[name] = choice.narrowed(name, overrides[name])
            elif choice.group in overrides:
                choices[name] = choice.narrowed(name, overrides[choice.group])
            else:
                choices[name] = choice
        return Space(
            self.name,
            reachable(choices),
            self._builds[None],
            self.default_input,
            self.default_classes,
            self.source_hash,
            {phase: build for phase, build in self._builds.items() if phase is not None},
            self.arch_of,
        )

    def _completed(self, values: Arch) -> Arch:
        arch: Arch = {}
        for name, choice, when in self._plan:
            if all(arch.get(parent) in allowed for parent, allowed in when):
                arch[name] = values.get(name, choice.values[0])
        return arch

    def _points(self, names: list[str], start: Arch) -> Iterator[Arch]:
        if not names:
            yield dict(start)
            return
        name, rest = names[0], names[1:]
        if not self.active(start, name):
            yield from self._points(rest, start)
            return
        for value in self.choices[name].values:
            yield from self._points(rest, {**start, name: value})


def _checked(space: str, phases: Mapping[Any, Any]) -> dict[str, Build]:
    """Return the phases' builders.

    Raises:
        SpaceError: a name could not be part of an objective's, or nothing can be called.
    """
    for name, build in phases.items():
        if not isinstance(name, str) or not _PHASE_NAME.fullmatch(name) or not callable(build):
            raise SpaceError(
                f"phases of {space} map names of lower-case letters, digits and underscores to "
                f"functions like build; got {name!r}: {build!r}"
            )
    return dict(phases)


def _called(phase: str | None) -> str:
    return "build()" if phase is None else f"phase {phase}"


def _shape(value: Any) -> Shape:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else ()
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise SpaceError(
            f"an input shape has positive whole sizes, such as 3, 224, 224; got {value!r}"
        )
    return sizes


def _unknown_choice(space: str, name: object, valid: Sequence[str] | Mapping[str, Any]) -> str:
    near = near_matches(str(name), valid)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"{space} has no choice {name!r}{hint} Valid: {', '.join(valid)}."


__all__ = ["Arch", "Build", "Space", "Value"]
