"""Reading a study file; everything wrong with it is said in its own terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tadnn.errors import SpecError, UnknownName, near_matches
from tadnn.files import SEARCH_SPACES, STUDIES
from tadnn.search.spec import CONSTRAINTS, DTYPES, OBJECTIVES, SAMPLERS, StudySpec
from tadnn.search.spec_parts import (
    LATENCY,
    LATENCY_MS,
    AccuracySpec,
    BudgetSpec,
    ConstraintsSpec,
    FinalistsSpec,
    StageSpec,
    TrainSpec,
)

_PARTS: dict[str, type[BaseModel]] = {
    "accuracy": AccuracySpec,
    "accuracy.train": TrainSpec,
    "budget": BudgetSpec,
    "constraints": ConstraintsSpec,
    "finalists": FinalistsSpec,
    "stages": StageSpec,
    "stages.train": TrainSpec,
}
_CHOICES = {
    "sampler": SAMPLERS,
    "dtype": DTYPES,
}
_RULES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "mapping_type": "must map keys to values",
    "dict_type": "must map keys to values",
    "model_type": "must map keys to values",
    "finite_number": "must be finite",
}


def load_spec(study: str | Path) -> StudySpec:
    """Read a study by its name or by the path of its YAML.

    Raises:
        UnknownName: no study of that name.
        SpecError: the file breaks a rule; the message names file, key, rule and value.
    """
    path = _study_path(study)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"no such study file: {path}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: a study file is UTF-8 text; {error}") from None
    except OSError as error:
        raise SpecError(f"cannot read the study file {path}: {error.strerror}") from error
    try:
        record = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or error
        raise SpecError(f"{path}{where}: not valid YAML: {problem}") from None
    return parse_spec(record, str(path)).at(path)


def parse_spec(record: object, source: str = "study") -> StudySpec:
    """Check a study given as plain data; ``source`` is what messages call it.

    Raises:
        SpecError: it breaks a rule.
    """
    if not isinstance(record, Mapping):
        raise SpecError(f"{source}: a study maps keys to values; {_received(record)}")
    keys = [key for key in record if not isinstance(key, str)]
    if keys:
        raise SpecError(f"{source}: keys are texts; received {keys[0]!r}")
    try:
        # A key with nothing behind it says the same as no key: off.
        present = {key: value for key, value in record.items() if value is not None}
        spec = StudySpec.model_validate(present)
    except ValidationError as error:
        lines = [_explain(detail) for detail in error.errors(include_url=False)]
        raise SpecError("\n".join(f"{source}: {line}" for line in dict.fromkeys(lines))) from None
    for name in spec.space:
        _require_space(name, source)
    return spec


def _study_path(study: str | Path) -> Path:
    text = str(study)
    if isinstance(study, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return Path(study)
    return STUDIES.find(text)


def _require_space(name: str, source: str) -> None:
    if name.endswith(".py") or "/" in name:
        if not Path(name).is_file():
            raise SpecError(f"{source}: space: no such file: {name}")
        return
    try:
        SEARCH_SPACES.find(name)
    except UnknownName as error:
        raise SpecError(f"{source}: space: {error}") from None


def require_known(source: str, key: str, what: str, name: str, choices: Iterable[str]) -> None:
    """Refuse a name in a study file that nobody answers to.

    Raises:
        SpecError: with near matches and the valid choices.
    """
    valid = list(choices)
    if name not in valid:
        raise SpecError(f"{source}: {key}: {UnknownName(what, name, valid)}")


def _explain(detail: ErrorDetails) -> str:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location)
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        # Entries of a list are all of one kind.
        parent = ".".join(part for part in location[:-1] if not part.isdigit())
        last = location[-1]
        model = _PARTS.get(parent, StudySpec)
        return f"unknown key {_suggest(key, last, model.model_fields)}"
    if kind == "unknown_constraint":
        name = detail["ctx"]["name"]
        valid = [*CONSTRAINTS, f"PHASE{LATENCY_MS} of a phase of the space"]
        return f"unknown key {_suggest(f'{key}.{name}', name, valid)}"
    if kind == "unknown_objective":
        valid = [*OBJECTIVES, f"PHASE{LATENCY} of a phase of the space"]
        return f"{key}: unknown value {_suggest(repr(value), str(value), valid)}"
    if kind == "missing":
        return f"the key {key!r} is required"
    if kind == "literal_error":
        choices = _CHOICES[location[0]]
        return f"{key}: unknown value {_suggest(repr(value), str(value), choices)}"
    if kind == "too_short":
        return f"{key} needs at least one entry; {_received(value)}"
    if kind == "value_error":
        rule = str(detail["ctx"]["error"])
        return f"{key} {rule}; {_received(value)}" if key else rule
    rule = _RULES.get(kind) or detail["msg"].replace("Input should", "must")
    return f"{key} {rule}; {_received(value)}"


def _suggest(shown: str, name: str, choices: Iterable[str]) -> str:
    valid = list(choices)
    near = near_matches(name, valid)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    return f"{shown}{hint} Valid: {', '.join(valid)}."


def _received(value: object) -> str:
    text = repr(value)
    return f"received {text if len(text) <= 80 else text[:77] + '...'}"


def spec_source(spec: StudySpec) -> str:
    """Return what messages call the spec: its file, or its name."""
    return str(spec.path) if spec.path is not None else f"study {spec.name!r}"
