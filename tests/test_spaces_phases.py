"""Spaces whose architectures run as more than one network."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies_examples import MINI, write_space

from tadnn.errors import SpaceError, UnknownName
from tadnn.spaces import Space, load_space, union

HALF = """

def build_half(arch, input_shape, classes):
    c, h, w = input_shape
    return build(arch, (c, h // 2, w // 2), classes)


phases = {"half": build_half}
"""


@pytest.fixture
def space(tmp_path: Path) -> Space:
    return load_space(write_space(tmp_path, text=MINI + HALF))


ARCH = {"layers": 2, "channels": 16}


def test_a_users_space_has_phases(space: Space) -> None:
    assert space.phases == ("half",)
    assert space.build(ARCH, phase="half").input_shape == (1, 8, 8)
    assert space.build(ARCH, (1, 12, 12), 3, "half").input_shape == (1, 6, 6)
    assert space.build(ARCH).input_shape == (1, 16, 16)
    assert space.narrow({"layers": 1}).phases == ("half",)


def test_an_unknown_phase(space: Space) -> None:
    with pytest.raises(UnknownName, match="phase of space mini 'hafl'; did you mean 'half'"):
        space.build(ARCH, phase="hafl")


def test_a_union_has_the_phases_that_all_have(tmp_path: Path, space: Space) -> None:
    more = HALF.replace('{"half": build_half}', '{"other": build, "half": build_half}')
    both = load_space(write_space(tmp_path, "both", MINI + more))
    plain = load_space(write_space(tmp_path, "plain"))
    joined = union([both, space])
    assert joined.phases == ("half",)
    arch = {"space": "mini", **{f"mini.{name}": value for name, value in ARCH.items()}}
    assert joined.build(arch, phase="half") == space.build(ARCH, phase="half")
    assert union([space, plain]).phases == ()


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        ("phases = 3", "phases is a dict of functions"),
        ("phases = {'half': 3}", "to functions like build; got 'half': 3"),
        ("phases = {'Half': build}", "lower-case letters, digits and underscores"),
        ("phases = {1: build}", "lower-case letters"),
        ("phases = {'': build}", "lower-case letters"),
    ],
)
def test_malformed_phases(tmp_path: Path, phases: str, says: str) -> None:
    with pytest.raises(SpaceError, match=says):
        load_space(write_space(tmp_path, text=f"{MINI}\n{phases}\n"))


def test_a_phase_that_raises_is_named(tmp_path: Path) -> None:
    text = MINI + "\nphases = {'odd': lambda arch, shape, classes: 1 / 0, 'no': lambda *_: None}\n"
    space = load_space(write_space(tmp_path, text=text))
    with pytest.raises(SpaceError, match="phase odd of space mini raised ZeroDivisionError"):
        space.build(ARCH, phase="odd")
    with pytest.raises(SpaceError, match="phase no of space mini returns a tadnn Net or a torch"):
        space.build(ARCH, phase="no")
