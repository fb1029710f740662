"""TARGETs: how a network is named on the command line.

``file.py:callable``, ``package.module:callable``, a Net or architecture JSON file,
``STUDY#TRIAL``, or a published network (``timm:MODEL@SIZE``, ``neusight:MODEL@TOKENS``). What a
callable returns is a Net or any ``nn.Module``, which is traced; a module that stands there ready
will do as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tadnn.errors import SpaceError, TadnnError, TargetError, TraceError, UnknownName
from tadnn.files import SEARCH_SPACES, read_json
from tadnn.nets import Net, Shape, Traced, trace
from tadnn.nets.published import PUBLISHED, published_net
from tadnn.search.load import load_spec
from tadnn.search.objective import NET_ATTR, PHASE_NET_ATTR, RESULT_ATTR, unpack_net
from tadnn.search.reading import read_study
from tadnn.search.spec import StudySpec
from tadnn.search.trials import evaluated_trial
from tadnn.spaces import Space, load_space
from tadnn.user_code import import_user_code, is_module

if TYPE_CHECKING:
    from optuna import Study
    from torch import nn

MODULE_INPUT: Final[Shape] = (3, 224, 224)
"""The input that a module is traced at where none is given: it doesn't say its own."""

_FORMS = (
    "a TARGET is file.py:callable, package.module:callable, a JSON file with a Net or an "
    "architecture, STUDY#TRIAL, timm:MODEL@SIZE or neusight:MODEL@TOKENS"
)


@dataclass(frozen=True)
class Target:
    """A network that was asked for, and where it came from.

    Attributes:
        name: for people.
        net: the network.
        space: the space it is a point of, if any.
        arch: which point.
        traced: the network with the weights of the module that it was read from, if any.
    """

    name: str
    net: Net
    space: str | None = None
    arch: Mapping[str, Any] | None = None
    traced: Traced | None = None


def resolve_target(text: str, input_shape: Shape | None = None, phase: str | None = None) -> Target:
    """Return the network that a TARGET names.

    **A callable's file and an architecture's space file are run.**

    Args:
        text: the TARGET.
        input_shape: (C, H, W) to build for; the network's own when None, a module's is
            :data:`MODULE_INPUT` then.
        phase: of an architecture, which of its space's phases; the network itself when None.

    Raises:
        TargetError: it names no network.
        TraceError: it names a module that cannot be read.
        RequestError: what it names is missing or damaged.
    """
    if "#" in text:
        study, _, number = text.rpartition("#")
        target = _from_study(study, number, phase)
    elif text.endswith(".json"):
        target = _from_json(Path(text), input_shape, phase)
    elif phase is not None:
        raise TargetError(f"only an architecture has phases; got {text!r} and phase {phase!r}")
    elif text.partition(":")[0] in PUBLISHED:
        size = input_shape[-1] if input_shape is not None else None
        target = Target(text.partition(":")[2], published_net(text, size))
    elif ":" in text:
        target = _from_callable(text, input_shape)
    else:
        raise TargetError(f"{_FORMS}; got {text!r}")
    if phase is None and input_shape is not None and target.net.input_shape != input_shape:
        net = Net.checked(input_shape, target.net.blocks)
        target = replace(target, net=net)
    return target


def resolve_trial(
    spec: StudySpec, number: int, phase: str | None = None, *, study: Study | None = None
) -> Target:
    """Return the network of a study's evaluated trial, or that of a phase that the study looks at.

    Args:
        spec: the study.
        number: the trial's.
        phase: which one; the network itself when None.
        study: the study where it is open already.

    Raises:
        TargetError: there is no evaluated trial of that number.
        UnknownName: the study looks at no such phase.
    """
    study = read_study(spec, unchanged=True) if study is None else study
    trial = evaluated_trial(study, number)
    result = trial.user_attrs[RESULT_ATTR]
    if phase is not None and phase not in spec.phases:
        raise UnknownName(f"phase of study {spec.name}", phase, spec.phases)
    stored = NET_ATTR if phase is None else PHASE_NET_ATTR + phase
    net = unpack_net(trial.user_attrs[stored])
    of = "" if phase is None else f" {phase}"
    return Target(f"{spec.name}#{number}{of}", net, result["space"], result["arch"])


def _from_study(study_name: str, number: str, phase: str | None) -> Target:
    if not (number.isascii() and number.isdigit()):
        raise TargetError(f"STUDY#TRIAL ends in a trial's number; got {number!r}")
    return resolve_trial(load_spec(study_name), int(number), phase)


def _from_json(path: Path, input_shape: Shape | None, phase: str | None) -> Target:
    data = read_json(path)
    if not isinstance(data, dict):
        raise TargetError(f"{path} holds neither a Net nor an architecture: {_FORMS}")
    if phase is not None and ("net" in data or "format" in data) and "arch" not in data:
        raise TargetError(f"only an architecture has phases; {path} holds a Net")
    if isinstance(data.get("net"), dict) and phase is None:  # an export's architecture.json
        return Target(path.stem, Net.from_json(data["net"]), data.get("space"), data.get("arch"))
    if "format" in data and phase is None:
        return Target(path.stem, Net.from_json(data))
    wrapped = isinstance(data.get("arch"), dict)
    record = data["arch"] if wrapped else data
    name = record.get("space", data.get("space"))
    arch = {choice: value for choice, value in record.items() if choice != "space"}
    if arch and all(choice.startswith(f"{name}.") for choice in arch):
        # Of joined spaces: the choices of each carry its name.
        arch = {choice.removeprefix(f"{name}."): value for choice, value in arch.items()}
    shape, classes = input_shape, None
    if wrapped:
        classes = _sizes(path, "classes", [data["classes"]])[0] if "classes" in data else None
        if shape is None and "input_shape" in data:
            shape = _sizes(path, "input_shape", data["input_shape"])
    space = _space_of(path, name, arch)
    net = space.build(arch, shape, classes, phase)
    net.chain()  # shapes that don't fit show here, by layer
    return Target(path.stem, net, space.name, arch)


def _sizes(path: Path, key: str, value: Any) -> Shape:
    if isinstance(value, list) and all(type(v) is int and v > 0 for v in value):
        return tuple(value)
    raise TargetError(f"{path}: {key} holds positive whole numbers; got {value!r}")


def _space_of(path: Path, name: Any, arch: Mapping[str, Any]) -> Space:
    """Return the space that an architecture's file names, or the one with most of its choices."""
    if name is not None:
        return load_space(str(name))
    best, most = None, 0
    for known in SEARCH_SPACES.entries():
        try:
            space = load_space(known)
        except SpaceError:
            continue  # another space's broken file is no answer to whose architecture this is
        shared = sum(choice in space.choices for choice in arch)
        if shared > most:
            best, most = space, shared
    if best is None:
        raise TargetError(
            f'{path} is an architecture of no known space; add "space": one of '
            f"{', '.join(SEARCH_SPACES.entries())}"
        )
    return best


def _from_callable(text: str, input_shape: Shape | None) -> Target:
    where, name = text.rsplit(":", 1)
    module = import_user_code(where, TargetError)
    found = getattr(module, name, None)
    if not callable(found):  # which a module is too
        callables = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownName(f"callable of {where}", name, callables)
    made = found if is_module(found) else _called(found, text)
    if is_module(made):
        return _from_module(made, text, input_shape)
    if not isinstance(made, Net):
        raise TargetError(
            f"{text}() returns a tadnn Net or a torch nn.Module; got {type(made).__name__}"
        )
    made.chain()
    return Target(name, made)


def _called(make: Callable[..., Any], text: str) -> Any:
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise TargetError(
            f"what a TARGET names is called without arguments; {text}: {error}. Write a function "
            f"without any that returns the network, and name that"
        ) from None
    except ValueError:
        pass  # built in: it doesn't say what it takes
    try:
        return make()
    except TadnnError:
        raise
    except (Exception, SystemExit) as error:  # anything may come out of a user's code
        raise TargetError(f"{text}() raised {type(error).__name__}: {error}") from error


def _from_module(module: nn.Module, text: str, input_shape: Shape | None) -> Target:
    shape = MODULE_INPUT if input_shape is None else input_shape
    try:
        traced = trace(module, shape)
    except TraceError as error:
        at = ",".join(map(str, shape))
        raise TraceError(f"{text} with the input {at} (--input): {error}") from error
    return Target(text.rsplit(":", 1)[1], traced.net, traced=traced)
