from __future__ import annotations

import json
import sys

import pytest
from search_fakes import FACTS, make_evaluator, make_spec
from studies_examples import write_space

from tadnn.errors import (
    ArchitectureError,
    CorruptFile,
    RequestError,
    ShapeError,
    SpaceError,
    TargetError,
    UnknownName,
)
from tadnn.nets import Net
from tadnn.search import resolve_target, search
from tadnn.spaces import load_space

ARCH = {"layers": 2, "channels": 16}


@pytest.fixture(autouse=True)
def here(in_tmp_path, monkeypatch):
    """A working directory with the space ``mini``."""
    write_space(in_tmp_path)
    monkeypatch.syspath_prepend(str(in_tmp_path))
    return in_tmp_path


def wanted(shape=(1, 16, 16), classes=10):
    return load_space("mini").build(ARCH, shape, classes)


def written(value, name="arch.json"):
    with open(name, "w") as file:
        json.dump(value, file)
    return name


def test_an_architecture_says_its_space_or_is_recognised_by_its_choices():
    for value in (ARCH, {"space": "mini", **ARCH}):
        target = resolve_target(written(value))
        assert (target.name, target.space, target.arch) == ("arch", "mini", ARCH)
        assert target.net == wanted()


def test_a_wrapped_architecture_may_say_input_and_classes():
    value = {"arch": ARCH, "space": "mini", "input_shape": [3, 9, 9], "classes": 7}
    assert resolve_target(written(value)).net == wanted((3, 9, 9), 7)
    # What the command line says goes first.
    assert resolve_target(written(value), (2, 5, 5)).net == wanted((2, 5, 5), 7)


def test_an_architecture_of_joined_spaces():
    joined = {"space": "mini", **{f"mini.{name}": value for name, value in ARCH.items()}}
    for value in (joined, {"arch": joined}, {"arch": joined, "space": "mini"}):
        assert resolve_target(written(value)).net == wanted()


def test_a_net_and_an_export_are_taken_as_they_are():
    net = wanted()
    target = resolve_target(written(net.to_json()))
    assert (target.net, target.space, target.arch) == (net, None, None)
    exported = {"format": "tadnn-architecture-1", "net": net.to_json(), "arch": ARCH}
    assert resolve_target(written({**exported, "space": "gone"})).net == net
    # Another input goes through the same layers.
    assert resolve_target(written(net.to_json()), (1, 8, 8)).net == wanted((1, 8, 8))


def test_a_callable_of_a_file_or_a_module(here):
    (here / "nets_of_mine.py").write_text(
        "from tadnn import load_space\n"
        f"def mine():\n    return load_space('mini').build({ARCH}, (1, 16, 16), 10)\n"
    )
    assert resolve_target("nets_of_mine.py:mine").net == wanted()
    assert resolve_target("nets_of_mine:mine", (1, 8, 8)).net == wanted((1, 8, 8))
    assert resolve_target(f"{here}/nets_of_mine.py:mine").name == "mine"
    sys.modules.pop("nets_of_mine")


def test_a_trial_of_a_study(here):
    spec = make_spec(here, trials=2)
    (here / "study.yaml").write_text(json.dumps(spec.canonical()))
    study, _ = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    target = resolve_target("./study.yaml#1")
    assert target.arch == study.trials[1].params
    assert target.name == "study#1"
    with pytest.raises(TargetError, match="no evaluated trial 2; it has 2, from 0 to 1"):
        resolve_target("./study.yaml#2")
    with pytest.raises(TargetError, match="ends in a trial's number; got 'x'"):
        resolve_target("./study.yaml#x")


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ([1, 2], TargetError, "neither a Net nor an architecture"),
        ({"space": "minni", **ARCH}, UnknownName, "did you mean 'mini'"),
        ({"space": "mini", "layers": 2}, ArchitectureError, "channels"),
        ({"space": "mini", **ARCH, "widht": 8}, ArchitectureError, "widht"),
        ({"space": "mini", **ARCH, "channels": 9}, ArchitectureError, "channels.*9"),
        (
            {"nothing": "known"},
            TargetError,
            'no known space; add "space": one of mbconv, mini, nasb',
        ),
        ({"arch": ARCH, "input_shape": [1, "a", 3]}, TargetError, "input_shape holds positive"),
        ({"arch": ARCH, "input_shape": 3}, TargetError, "input_shape holds positive.*got 3"),
        ({"arch": ARCH, "classes": "ten"}, TargetError, "classes holds positive.*ten"),
        ({"arch": ARCH, "classes": True}, TargetError, "classes holds positive.*True"),
        ({"format": "onnx"}, RequestError, "tadnn-net-1.*'onnx'"),
    ],
)
def test_what_is_no_network_is_refused(value, error, said):
    with pytest.raises(error, match=said):
        resolve_target(written(value))


def test_a_broken_space_of_somebody_elses_is_no_hindrance(here):
    (here / "search_spaces" / "broken.py").write_text("raise ValueError('no')\n")
    assert resolve_target(written(ARCH)).space == "mini"
    with pytest.raises(SpaceError, match=r"broken\.py, line 1, raised ValueError: no"):
        resolve_target(written({"space": "broken", **ARCH}))


def test_shapes_that_do_not_fit_name_the_layer(here):
    text = 'net.add("head", head(classes))'
    space = (here / "search_spaces" / "mini.py").read_text()
    too_early = f"{text}\n    net.add('late', conv(8))"
    write_space(here, "wrong", space.replace(text, too_early))
    with pytest.raises(ShapeError, match="block late, layer conv "):
        resolve_target(written({"space": "wrong", **ARCH}))
    net = wanted().to_json()
    net["chain"] += net["chain"][:1]
    with pytest.raises(ShapeError, match="conv0"):
        resolve_target(written(net))
    net["chain"][-1] = ["late", net["chain"][-1][1]]
    with pytest.raises(ShapeError, match="block late, layer conv "):
        resolve_target(written(net))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("nothing", TargetError, r"^a TARGET is file\.py:callable.*; got 'nothing'"),
        ("missing.json", RequestError, r"no such file: missing\.json"),
        ("missing.py:net", TargetError, r"no such file: missing\.py"),
        ("no.such.module:net", TargetError, r"cannot import no\.such\.module"),
        ("nets.py:ent", UnknownName, "callable of nets.py 'ent'; did you mean 'net'"),
        ("nets.py:raises", TargetError, r"nets\.py:raises\(\) raised KeyError: 'oh'"),
        ("nets.py:exits", TargetError, r"nets\.py:exits\(\) raised SystemExit: 3"),
        ("nets.py:number", TargetError, "returns a tadnn Net or a torch nn.Module; got int"),
        ("nets.py:constant", UnknownName, "callable of nets.py 'constant'"),
        ("broken.py:net", TargetError, r"broken\.py raised ZeroDivisionError"),
        ("leaves.py:net", TargetError, r"leaves\.py raised SystemExit"),
        ("damaged.json", CorruptFile, r"damaged\.json is not valid JSON.*line 1"),
        ("nostudy#1", UnknownName, "unknown study 'nostudy'"),
        ("nostudy.yaml#1", RequestError, r"no such study file: nostudy\.yaml"),
    ],
)
def test_targets_that_name_no_network(here, text, error, said):
    (here / "nets.py").write_text(
        "constant = 3\n"
        "def net(): pass\n"
        "def raises(): raise KeyError('oh')\n"
        "def exits(): raise SystemExit(3)\n"
        "def number(): return 3\n"
    )
    (here / "broken.py").write_text("1 / 0\n")
    (here / "leaves.py").write_text("import sys; sys.exit()\n")
    (here / "damaged.json").write_text('{"space": ')
    with pytest.raises(error, match=said):
        resolve_target(text)


def test_another_input_must_fit_too():
    net = written(wanted((1, 16, 16)).to_json())
    assert isinstance(resolve_target(net, (1, 1, 1)).net, Net)
    with pytest.raises((ShapeError, RequestError)):
        resolve_target(net, (1, 0, 4))
