from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from spaces_examples import FAMILY, brute_force, make, random_space, text

from tadnn import spaces
from tadnn.errors import ArchitectureError, SpaceError
from tadnn.spaces import Categorical, Int, Space, load_space


@pytest.fixture(scope="module")
def resnet() -> Space:
    return load_space("resnet")


@pytest.fixture(scope="module")
def family() -> Space:
    return make(FAMILY)


def test_exported_names() -> None:
    assert spaces.__all__ == [
        "Arch",
        "Categorical",
        "Choice",
        "Int",
        "Space",
        "load_space",
        "split",
        "union",
    ]


class TestChoices:
    def test_int(self) -> None:
        choice = Int(8, 24, step=8)
        assert choice.values == (8, 16, 24)
        assert choice.describe() == "8 to 24 in steps of 8"
        assert [v for v in range(0, 40) if choice.holds(v)] == [8, 16, 24]
        assert not any(choice.holds(v) for v in (8.0, "8", None, True, [8], float("nan")))
        assert Int(0, 1).holds(1)
        assert not Int(0, 1).holds(True)

    @pytest.mark.parametrize(("low", "high", "step"), [(3, 2, 1), (1, 4, 2), (1, 4, 0), (1, 4, -1)])
    def test_int_bounds(self, low: int, high: int, step: int) -> None:
        with pytest.raises(SpaceError, match=f"low={low}, high={high}, step={step}"):
            Int(low, high, step)

    @pytest.mark.parametrize("value", ["8", 8.0, None, True])
    def test_int_types(self, value: Any) -> None:
        for kwargs in ({"low": value}, {"high": value}, {"step": value}):
            with pytest.raises(SpaceError, match="of an integer choice is a whole number; got"):
                Int(**{"low": 1, "high": 8, **kwargs})

    def test_categorical(self) -> None:
        choice = Categorical("a", 3, 0.5, True)
        assert choice.values == ("a", 3, 0.5, True)
        assert choice.describe() == "a, 3, 0.5, True"
        assert all(choice.holds(value) for value in choice.values)
        assert not any(choice.holds(v) for v in (1, 1.0, 3.0, "3", None, ["a"], {}))

    @pytest.mark.parametrize(
        "values",
        [
            (),
            ("a", "a"),
            (1, 1),
            (1, True),
            (1, 1.0),
            (None,),
            ([1],),
            (float("nan"),),
            (float("inf"), 1.0),
            (np.int64(3),),
            (np.float64(0.5),),
            (("a", "b"),),
        ],
    )
    def test_categorical_values(self, values: tuple[Any, ...]) -> None:
        with pytest.raises(SpaceError, match="categorical choice"):
            Categorical(*values)


class TestStructure:
    @pytest.mark.parametrize(
        ("choices", "message"),
        [
            ({}, "a space has at least one choice; toy has none"),
            ({"a": 3}, "a of toy is an Int or a Categorical; got 3"),
            ({1: Int(1, 2)}, "choices of toy are named by strings; got 1"),
            ({"": Int(1, 2)}, "choices of toy are named by strings; got ''"),
            ({"a": Int(1, 2, when={"b": (1,)}), "b": Int(1, 2)}, "on choices before it; got 'b'"),
            ({"a": Int(1, 2, when={"a": (1,)})}, "on choices before it; got 'a'"),
            (
                {"a": Int(1, 2), "b": Int(1, 2, when={"a": 1})},
                "gives a tuple of values of a; got 1",
            ),  # type: ignore[dict-item]
            (
                {"a": Categorical("x"), "b": Int(1, 2, when={"a": "x"})},
                "tuple of values of a; got 'x'",
            ),  # type: ignore[dict-item]
            ({"a": Int(1, 2), "b": Int(1, 2, when=("a",))}, "when of b maps choices to tuples"),  # type: ignore[arg-type]
        ],
    )
    def test_contradictions(self, choices: dict[str, Any], message: str) -> None:
        with pytest.raises(SpaceError, match=re.escape(message)):
            make(choices)

    @pytest.mark.parametrize("shape", [(), (0, 2, 2), ("1", 2, 2), (1.0, 2), 3, "322", None])
    def test_default_input(self, shape: Any) -> None:
        with pytest.raises(SpaceError, match="an input shape has positive whole sizes"):
            make(FAMILY, default_input=shape)

    @pytest.mark.parametrize("classes", [0, -1, "10", 1.0, True])
    def test_default_classes(self, classes: Any) -> None:
        with pytest.raises(SpaceError, match="default_classes is a positive whole number; got"):
            make(FAMILY, default_classes=classes)

    def test_hash_is_of_content(self) -> None:
        base = make(FAMILY)
        assert base.hash == make(FAMILY).hash
        assert len(base.hash) == 16
        others = [
            make(FAMILY, name="other"),
            make({**FAMILY, "width": Int(8, 32, step=8)}),
            make({**FAMILY, "depth": Int(1, 3, when={"kind": ("deep",)})}),
            make(FAMILY, default_input=(3, 2, 2)),
            make(FAMILY, default_classes=7),
            make(FAMILY, source_hash="changed"),
        ]
        assert len({space.hash for space in [base, *others]}) == 7


class TestCanonical:
    def test_choices_without_effect_are_dropped(self, family: Space) -> None:
        full = {"width": 8, "rate": 0.5, "kind": "plain", "depth": 2, "both": True}
        assert family.canonical(full) == {"kind": "plain", "width": 8}
        assert list(family.canonical({**full, "kind": "deep"})) == [
            "kind",
            "depth",
            "rate",
            "width",
        ]

    def test_a_grandchild_of_a_dropped_choice_is_dropped(self, family: Space) -> None:
        """Though its own parent's value, left over, would allow it."""
        assert "rate" not in family.canonical(
            {"kind": "plain", "depth": 3, "rate": 0.5, "width": 8}
        )
        assert not family.active({"kind": "plain", "depth": 3}, "rate")
        assert family.active({"kind": "deep", "depth": 3}, "rate")
        assert not family.active({"kind": "deep"}, "rate")
        assert family.active({}, "width")

    def test_equal_networks_have_equal_keys(self, family: Space) -> None:
        first = {"kind": "odd", "depth": 1, "both": True, "width": 8}
        assert family.key(first) == family.key({**first, "rate": 0.25})
        assert family.key(first) == family.key(dict(reversed(first.items())))
        assert family.key(first) != family.key({**first, "both": False})
        assert family.key(first) != family.key({**first, "width": 16})

    def test_keys(self, family: Space) -> None:
        """Keys stand in databases: they must not change."""
        arch = {"kind": "plain", "width": 8}
        assert family.key(arch) == "32156143be9b743d"
        assert make(FAMILY, name="other").key(arch) != family.key(arch)

    def test_keys_are_distinct_exactly_where_architectures_are(self, family: Space) -> None:
        points = brute_force(family)
        assert len({family.key(p) for p in points}) == len(points)

    @pytest.mark.parametrize(
        ("arch", "message"),
        [
            ({}, "an architecture of toy has a value for kind (plain, deep, odd); got none"),
            ({"kind": "deep", "width": 8}, "has a value for depth (1 to 3); got none"),
            ({"kind": "plain", "width": 9}, "width is one of 8 to 24 in steps of 8; got 9"),
            ({"kind": "plain", "width": "8"}, "width is one of 8 to 24 in steps of 8; got '8'"),
            ({"kind": "plain", "width": 8.0}, "width is one of 8 to 24 in steps of 8; got 8.0"),
            ({"kind": "plain", "width": True}, "width is one of 8 to 24 in steps of 8; got True"),
            ({"kind": "Plain", "width": 8}, "kind is one of plain, deep, odd; got 'Plain'"),
            ({"kind": None, "width": 8}, "kind is one of plain, deep, odd; got None"),
            ({"kind": ["plain"], "width": 8}, "kind is one of plain, deep, odd; got ['plain']"),
            ({"kind": "plain", "widht": 8}, "toy has no choice 'widht'; did you mean width?"),
            (
                {"kind": "plain", "width": 8, "zzz": 1},
                "toy has no choice 'zzz'. Valid: kind, depth",
            ),
            ({"kind": "plain", "width": 8, 3: 1}, "toy has no choice 3."),
            (
                {"kind": "odd", "depth": 1, "both": 1, "width": 8},
                "both is one of True, False; got 1",
            ),
            ([], "an architecture is a mapping of choices to values; got []"),
            ("plain", "an architecture is a mapping"),
            (None, "an architecture is a mapping"),
            (3, "an architecture is a mapping"),
        ],
    )
    def test_no_points_of_the_space(self, family: Space, arch: Any, message: str) -> None:
        for ask in (family.canonical, family.check, family.key, family.build, family.neighbours):
            with pytest.raises(ArchitectureError, match=re.escape(message)):
                ask(arch)
        with pytest.raises(ArchitectureError, match=re.escape(message)):
            family.encode([arch])


class TestSize:
    def test_by_hand(self, family: Space) -> None:
        # plain: 1; deep: 1 + 3 + 3; odd: depth 1: 2, depth 2: 3, depth 3: 3 x 2.
        assert family.size() == 3 * (1 + 7 + 11)

    def test_enumerate_walks_every_point_once(self, family: Space) -> None:
        points = list(family.enumerate())
        assert sorted(text(points)) == sorted(text(brute_force(family)))
        assert all(family.canonical(p) == p for p in points)

    def test_random_spaces_against_brute_force(self) -> None:
        rng = random.Random(0)
        conditional = 0
        for _ in range(60):
            space = random_space(rng)
            points = brute_force(space)
            conditional += len(points) < np.prod([len(c.values) for c in space.choices.values()])
            assert space.size() == len(points)
            assert sorted(text(list(space.enumerate()))) == sorted(text(points))
        assert conditional > 20

    def test_resnet(self, resnet: Space) -> None:
        kernels = sum(2**depth for depth in range(1, 7))
        assert resnet.size() == 2 * (64 * kernels) ** 4

    def test_many_linked_choices_are_counted_at_once(self) -> None:
        """Twelve stages under one switch: 6^12 ways to set the depths alone."""
        choices: dict[str, Any] = {"on": Categorical("yes", "no")}
        for stage in range(12):
            choices[f"d{stage}"] = Int(1, 6, when={"on": ("yes",)})
            for i in range(1, 7):
                when = {f"d{stage}": tuple(range(i, 7))}
                choices[f"k{stage}_{i}"] = Categorical(3, 5, when=when)
        assert make(choices).size() == 126**12 + 1


class TestSample:
    def test_distinct_valid_and_repeatable(self, resnet: Space) -> None:
        archs = resnet.sample(300, seed=3)
        assert len(set(text(archs))) == len(archs) == 300
        assert all(resnet.canonical(arch) == arch for arch in archs)
        assert resnet.sample(300, seed=3) == archs
        assert resnet.sample(300, seed=4) != archs
        assert resnet.sample(20, seed=3) == archs[:20]

    def test_plain_values(self, resnet: Space) -> None:
        for arch in resnet.sample(5, seed=0):
            assert {type(value) for value in arch.values()} <= {int, str}
            assert json.loads(json.dumps(arch)) == arch

    def test_small_spaces_are_used_up(self, family: Space) -> None:
        size = family.size()
        for n in (size - 1, size, size + 1, 10 * size):
            archs = family.sample(n, seed=0)
            assert len(set(text(archs))) == len(archs) == min(n, size)
        assert family.sample(size, seed=0) != family.sample(size, seed=1)
        assert family.sample(0, seed=0) == []

    def test_rare_points_are_found(self) -> None:
        """A chain whose n-th point is drawn once in 2^n tries."""
        choices: dict[str, Any] = {"c0": Categorical("stop", "go")}
        for i in range(1, 60):
            choices[f"c{i}"] = Categorical("stop", "go", when={f"c{i - 1}": ("go",)})
        space = make(choices)
        assert space.size() == 61
        assert len(set(text(space.sample(30, seed=0)))) == 30

    def test_one(self, family: Space) -> None:
        rng = np.random.default_rng(0)
        seen = set(text([family.sample_one(rng) for _ in range(3000)]))
        assert seen == set(text(list(family.enumerate())))


class TestNeighbours:
    def test_by_hand(self, family: Space) -> None:
        assert family.neighbours({"kind": "deep", "depth": 2, "rate": 0.5, "width": 8}) == [
            {"kind": "plain", "width": 8},
            {"kind": "odd", "depth": 2, "rate": 0.5, "width": 8},
            {"kind": "deep", "depth": 1, "width": 8},
            {"kind": "deep", "depth": 3, "rate": 0.5, "width": 8},
            {"kind": "deep", "depth": 2, "rate": 0.25, "width": 8},
            {"kind": "deep", "depth": 2, "rate": 1.0, "width": 8},
            {"kind": "deep", "depth": 2, "rate": 0.5, "width": 16},
        ]
        assert family.neighbours({"kind": "plain", "width": 24}) == [
            {"kind": "deep", "depth": 1, "width": 24},
            {"kind": "odd", "depth": 1, "both": True, "width": 24},
            {"kind": "plain", "width": 16},
        ]

    def test_numbers_move_by_value_however_they_were_listed(self) -> None:
        space = make({"width": Int(8, 64, step=8)}).narrow({"width": [64, 8, 32]})
        assert space.neighbours({"width": 8}) == [{"width": 32}]
        assert space.neighbours({"width": 32}) == [{"width": 8}, {"width": 64}]

    def test_valid_distinct_and_one_choice_away(self) -> None:
        rng = random.Random(1)
        for _ in range(30):
            space = random_space(rng)
            for point in space.sample(5, seed=rng.randrange(100)):
                found = space.neighbours(point)
                assert len(set(text(found))) == len(found)
                for other in found:
                    assert space.canonical(other) == other
                    changed = [n for n in point if n in other and point[n] != other[n]]
                    assert len(changed) == 1
                    # What came or went did so because of the one that changed.
                    for name in point.keys() ^ other.keys():
                        assert depends(space, name, changed[0])

    def test_resnet_differs_in_keys_and_networks(self, resnet: Space) -> None:
        point = resnet.sample(1, seed=0)[0]
        found = [point, *resnet.neighbours(point)]
        assert len(found) > 20
        assert len({resnet.key(arch) for arch in found}) == len(found)
        assert len({resnet.build(arch).key for arch in found}) == len(found)


def depends(space: Space, name: str, on: str) -> bool:
    parents = space.choices[name].when
    return on in parents or any(depends(space, parent, on) for parent in parents)


class TestEncode:
    def test_by_hand(self, family: Space) -> None:
        got = family.encode(
            [
                {"kind": "odd", "depth": 3, "rate": 1.0, "both": False, "width": 16},
                {"kind": "deep", "depth": 2, "rate": 0.25, "width": 8},
                {"kind": "plain", "width": 24},
            ]
        )
        # plain, deep, odd, depth, rate, True, False, width
        expected = [
            [0, 0, 1, 1.0, 1.0, 0, 1, 0.5],
            [0, 1, 0, 0.5, 0.0, 0, 0, 0.0],
            [1, 0, 0, 0.5, 0.5, 0, 0, 1.0],
        ]
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, expected)

    def test_shape_and_range(self, resnet: Space) -> None:
        codes = resnet.encode(resnet.sample(50, seed=0))
        # One column per number, two for the kind of block.
        assert codes.shape == (50, 2 + 4 * (1 + 1 + 6))
        assert 0 <= codes.min() < codes.max() <= 1
        assert resnet.encode([]).shape == (0, codes.shape[1])

    def test_single_values(self) -> None:
        space = make({"a": Int(3, 3), "b": Categorical(0.5), "c": Categorical("x")})
        np.testing.assert_array_equal(space.encode(list(space.enumerate())), [[0, 0, 1]])

    def test_points_differ_where_their_codes_do(self, family: Space) -> None:
        points = list(family.enumerate())
        codes = family.encode(points)
        assert len({tuple(row) for row in codes}) == len(points)

    def test_values_without_effect_do_not_count(self, family: Space) -> None:
        plain = {"kind": "plain", "width": 8}
        left_over = {**plain, "depth": 3, "rate": 1.0}
        np.testing.assert_array_equal(family.encode([plain]), family.encode([left_over]))


class TestNarrow:
    def test_fixed_values(self, family: Space) -> None:
        space = family.narrow({"kind": "odd", "depth": 1})
        assert space.size() == 2 * 3
        assert list(space.choices) == ["kind", "depth", "both", "width"]
        assert all(a["kind"] == "odd" and a["depth"] == 1 for a in space.enumerate())

    def test_what_can_never_have_an_effect_goes(self, family: Space) -> None:
        space = family.narrow({"kind": "plain"})
        assert list(space.choices) == ["kind", "width"]
        assert space.size() == 3

    def test_lists_ranges_and_groups(self, resnet: Space) -> None:
        space = resnet.narrow(
            {"width": {"low": 16, "high": 40}, "depth": {"high": 2}, "kernel": [3], "width4": 64}
        )
        assert space.choices["width1"].values == (16, 24, 32, 40)
        assert space.choices["width4"].values == (64,)
        assert space.choices["depth3"].values == (1, 2)
        assert "kernel1_3" not in space.choices
        assert space.size() == 2 * 4**3 * 2**4

    def test_any_step(self, resnet: Space) -> None:
        space = resnet.narrow({"width": {"low": 10, "high": 20, "step": 3}, "width2": [9, 13]})
        assert space.choices["width1"].values == (10, 13, 16, 19)
        assert space.choices["width2"].values == (9, 13)

    def test_categorical_ranges(self) -> None:
        space = make({"rate": Categorical(0.5, 0.25, 1.0)}).narrow({"rate": {"high": 0.5}})
        assert space.choices["rate"].values == (0.5, 0.25)

    def test_tuples_are_lists(self, family: Space) -> None:
        assert family.narrow({"kind": ("plain", "odd")}).choices["kind"].values == ("plain", "odd")

    def test_points_keep_their_keys_and_networks(self, resnet: Space) -> None:
        space = resnet.narrow({"width": [16, 24], "depth": 1})
        for arch in space.sample(5, seed=0):
            assert resnet.key(arch) == space.key(arch)
            assert resnet.build(arch, (1, 32, 32), 10) == space.build(arch, (1, 32, 32), 10)
        assert space.hash != resnet.hash
        assert space.name == resnet.name

    def test_narrowing_twice(self, resnet: Space) -> None:
        once = resnet.narrow({"width": {"low": 16, "high": 64}})
        assert once.narrow({"width": {"high": 32}}).choices["width1"].values == (16, 24, 32)
        with pytest.raises(SpaceError, match="within 16 to 64"):
            once.narrow({"width": {"low": 8}})

    def test_points_outside_are_refused(self, resnet: Space) -> None:
        arch = {**resnet.sample(1, seed=0)[0], "width1": 512}
        with pytest.raises(
            ArchitectureError, match="width1 is one of 8 to 64 in steps of 8; got 512"
        ):
            resnet.narrow({"width": {"high": 64}}).check(arch)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"widht": 8}, "resnet has no choice 'widht'; did you mean width"),
            ({"zzz": 8}, "resnet has no choice 'zzz'. Valid: depth, kernel, width, block, depth1"),
            ({3: 8}, "resnet has no choice 3."),
            ({"width": {"lo": 16}}, "an override of width1 has the keys low, high, step; got lo"),
            ({"width": {"low": 4}}, "width1 within 8 to 512 in steps of 8; got 4 to 512"),
            ({"width": {"high": 1024}}, "got 8 to 1024"),
            ({"width": {"low": 64, "high": 32}}, "low <= high and step >= 1; got low=64, high=32"),
            ({"width": {"step": 0}}, "low <= high and step >= 1"),
            ({"width": {"low": "16"}}, "low of width1 is a whole number; got '16'"),
            ({"width": {"low": 16.5}}, "low of width1 is a whole number; got 16.5"),
            ({"width": {"step": True}}, "step of width1 is a whole number; got True"),
            ({"width": 1000}, "width1 within 8 to 512; got 1000"),
            ({"width": "16"}, "width1 within 8 to 512; got '16'"),
            ({"width": None}, "width1 within 8 to 512; got None"),
            ({"width": True}, "width1 within 8 to 512; got True"),
            ({"width": []}, "width1 has at least one value; got none"),
            ({"width": [16, 16]}, "values of width1 are distinct"),
            ({"width": [16, [24]]}, "width1 within 8 to 512; got [24]"),
            ({"block": "botleneck"}, "block is one of basic, bottleneck; got 'botleneck'"),
            ({"block": {"low": 1}}, "block is one of basic, bottleneck; got {'low': 1}"),
            ({"block": []}, "block has at least one value"),
            ({"kernel": 7}, "kernel1_1 is one of 3, 5; got 7"),
            ({"kernel": "3"}, "kernel1_1 is one of 3, 5; got '3'"),
            ({"kernel": {"step": 2}}, "an override of kernel1_1 has the keys low, high; got step"),
            ({"kernel": {"low": "a"}}, "low of kernel1_1 is a number; got 'a'"),
            ({"kernel": {"low": 6}}, "leaves at least one of 3, 5; got 6 to inf"),
        ],
    )
    def test_refused(self, resnet: Space, overrides: dict[str, Any], message: str) -> None:
        with pytest.raises(SpaceError, match=re.escape(message)):
            resnet.narrow(overrides)
