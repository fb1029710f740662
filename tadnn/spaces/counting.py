"""How many architectures there are, without walking through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tadnn.spaces.choices import Choice
from tadnn.spaces.conditions import is_active


def count_points(choices: Mapping[str, Choice]) -> int:
    """Return the number of distinct architectures, exactly.

    Choices that no condition links multiply; a choice that others depend on is
    fixed to each of its values in turn, which often unlinks the others.
    """
    return _count(choices, list(choices), {})


def _count(choices: Mapping[str, Choice], names: Sequence[str], fixed: dict[str, Any]) -> int:
    total = 1
    for first, *rest in _linked(choices, names):
        if not is_active(choices, fixed, first):
            total *= _count(choices, rest, fixed)
        elif rest:
            values = choices[first].values
            total *= sum(_count(choices, rest, {**fixed, first: value}) for value in values)
        else:
            total *= len(choices[first].values)
    return total


def _linked(choices: Mapping[str, Choice], names: Sequence[str]) -> list[list[str]]:
    """Return ``names`` grouped so that no condition between them crosses groups."""
    owner: dict[str, int] = {}
    for index, name in enumerate(names):
        joined = {owner[parent] for parent in choices[name].when if parent in owner}
        owner = {n: index if o in joined else o for n, o in owner.items()}
        owner[name] = index
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(owner[name], []).append(name)
    return list(groups.values())
