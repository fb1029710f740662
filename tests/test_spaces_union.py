from __future__ import annotations

import pytest
from spaces_examples import FAMILY, brute_force, build_any, make, text

from tadnn.errors import ArchitectureError, SpaceError
from tadnn.spaces import Int, Space, load_space, split, union


@pytest.fixture(scope="module")
def resnet() -> Space:
    return load_space("resnet")


@pytest.fixture(scope="module")
def family() -> Space:
    return make(FAMILY)


@pytest.fixture(scope="module")
def joined() -> Space:
    return union([make(FAMILY, "a"), make({"width": Int(1, 5, group="size")}, "b")])


class TestUnion:
    def test_one_space_stays_itself(self, family: Space) -> None:
        assert union([family]) is family

    def test_choices(self, joined: Space) -> None:
        assert joined.name == "a+b"
        assert list(joined.choices) == [
            "space",
            "a.kind",
            "a.depth",
            "a.rate",
            "a.both",
            "a.width",
            "b.width",
        ]
        assert joined.canonical({"space": "b", "b.width": 3, "a.width": 8}) == {
            "space": "b",
            "b.width": 3,
        }

    def test_size_is_the_sum(self, joined: Space) -> None:
        assert joined.size() == 57 + 5
        assert sorted(text(list(joined.enumerate()))) == sorted(text(brute_force(joined)))

    def test_size_of_large_ones(self, resnet: Space) -> None:
        other = Space("other", resnet.choices, build_any)
        assert union([resnet, other, make(FAMILY)]).size() == 2 * resnet.size() + 57

    def test_build_and_split(self, joined: Space) -> None:
        arch = {"space": "a", "a.kind": "plain", "a.width": 16}
        assert split(arch) == ("a", {"kind": "plain", "width": 16})
        assert split({"kind": "plain"}) == (None, {"kind": "plain"})
        assert joined.build(arch) == make(FAMILY, "a").build({"kind": "plain", "width": 16})
        for point in joined.sample(62, seed=0):
            name, own = split(point)
            assert name == point["space"]
            assert joined.build(point, (2, 2), 5) == build_any(own, (2, 2), 5)

    def test_sampling_reaches_all(self, joined: Space) -> None:
        assert {arch["space"] for arch in joined.sample(20, seed=0)} == {"a", "b"}

    def test_groups_keep_apart(self, joined: Space) -> None:
        narrowed = joined.narrow({"a.size": 8, "b.width": [2, 3]})
        assert narrowed.size() == 19 + 2

    def test_narrowing_to_one(self, joined: Space) -> None:
        narrowed = joined.narrow({"space": "b"})
        assert list(narrowed.choices) == ["space", "b.width"]

    def test_errors(self, joined: Space, family: Space) -> None:
        with pytest.raises(ArchitectureError, match="space is one of a, b; got 'c'"):
            joined.check({"space": "c"})
        with pytest.raises(ArchitectureError, match=r"a value for b\.width"):
            joined.check({"space": "b", "a.width": 8})
        with pytest.raises(SpaceError, match="distinct names; got toy, toy"):
            union([family, family])
        with pytest.raises(SpaceError, match="distinct names; got none"):
            union([])

    def test_the_hash_follows_the_parts(self, joined: Space) -> None:
        other = union([make(FAMILY, "a"), make({"width": Int(1, 5)}, "b", source_hash="x")])
        assert joined.hash != other.hash
