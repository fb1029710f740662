from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from spaces_examples import FAMILY, build_any, layer, make

from tadnn.errors import RequestError, ShapeError, SpaceError, UnknownName
from tadnn.nets import BlockBuilder, GlobalAvgPool, Net, NetBuilder, block
from tadnn.spaces import Int, Space, load_space


@pytest.fixture(scope="module")
def resnet() -> Space:
    return load_space("resnet")


class TestBuild:
    def test_defaults(self, resnet: Space) -> None:
        arch = resnet.sample(1, seed=0)[0]
        net = resnet.build(arch)
        assert net.input_shape == (3, 224, 224)
        assert net.output_shape() == (1, 1000)
        assert resnet.build(arch, (1, 32, 32), 10).output_shape(4) == (4, 10)

    def test_values_without_effect_do_not_reach_it(self) -> None:
        seen = []

        def build(arch: dict[str, Any], input_shape: tuple[int, ...], classes: int) -> Net:
            seen.append((arch, input_shape, classes))
            return build_any(arch, input_shape, classes)

        space = Space("toy", FAMILY, build, (1, 2, 2), 7)
        space.build({"width": 8, "kind": "plain", "depth": 3}, [4, 5])  # type: ignore[arg-type]
        assert seen == [({"kind": "plain", "width": 8}, (4, 5), 7)]

    @pytest.mark.parametrize("shape", [3, "3,32,32", (), (3, 0, 32), (3, 32.0, 32), (3, "32", 32)])
    def test_input_shapes(self, resnet: Space, shape: Any) -> None:
        with pytest.raises(RequestError, match="an input shape has positive whole sizes"):
            resnet.build(resnet.sample(1, seed=0)[0], shape)

    @pytest.mark.parametrize("classes", [0, -1, "10", 2.5])
    def test_classes(self, resnet: Space, classes: Any) -> None:
        with pytest.raises(RequestError, match="out of Linear is a whole number"):
            resnet.build(resnet.sample(1, seed=0)[0], (3, 32, 32), classes)

    def test_shapes_that_do_not_fit_name_the_layer(self) -> None:
        def build(arch: dict[str, Any], input_shape: tuple[int, ...], classes: int) -> Net:
            net = NetBuilder(input_shape)
            net.add("first", layer(arch["a"]))
            net.add("second", pool())
            return net.build()

        space = Space("toy", {"a": Int(1, 2)}, build)
        with pytest.raises(ShapeError) as caught:
            space.build({"a": 2})
        assert str(caught.value) == (
            "block second, layer pool (GlobalAvgPool): takes an input of 4 dimensions; got [1, 2]"
        )

    def test_a_layer_too_large_to_count_is_named(self) -> None:
        space = make({"a": Int(1, 2)})
        with pytest.raises(
            ShapeError, match=r"block a_1, layer linear \(Linear\): sizes are from 1"
        ):
            space.build({"a": 1}, (1, 2**20, 2**20))

    def test_code_that_raises(self) -> None:
        def build(arch: dict[str, Any], input_shape: tuple[int, ...], classes: int) -> Net:
            raise KeyError(arch["a"])

        space = Space("toy", {"a": Int(1, 2)}, build)
        with pytest.raises(SpaceError) as caught:
            space.build({"a": 2})
        message = str(caught.value)
        assert message.startswith("build() of space toy raised KeyError: 2 (")
        line = build.__code__.co_firstlineno + 1
        assert message.endswith(f"{Path(__file__).name}, line {line}) for {{'a': 2}}")

    def test_code_that_returns_something_else(self) -> None:
        space = Space("toy", {"a": Int(1, 2)}, lambda *_: 3)  # type: ignore[arg-type, return-value]
        with pytest.raises(SpaceError, match=r"returns a tadnn Net or a torch nn\.Module; got int"):
            space.build({"a": 1})


@block
def pool(b: BlockBuilder) -> None:
    b.add(GlobalAvgPool(), name="pool")


GOOD_FILE = """
from tadnn.nets import BlockBuilder, Flatten, Linear, NetBuilder, block
from tadnn.spaces import Categorical, Int

default_input = (1, 4, 4)
default_classes = 3
choices = {"width": Int(1, 4), "deep": Categorical(True, False)}

@block
def body(b, width, classes):
    b.add(Flatten(), name="flat")
    b.add(Linear(width), name="hidden")
    b.add(Linear(classes), name="out")

def build(arch, input_shape, classes):
    net = NetBuilder(input_shape)
    net.add("body", body(arch["width"], classes))
    return net.build()
"""


class TestFiles:
    def write(self, folder: Path, content: str, name: str = "mine.py") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(content)
        return path

    def test_by_path(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, GOOD_FILE)
        for given in (path, str(path)):
            space = load_space(given)
            assert space.name == "mine"
            assert space.default_input == (1, 4, 4)
            assert space.default_classes == 3
            assert space.size() == 8
            assert space.build({"width": 2, "deep": True}).output_shape() == (1, 3)

    def test_defaults(self, tmp_path: Path) -> None:
        content = GOOD_FILE.replace("default_", "other_")
        space = load_space(self.write(tmp_path, content))
        assert (space.default_input, space.default_classes) == ((3, 224, 224), 1000)

    def test_the_hash_follows_the_file(self, tmp_path: Path) -> None:
        first = load_space(self.write(tmp_path, GOOD_FILE))
        again = load_space(self.write(tmp_path, GOOD_FILE))
        changed = load_space(self.write(tmp_path, GOOD_FILE + "# changed\n"))
        assert first.hash == again.hash != changed.hash
        assert first.source_hash != changed.source_hash

    def test_the_working_directory_adds_and_overrides(self, in_tmp_path: Path) -> None:
        assert load_space("resnet").default_input == (3, 224, 224)
        self.write(in_tmp_path / "search_spaces", GOOD_FILE)
        self.write(in_tmp_path / "search_spaces", GOOD_FILE, "resnet.py")
        assert load_space("mine").default_input == (1, 4, 4)
        assert load_space("resnet").default_input == (1, 4, 4)

    def test_unknown_names(self, in_tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="unknown space 'resnt'; did you mean 'resnet'"):
            load_space("resnt")
        with pytest.raises(UnknownName, match=r"unknown space '../search_spaces/resnet'"):
            load_space("../search_spaces/resnet")

    def test_no_such_file(self, in_tmp_path: Path) -> None:
        with pytest.raises(RequestError, match=r"no such file: absent\.py"):
            load_space("absent.py")

    def test_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "folder.py").mkdir()
        with pytest.raises(RequestError, match=r"cannot read .*folder\.py: "):
            load_space(tmp_path / "folder.py")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("x = 1\nraise ValueError('no luck')\n", ", line 2, raised ValueError: no luck"),
            ("x = 1\n\n1 / 0\n", ", line 3, raised ZeroDivisionError: division by zero"),
            ("def f():\n    assert False\n\nf()\n", ", line 2, raised AssertionError"),
            ("import sys\nsys.exit()\n", ", line 2, raised SystemExit"),
            ("import absent_package\n", ", line 1, raised ModuleNotFoundError: No module named"),
            (
                "from tadnn.spaces import Int\nchoices = {'a': Int(3, 1)}\n",
                ", line 2, raised SpaceError: an integer choice has low <= high",
            ),
            ("def f(:\n", "is not valid Python: invalid syntax"),
            ("x = '\x00'\n", "is not valid Python: "),
            ("x = 1\n", "defines choices and build; "),
            (GOOD_FILE.replace("def build", "def built"), "has no build"),
            (GOOD_FILE.replace("choices =", "choice ="), "has no choices"),
            (GOOD_FILE + "choices = [1]\n", "choices is a dict and build a function"),
            (GOOD_FILE + "build = 3\n", "choices is a dict and build a function"),
            (GOOD_FILE + "choices = {}\n", ": a space has at least one choice; mine has none"),
            (GOOD_FILE + "choices['a'] = 3\n", ": a of mine is an Int or a Categorical; got 3"),
            (GOOD_FILE + "choices['space'] = Int(1, 2)\n", ": no choice is called 'space'"),
            (GOOD_FILE + "default_input = 'abc'\n", ": an input shape has positive whole sizes"),
            (
                GOOD_FILE + "default_classes = None\n",
                ": default_classes is a positive whole number",
            ),
            (
                GOOD_FILE + "choices['a'] = Int(1, 2, when={'width': (4, 5)})\n",
                ": a depends on a value of width (1 to 4); got 5",
            ),
            (
                GOOD_FILE + "choices['a'] = Int(1, 2, when={'deep': (1,)})\n",
                ": a depends on a value of deep (True, False); got 1",
            ),
        ],
    )
    def test_broken_files(self, tmp_path: Path, content: str, message: str) -> None:
        path = self.write(tmp_path, content)
        with pytest.raises(SpaceError, match=re.escape(message)) as caught:
            load_space(path)
        assert str(path) in str(caught.value)

    def test_undecodable(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.py"
        path.write_bytes(b"x = '\xff\xfe'\n")
        with pytest.raises(SpaceError, match="is not valid Python"):
            load_space(path)

    def test_build_raising_for_an_architecture(self, tmp_path: Path) -> None:
        content = GOOD_FILE.replace(
            "    return net", "    assert arch['width'] < 4, 'too wide'\n    return net"
        )
        space = load_space(self.write(tmp_path, content))
        line = content[: content.index("assert")].count("\n") + 1
        space.build({"width": 3, "deep": True})
        with pytest.raises(SpaceError) as caught:
            space.build({"width": 4, "deep": True})
        assert str(caught.value) == (
            "build() of space mine raised AssertionError: too wide "
            f"({tmp_path / 'mine.py'}, line {line}) for {{'width': 4, 'deep': True}}"
        )

    def test_layers_with_impossible_values(self, tmp_path: Path) -> None:
        content = GOOD_FILE.replace('arch["width"]', 'arch["width"] - 1')
        space = load_space(self.write(tmp_path, content))
        with pytest.raises(ShapeError, match=r"out of Linear is a whole number from 1 .*; got 0"):
            space.build({"width": 1, "deep": True})
