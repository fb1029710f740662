"""Finding spaces by name, loading their files, joining several into one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tadnn.errors import RequestError, SpaceError
from tadnn.files import SEARCH_SPACES, file_hash
from tadnn.nets import Net, Shape
from tadnn.spaces.choices import Categorical, Choice
from tadnn.spaces.conditions import check_conditions
from tadnn.spaces.space import Arch, Build, Space


def load_space(name: str | Path) -> Space:
    """Load a space: ``search_spaces/NAME.py`` or a path that ends in ``.py``.

    **This runs the file's Python.** Load spaces only from people you trust.

    The file defines ``choices`` (a dict of :class:`Int` and :class:`Categorical`)
    and ``build(arch, input_shape, classes) -> Net``, and may define
    ``default_input`` (C, H, W), ``default_classes``, ``phases`` (a dict of further builders by
    name) and ``arch_of`` (reads an architecture from a text); see :class:`Space`.

    Raises:
        UnknownName: there is no such space; near matches are shown.
        SpaceError: the file raises or lacks a part.
    """
    path = Path(name) if str(name).endswith(".py") else SEARCH_SPACES.find(str(name))
    module = _run(path)
    for part in ("choices", "build"):
        if not hasattr(module, part):
            raise SpaceError(f"a space file defines choices and build; {path} has no {part}")
    if not isinstance(module.choices, Mapping) or not callable(module.build):
        raise SpaceError(f"in a space file choices is a dict and build a function; see {path}")
    phases = getattr(module, "phases", {})
    if not isinstance(phases, Mapping):
        raise SpaceError(f"in a space file phases is a dict of functions; see {path}")
    arch_of = getattr(module, "arch_of", None)
    if arch_of is not None and not callable(arch_of):
        raise SpaceError(f"in a space file arch_of is a function; see {path}")
    try:
        space = Space(
            path.stem,
            module.choices,
            module.build,
            default_input=getattr(module, "default_input", (3, 224, 224)),
            default_classes=getattr(module, "default_classes", 1000),
            source_hash=file_hash(path),
            phases=phases,
            arch_of=arch_of,
        )
        check_conditions(space.choices)
        if "space" in space.choices:
            raise SpaceError("no choice is called 'space': that one picks among joined spaces")
    except SpaceError as error:
        raise SpaceError(f"space file {path}: {error}") from error
    return space


def union(spaces: Sequence[Space]) -> Space:
    """Return one space whose first choice, ``space``, picks among several.

    The choices of the others are named ``<space>.<choice>``; its phases are those that they
    all have. Where there is only one space it is returned as it is.
    """
    if len(spaces) == 1:
        return spaces[0]
    names = tuple(space.name for space in spaces)
    if not names or len(set(names)) < len(names):
        raise SpaceError(f"joined spaces have distinct names; got {', '.join(names) or 'none'}")
    choices: dict[str, Choice] = {"space": Categorical(*names)}
    for space in spaces:
        for name, choice in space.choices.items():
            parents = {f"{space.name}.{parent}": v for parent, v in choice.when.items()}
            group = f"{space.name}.{choice.group}" if choice.group else ""
            when = {"space": (space.name,), **parents}
            choices[f"{space.name}.{name}"] = (
                Categorical(*choice.values, when=when, group=group)
                if isinstance(choice, Categorical)
                else replace(choice, when=when, group=group)
            )
    by_name = {space.name: space for space in spaces}

    def builder(phase: str | None) -> Build:
        def build(arch: Arch, input_shape: Shape, classes: int) -> Net:
            space = by_name[arch["space"]]
            return space.build(split(arch)[1], input_shape, classes, phase)

        return build

    common = [p for p in spaces[0].phases if all(p in space.phases for space in spaces)]
    return Space(
        "+".join(names),
        choices,
        builder(None),
        default_input=spaces[0].default_input,
        default_classes=spaces[0].default_classes,
        source_hash=":".join(space.hash for space in spaces),
        phases={phase: builder(phase) for phase in common},
    )


def split(arch: Mapping[str, Any]) -> tuple[str | None, Arch]:
    """Return the space that a union's architecture picked, and the architecture there."""
    chosen = arch.get("space")
    if chosen is None:
        return None, dict(arch)
    prefix = f"{chosen}."
    return chosen, {n.removeprefix(prefix): v for n, v in arch.items() if n.startswith(prefix)}


def _run(path: Path) -> ModuleType:
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    except (SyntaxError, ValueError) as error:
        raise SpaceError(f"space file {path} is not valid Python: {error}") from error
    module = ModuleType(f"tadnn_space_{path.stem}")
    module.__file__ = str(path)
    # Dataclasses and typing look a class's module up by name.
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:  # anything may come out of a user's file
        sys.modules.pop(module.__name__, None)
        raised = f"raised {type(error).__name__}: {error}".rstrip(": ")
        raise SpaceError(f"space file {path}{_line(error, path)} {raised}") from error
    return module


def _line(error: BaseException, path: Path) -> str:
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = f", line {trace.tb_lineno},"
        trace = trace.tb_next
    return line
