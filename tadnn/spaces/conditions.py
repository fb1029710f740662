"""Conditions: which choices have an effect, given what others were set to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tadnn.errors import SpaceError
from tadnn.spaces.choices import Categorical, Choice, Int


def check_choices(space: str, choices: Mapping[Any, Any]) -> None:
    """Check what a space file hands over as its choices.

    Raises:
        SpaceError: there are none, or one is malformed or depends on a later one.
    """
    if not choices:
        raise SpaceError(f"a space has at least one choice; {space} has none")
    seen: set[str] = set()
    for name, choice in choices.items():
        if not isinstance(name, str) or not name:
            raise SpaceError(f"choices of {space} are named by strings; got {name!r}")
        if not isinstance(choice, (Int, Categorical)):
            raise SpaceError(f"{name} of {space} is an Int or a Categorical; got {choice!r}")
        if not isinstance(choice.when, Mapping):
            raise SpaceError(
                f"when of {name} maps choices to tuples of values; got {choice.when!r}"
            )
        for parent, allowed in choice.when.items():
            if parent not in seen:
                raise SpaceError(f"{name} of {space} depends on choices before it; got {parent!r}")
            if not isinstance(allowed, (tuple, list)):
                raise SpaceError(
                    f"when of {name} gives a tuple of values of {parent}; got {allowed!r}"
                )
        seen.add(name)


def check_conditions(choices: Mapping[str, Choice]) -> None:
    """Check that conditions ask for values that exist (narrowing may remove some later).

    Raises:
        SpaceError: one asks for a value that its parent never has.
    """
    for name, choice in choices.items():
        for parent, allowed in choice.when.items():
            for value in allowed:
                if not choices[parent].holds(value):
                    raise SpaceError(
                        f"{name} depends on a value of {parent} "
                        f"({choices[parent].describe()}); got {value!r}"
                    )


def is_active(choices: Mapping[str, Choice], values: Mapping[str, Any], name: str) -> bool:
    """Tell whether a choice has an effect, given the values of its parents."""
    return all(
        parent in values and values[parent] in allowed and is_active(choices, values, parent)
        for parent, allowed in choices[name].when.items()
    )


def reachable(choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return the choices that some architecture gives an effect."""
    kept: dict[str, Choice] = {}
    for name, choice in choices.items():
        if all(
            parent in kept and any(kept[parent].holds(value) for value in allowed)
            for parent, allowed in choice.when.items()
        ):
            kept[name] = choice
    return kept
