"""Spaces that tests of spaces share."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

from tadnn.nets import BlockBuilder, Flatten, Linear, Net, NetBuilder, block
from tadnn.spaces import Categorical, Int, Space


@block
def layer(b: BlockBuilder, width: int) -> None:
    b.add(Flatten(), name="flat")
    b.add(Linear(width), name="linear")


def build_any(arch: dict[str, Any], input_shape: tuple[int, ...], classes: int) -> Net:
    """A network that differs for every architecture: a layer per choice."""
    net = NetBuilder(input_shape)
    for name, value in arch.items():
        net.add(name.replace(".", "_") + f"_{value}".replace(".", "_"), layer(4))
    net.add("head", layer(classes))
    return net.build()


def make(choices: Mapping[str, Any], name: str = "toy", **kwargs: Any) -> Space:
    return Space(name, choices, build_any, **{"default_input": (1, 2, 2), **kwargs})


# A grandchild, a child of two parents, a choice beside them, every kind of value.
FAMILY = {
    "kind": Categorical("plain", "deep", "odd"),
    "depth": Int(1, 3, when={"kind": ("deep", "odd")}),
    "rate": Categorical(0.5, 0.25, 1.0, when={"depth": (2, 3)}),
    "both": Categorical(True, False, when={"kind": ("odd",), "depth": (1, 3)}),
    "width": Int(8, 24, step=8, group="size"),
}


def brute_force(space: Space) -> list[dict[str, Any]]:
    """Canonical forms of the full product, distinct by JSON text."""
    values = [choice.values for choice in space.choices.values()]
    points = {}
    for row in itertools.product(*values):
        arch = space.canonical(dict(zip(space.choices, row, strict=True)))
        points[json.dumps(arch)] = arch
    return list(points.values())


def text(archs: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(arch) for arch in archs]


def random_space(rng: random.Random) -> Space:
    choices: dict[str, Any] = {}
    for i in range(rng.randint(1, 6)):
        when = {
            parent: tuple(rng.sample(choices[parent].values, rng.randint(1, 2)))
            for parent in rng.sample(list(choices), min(len(choices), rng.randint(0, 2)))
        }
        low = rng.randint(-2, 5)
        choices[f"c{i}"] = (
            Int(low, low + 2 * rng.randint(1, 2), step=2, when=when)
            if rng.random() < 0.5
            else Categorical(*rng.sample(["a", "b", "c", "d"], rng.randint(2, 4)), when=when)
        )
    return make(choices)
