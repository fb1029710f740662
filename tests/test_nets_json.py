from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from nets_examples import built, residual, small_net, stem

from tadnn.errors import RequestError, ShapeError
from tadnn.nets import (
    Net,
)


class TestJson:
    def test_round_trip(self) -> None:
        net = small_net()
        data = json.loads(json.dumps(net.to_json()))
        again = Net.from_json(data)
        assert again == net
        assert hash(again) == hash(net)
        assert again.key == net.key
        assert again.to_json() == net.to_json() == data

    def test_the_format(self) -> None:
        """What other programs read, and what keys are made of: changing it orphans both."""
        net = built((3, 16, 16), (("a", residual(3, False)), ("b", residual(3, False))))
        assert net.to_json() == {
            "format": "tadnn-net-1",
            "input_shape": [3, 16, 16],
            "blocks": [
                {
                    "label": "residual",
                    "nodes": [
                        ["conv1", "Conv2d", {"out": 3, "kernel": 3}, [-1]],
                        ["relu1", "ReLU", {}, [0]],
                        ["conv2", "Conv2d", {"out": 3, "kernel": 3}, [1]],
                        ["add", "Add", {}, [2, -1]],
                    ],
                }
            ],
            "chain": [["a", 0], ["b", 0]],
        }
        assert net.key == "c90f1543b76fbacf"

    def test_keys_tell_networks_apart(self) -> None:
        made = [
            small_net(),
            small_net(8),
            built((3, 16, 16), (("a", stem(4)),)),
            built((3, 16, 16), (("b", stem(4)),)),
            built((3, 16, 17), (("a", stem(4)),)),
        ]
        assert len({net.key for net in made}) == len(set(made)) == len(made)
        assert all(len(net.key) == 16 and int(net.key, 16) >= 0 for net in made)
        assert made[0] != "net"

    @pytest.mark.parametrize("data", [None, 3, "net", [], {}, {"format": "tadnn-net-2"}])
    def test_other_data(self, data: Any) -> None:
        with pytest.raises(RequestError, match="an object with format 'tadnn-net-1'; got"):
            Net.from_json(data)

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda d: d.pop("blocks"), "damaged: KeyError: 'blocks'"),
            (lambda d: d.pop("input_shape"), "damaged: KeyError: 'input_shape'"),
            (lambda d: d.pop("chain"), "damaged: KeyError: 'chain'"),
            (lambda d: d.update(blocks=None), "damaged: TypeError"),
            (lambda d: d.update(blocks={}), "damaged: IndexError"),
            (lambda d: d.update(blocks=[3]), "damaged: TypeError"),
            (lambda d: d.update(chain=[]), "at least one block; got none"),
            (lambda d: d.update(chain=[["a"]]), "damaged: ValueError"),
            (lambda d: d.update(chain=[["a", 9]]), "damaged: IndexError"),
            (lambda d: d.update(chain=[["a", -1]]), "damaged: IndexError: blocks are counted from"),
            (lambda d: d.update(chain=[["a", "0"]]), "damaged: TypeError: expected a whole number"),
            (
                lambda d: d.update(chain=[["a", True]]),
                "damaged: TypeError: expected a whole number",
            ),
            (lambda d: d.update(chain=[[None, 0]]), "ASCII Python identifiers"),
            (lambda d: d.update(chain=[["a", 0], ["a", 0]]), "block names are unique"),
            (lambda d: d.update(chain="ab"), "damaged: ValueError"),
            (lambda d: d.update(input_shape=[]), "positive whole sizes"),
            (lambda d: d.update(input_shape=[3, -8, 8]), "positive whole sizes"),
            (lambda d: d.update(input_shape=[3, 8.5, 8]), "expected a whole number, got 8.5"),
            (lambda d: d.update(input_shape="3"), "expected a whole number, got '3'"),
            (lambda d: d.update(input_shape=3), "damaged: TypeError"),
            (lambda d: d.update(input_shape=[10**30, 8, 8]), "block stem, layer conv"),
            (
                lambda d: nodes(d)[0].__setitem__(1, "Conv2"),
                "unknown layer 'Conv2'; did you mean 'C",
            ),
            (lambda d: nodes(d)[0].__setitem__(1, "__class__"), "unknown layer '__class__'"),
            (lambda d: nodes(d)[0].__setitem__(1, None), "unknown layer 'None'"),
            (lambda d: nodes(d)[0].__setitem__(1, ["Conv2d"]), "damaged: TypeError"),
            (lambda d: nodes(d)[0].__setitem__(2, {}), "missing 2 required .* 'out' and 'kernel'"),
            (lambda d: nodes(d)[0].__setitem__(2, {"out": 1, "kernel": 1, "q": 1}), "argument 'q'"),
            (lambda d: nodes(d)[0].__setitem__(2, []), "damaged: TypeError"),
            (lambda d: nodes(d)[0].__setitem__(3, [0]), "layer conv takes inputs that come before"),
            (
                lambda d: nodes(d)[0].__setitem__(3, [-2]),
                "layer conv takes inputs that come before",
            ),
            (
                lambda d: nodes(d)[0].__setitem__(3, []),
                r"layer conv \(Conv2d\) takes 1 inputs; got 0",
            ),
            (lambda d: nodes(d)[0].__setitem__(3, ["-1"]), "expected a whole number, got '-1'"),
            (lambda d: nodes(d)[0].__setitem__(3, None), "damaged: TypeError"),
            (lambda d: nodes(d)[0].__setitem__(0, "forward"), "torch modules leave free"),
            (lambda d: nodes(d)[0].pop(), "damaged: ValueError"),
            (lambda d: nodes(d).clear(), "a block has at least one layer"),
            (lambda d: d["blocks"][0].update(label=7), "ASCII Python identifiers"),
            (lambda d: d["blocks"][0].pop("label"), "damaged: KeyError: 'label'"),
            (lambda d: d["blocks"][0].pop("nodes"), "damaged: KeyError: 'nodes'"),
        ],
    )
    def test_damaged(self, edit: Callable[[dict[str, Any]], object], message: str) -> None:
        data = small_net().to_json()
        edit(data)
        with pytest.raises(RequestError, match=message):
            Net.from_json(data)

    @pytest.mark.parametrize("name", ["out", "kernel", "stride", "padding", "dilation", "groups"])
    @pytest.mark.parametrize("value", [-4, -1, "64", 1.5, True, [3], {}, float("nan"), 10**30])
    def test_layers_with_impossible_arguments_are_named(self, name: str, value: Any) -> None:
        data = small_net().to_json()
        nodes(data)[0][2][name] = value
        with pytest.raises(
            ShapeError, match=f"layer conv of block stem: {name} of Conv2d is a whole"
        ):
            Net.from_json(data)

    def test_random_damage_never_ends_in_another_error(self) -> None:
        """Any value anywhere replaced by any other: a network or an error of ours."""
        rng = random.Random(0)
        values = [
            None,
            True,
            0,
            1,
            -1,
            3,
            10**12,
            2.5,
            "",
            "conv",
            "Conv2d",
            [],
            [1],
            {},
            {"out": 0},
        ]
        refused = 0
        for _ in range(600):
            data = small_net().to_json()
            for _ in range(rng.randint(1, 2)):
                holder, key = rng.choice(list(places(data)))
                holder[key] = copy.deepcopy(rng.choice(values))
            try:
                assert Net.from_json(data).flops() >= 0
            except RequestError:
                refused += 1
        assert 400 < refused < 600


def nodes(data: dict[str, Any]) -> list[Any]:
    found = data["blocks"][0]["nodes"]
    assert isinstance(found, list)
    return found


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in JSON data."""
    if not isinstance(data, (dict, list)):
        return []
    keys = list(data) if isinstance(data, dict) else range(len(data))
    return [place for key in keys for place in [(data, key), *places(data[key])]]
