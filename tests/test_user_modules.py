"""People's own modules as TARGETs and in search spaces, through the command line too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from latency_fakes import SETTING, rows
from studies_examples import run as run_study
from studies_examples import write_space, write_study

from tadnn.cli.main import run
from tadnn.errors import RequestError, SpaceError, TargetError, TraceError
from tadnn.files import read_json
from tadnn.kernels import Kernel
from tadnn.latency import fit_kernels, save_latency_model
from tadnn.profiling import FakeClock
from tadnn.search import resolve_target
from tadnn.spaces import load_space

MINE = """\
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self, width=8, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.fc(self.drop(x.mean((2, 3))))


class Wide(Small):
    def __init__(self, width):
        super().__init__(width)


ready = Small(width=4)
number = 3


def small(pretrained=False, **kwargs):
    return Small(**kwargs)


def needs(width):
    return Small(width)


def two():
    return 2


def gone():
    raise FileNotFoundError("weights.pt")


class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x)


class TakesComplex(nn.Module):
    def forward(self, x):
        return torch.view_as_real(x)


class Depends(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, x):
        return self.table(x)


class Breaks(nn.Module):
    def forward(self, x):
        return torch.tensor(x.flatten().tolist())


class Two(nn.Module):
    def forward(self, x, y):
        return x + y


class Cumulative(nn.Module):
    def forward(self, x):
        return torch.logcumsumexp(torch.relu(x), dim=2)
"""

SPACE = """\
from torch import nn
from tadnn.spaces import Categorical, Int

default_input = (1, 16, 16)
default_classes = 10
choices = {"layers": Int(1, 2), "width": Int(8, 24, step=8), "act": Categorical("relu", "gelu")}
built = []


def build(arch, input_shape, classes):
    built.append(arch)
    layers, channels = [], input_shape[0]
    for _ in range(arch["layers"]):
        layers += [nn.Conv2d(channels, arch["width"], 3, padding=1), nn.BatchNorm2d(arch["width"])]
        layers += [nn.ReLU() if arch["act"] == "relu" else nn.GELU()]
        channels = arch["width"]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers, *head)
"""
ARCH = {"layers": 2, "width": 16, "act": "relu"}


@pytest.fixture
def here(in_tmp_path: Path) -> Path:
    (in_tmp_path / "mine.py").write_text(MINE)
    return in_tmp_path


@pytest.fixture
def model(here: Path) -> str:
    """The name of a latency model of the working directory."""
    clock = FakeClock(SETTING)
    kernels = [Kernel.of("linear", m=m, n=n, k=64) for m in (1, 4, 16) for n in (8, 32, 64, 256)]
    fitted = fit_kernels("small", [(clock.device, rows(clock, kernels))], SETTING)
    save_latency_model(fitted, here / "latency_models" / "small")
    return "small"


class TestTarget:
    @pytest.mark.parametrize("name", ["Small", "small"])
    def test_a_class_or_a_function_that_makes_a_module(self, here, name):
        target = resolve_target(f"mine.py:{name}", (3, 32, 32))
        assert (target.name, target.net.input_shape) == (name, (3, 32, 32))
        assert target.net.output_shape() == (1, 5)
        assert target.net.flops() == 2 * (8 * 27 * 32 * 32 + 8 * 5)
        assert target.net.parameters == 8 * 27 + 8 + 2 * 8 + 8 * 5 + 5

    def test_a_module_that_stands_there_ready_keeps_its_weights_and_is_left_alone(self, here):
        target = resolve_target("mine.py:ready", (3, 8, 8))
        module = sys.modules["tadnn_user_mine"].ready
        assert module.training
        assert all(p.requires_grad for p in module.parameters())
        assert target.traced is not None
        assert target.traced.net == target.net
        x = torch.randn(2, 3, 8, 8)
        with torch.no_grad():
            got, wanted = target.traced.to_module().eval()(x), module.eval()(x)
        torch.testing.assert_close(got, wanted)

    def test_what_is_no_module_has_no_weights(self, here):
        assert resolve_target(json_net(here)).traced is None

    def test_without_an_input_it_is_that_of_photographs(self, here):
        assert resolve_target("mine.py:small").net.input_shape == (3, 224, 224)

    def test_an_installed_package(self):
        net = resolve_target("torch.nn:Identity", (3, 4, 4)).net
        assert net.output_shape() == (1, 3, 4, 4)

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("two", "mine.py:two() returns a tadnn Net or a torch nn.Module; got int"),
            ("number", "unknown callable of mine.py 'number'"),
            ("gone", "mine.py:gone() raised FileNotFoundError: weights.pt"),
            ("needs", "without arguments; mine.py:needs: missing a required argument: 'width'"),
            ("Wide", "without arguments; mine.py:Wide: missing a required argument: 'width'"),
        ],
    )  # fmt: skip
    def test_what_names_no_network(self, here, name, said):
        with pytest.raises(RequestError, match=re.escape(said)):
            resolve_target(f"mine.py:{name}")

    def test_a_package_that_fails_to_import(self, here, monkeypatch):
        monkeypatch.syspath_prepend(str(here))
        (here / "failing.py").write_text("raise RuntimeError('operator x::y does not exist')")
        with pytest.raises(TargetError, match="failing raised RuntimeError: operator x::y does"):
            resolve_target("failing:net")


class TestSpace:
    def test_reads_the_modules_that_it_builds_once(self, here):
        space = load_space(write_space(here, "modules", SPACE))
        net = space.build(ARCH)
        assert net.output_shape() == (1, 10)
        assert net.flops() == 2 * (16 * 9 * 256 + 16 * 16 * 9 * 256 + 160)
        built = sys.modules["tadnn_space_modules"].built
        assert space.build(dict(reversed(ARCH.items()))) is net
        assert space.narrow({"width": [8, 16]}).build(ARCH) is net
        assert built == [ARCH]
        assert space.build(ARCH, (1, 8, 8)).input_shape == (1, 8, 8)
        assert space.build(ARCH, None, 3).output_shape() == (1, 3)
        assert len(built) == 3

    def test_the_network_is_the_same_whatever_weights_the_module_had(self, here):
        path = write_space(here, "modules", SPACE)
        first, second = (load_space(path).build(ARCH) for _ in range(2))
        assert first == second
        assert first.key == second.key

    def test_a_module_that_cannot_be_read_is_named_with_its_architecture(self, here):
        text = SPACE.replace("return nn.Sequential(", "return nn.Sequential(nn.Linear(7, 7), ")
        space = load_space(write_space(here, "modules", text))
        with pytest.raises(
            TraceError, match=r"space modules builds a module .*'width': 16"
        ) as error:
            space.build(ARCH)
        assert "1x16x16" in str(error.value) or "16" in str(error.value)

    def test_something_else(self, here):
        text = SPACE.replace("return nn.Sequential(*layers, *head)", "return layers")
        space = load_space(write_space(here, "modules", text))
        with pytest.raises(SpaceError, match=r"a tadnn Net or a torch nn\.Module; got list"):
            space.build(ARCH)

    def test_a_study_of_modules_goes_from_yaml_to_export(self, here):
        write_space(here, "modules", SPACE)
        finalists = {"count": 1, "epochs": 1, "measure": True}
        changes = {"overrides": {"act": "relu"}, "trials": 3, "finalists": finalists}
        write_study(here, name="mods", space="modules", **changes)
        _, result = run_study("mods")
        member = next(m for m in result.record["members"] if m["measured"])
        assert run(["export", "mods", "-o", "out", "--trial", str(member["trial"])]) == 0
        assert read_json(here / "out" / "architecture.json")["space"] == "modules"
        program = (
            "import torch, model; print(tuple(model.Model()(torch.zeros(2, 1, 16, 16)).shape))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=here / "out", capture_output=True, text=True
        )
        assert done.stdout == "(2, 10)\n", done.stderr


class TestCommandLine:
    def test_latency_names_what_it_does_not_understand(self, here, model, capsys):
        command = ["latency", "mine.py:Cumulative", "--on", model, "--input", "3,16,16"]
        assert run([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["opaque"] == [{"op": "aten.logcumsumexp.default", "count": 1}]
        assert not found["in_range"]
        assert run(command) == 0
        out = capsys.readouterr().out
        assert "not understood, roughly priced: aten.logcumsumexp.default, 1 times" in out

    def test_token_numbers_are_an_input_of_one_size(self, here, model, capsys):
        assert run(["latency", "mine.py:Tokens", "--on", model, "--input", "6", "--json"]) == 0
        (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
        assert kernel["kernel"] == "embedding(rows=6,cols=4,count=10,dtype=fp32)"

    def test_profile_measures_the_kernels_of_a_module(self, here, capsys):
        command = ["profile", "--name", "mine", "--net", "mine.py:small", "--input", "3,16,16"]
        bigger = ["--net", "mine.py:ready", "--device", "fake", "--threads", "1", "--kernels", "10"]
        assert run([*command, *bigger, "--json"]) == 0, capsys.readouterr().err
        out = capsys.readouterr().out
        assert json.loads(out)["latency_model"] == "mine"

    @pytest.mark.parametrize(
        ("name", "shape", "said"),
        [
            # The shape error is torch's, with the line that raised it.
            ("small", "1,16,16", r"mine.py:small .*1,16,16.*expected input.* to have 3 channels"),
            ("small", "16", r"mine.py:small with the input 16 \(--input\): "),
            ("Depends", "3,8,8", r"(?s)data.dependent.*mine\.py.*line 6\d|mine\.py:6\d"),
            ("Breaks", "3,8,8", r"mine\.py"),
            ("Complex", "3,8,8", r"complex"),
            ("TakesComplex", "3,8,8", r"mine.py:TakesComplex .*complex"),
            ("Two", "3,8,8", r"mine.py:Two .*argument.*'?y'?"),
        ],
    )
    def test_what_cannot_be_read(self, here, model, capfd, name, shape, said):
        code = run(["latency", f"mine.py:{name}", "--on", model, "--input", shape])
        out, err = capfd.readouterr()
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        assert err.startswith("error: ")
        assert re.search(said, err), err


def json_net(folder: Path) -> str:
    net = resolve_target("mine.py:small", (3, 8, 8)).net
    (folder / "net.json").write_text(json.dumps(net.to_json()))
    return "net.json"
