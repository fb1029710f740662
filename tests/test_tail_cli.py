"""``tadnn tail`` and ``tadnn sweep``, run in this process on a device that doesn't exist."""

from __future__ import annotations

import contextlib
import csv
import json

import mine_loader
import pytest
import torch
from studies_examples import BUDGET, write_study
from tail_examples import residual_model, residual_net

from tadnn.cli.main import run
from tadnn.latency import save_latency_model
from tadnn.nets import trace
from tadnn.search import find_study, load_spec, run_search

KERNEL = "conv2d(n=1,c=24,h=16,w=16,k=24,r=3,s=3,stride=1,pad=1,dilation=1,groups=1)"

MINE = '''\
"""Someone's own network, off its stairs."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.two = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), Residual(24),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )


def poisoned():
    made = net()
    with torch.no_grad():
        made[0].weight[0, 0, 0, 0] = float("nan")
    return made


class Deciding(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def untraceable():
    return Deciding()


def rigid():
    return nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tail")
    save_latency_model(residual_model(), folder / "latency_models" / "own")
    (folder / "net.json").write_text(json.dumps(residual_net().to_json()))
    (folder / "mine.py").write_text(MINE)
    return folder


@pytest.fixture
def tadnn_(place, monkeypatch, capsys):
    """Run a command; return its exit code, what it printed, and what it said beside."""
    monkeypatch.chdir(place)

    def call(*arguments, code=0):
        found = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        assert "Traceback" not in err
        return out, err

    return call


@pytest.fixture
def printed(tadnn_):
    return lambda *arguments: json.loads(tadnn_(*arguments, "--json")[0])


MODULE = ("mine.py:net", "--input", "1,16,16")


def test_the_report_alone(printed, tadnn_):
    record = printed("tail", "net.json", "--on", "own")
    assert record["rewrite"] is None
    assert record["latency_ms"] > 0
    assert {"name", "layers", "width", "latency_us", "share", "waves", "utilisation",
            "edge_down", "edge_up"} <= set(record["groups"][0])  # fmt: skip
    out, _ = tadnn_("tail", "net.json", "--on", "own")
    assert "the tail takes up to" in out
    assert "stays: head.classifier: it is the network's output" in out


def test_a_budget(printed, tadnn_):
    record = printed("tail", "net.json", "--on", "own", "--budget", "0.8")
    rewrite = record["rewrite"]
    assert 0.75 <= rewrite["latency_ms"] / record["latency_ms"] <= 0.8001
    assert set(rewrite["widths"]) <= {group["name"] for group in record["groups"]}
    assert rewrite["parameters"] > 0
    assert rewrite["gain"] <= rewrite["bound"]
    out, _ = tadnn_("tail", "net.json", "--on", "own", "--budget", "0.8")
    assert "rewritten" in out
    assert "no widths on these edges gain over" in out


def test_batches_and_pictures(printed, place):
    one = printed("tail", "net.json", "--on", "own")
    many = printed("tail", "net.json", "--on", "own", "--batch", "4", "--picture", "stairs.png")
    assert many["latency_ms"] > one["latency_ms"]
    assert (place / "stairs.png").read_bytes().startswith(b"\x89PNG")


def test_a_widened_module_is_written_with_its_weights(tadnn_, place):
    module = mine_loader.load(place / "mine.py").net().eval()
    x = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    tadnn_("tail", *MODULE, "--on", "own", "--widen", "--write", "wide")
    weights = mine_loader.weights(place / "wide")
    written = mine_loader.load(place / "wide" / "model.py").Model().eval()
    written.load_state_dict(weights)
    with torch.inference_mode():
        assert torch.allclose(written(x), module(x), atol=1e-5)
    assert "own" in (place / "wide" / "card.md").read_text()


def test_a_rewrite_is_fine_tuned_where_data_are_named(tadnn_, place):
    tadnn_("tail", *MODULE, "--on", "own", "--budget", "0.8", "--write", "tuned",
           "--data", "digits", "--epochs", "1")  # fmt: skip
    assert "accuracy" in (place / "tuned" / "card.md").read_text()
    preprocess = json.loads((place / "tuned" / "preprocess.json").read_text())
    assert preprocess["class_names"] == [str(digit) for digit in range(10)]


def test_measured_on_the_fake_clock(printed):
    record = printed("tail", "net.json", "--on", "own", "--budget", "0.8", "--measure",
                     "--minutes", "0.02", "--device", "fake")  # fmt: skip
    measured = record["measured"]
    assert abs(measured["again_ms"] / measured["original_ms"] - 1) < 0.1
    if record["rewrite"] is not None:
        assert measured["latency_ms"] / measured["original_ms"] < 0.9


def test_sweep(printed, tadnn_, place):
    record = printed("sweep", KERNEL, "--over", "k=8:64:8", "--on", "own", "-o", "swept")
    assert record["over"] == "k"
    assert [point["k"] for point in record["points"]] == list(range(8, 65, 8))
    assert record["points"][-1]["efficient"]
    table = list(csv.DictReader((place / "swept" / "stairs.csv").read_text().splitlines()))
    assert [int(row["k"]) for row in table] == list(range(8, 65, 8))
    assert float(table[0]["latency_us"]) == pytest.approx(
        record["points"][0]["latency_us"], rel=1e-5
    )
    assert (place / "swept" / "stairs.png").read_bytes().startswith(b"\x89PNG")
    out, _ = tadnn_("sweep", KERNEL, "--over", "k=8:32:8", "--on", "own")
    assert "latency_us" in out


def test_sweep_measured(printed):
    record = printed("sweep", KERNEL, "--over", "k=16:48:16", "--on", "own", "--measure",
                     "--device", "fake")  # fmt: skip
    for point in record["points"]:
        assert point["measured_us"] > 0
        assert point["spread_us"] >= 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tail", "net.json", "--on", "own", "--budget", "0.01"), "needs, 0."),
        (("tail", "net.json", "--on", "own", "--budget", "-1"), "positive share"),
        (("tail", "net.json", "--on", "own", "--widen", "--fastest"), "--widen and --fastest"),
        (("tail", "net.json", "--on", "own", "--write", "x"), "--write takes a rewrite"),
        (("tail", "net.json", "--on", "own", "--data", "digits"), "got no --write"),
        (("tail", "net.json", "--on", "own", "--capacity", "joy"), "got 'joy'"),
        (("tail", "net.json", "--on", "own", "--capacity", "importance"), "needs weights"),
        (("tail", "net.json", "--on", "owm"), "own"),
        (("tail", "mine.py:untraceable", "--input", "1,16,16", "--on", "own"), "mine.py"),
        (("tail", "mine.py:poisoned", "--input", "1,16,16", "--on", "own", "--widen",
          "--write", "nan"), "finite"),
        (("sweep", KERNEL, "--over", "q=1:3", "--on", "own"), "got 'q'"),
        (("sweep", KERNEL, "--over", "k=9:3", "--on", "own"), "ascends"),
        (("sweep", KERNEL, "--over", "k", "--on", "own"), "SIZE=LOW:HIGH"),
        (("sweep", KERNEL.replace(")", ",dtype=fp16)"), "--over", "k=1:3", "--on", "own"),
         "predicts fp32 kernels"),
        (("sweep", "conv(k=1)", "--over", "k=1:3", "--on", "own"), "conv"),
    ],
)  # fmt: skip
def test_bad_requests(tadnn_, place, words, message):
    before = sorted(path.name for path in place.iterdir())
    out, err = tadnn_(*words, code=2)
    assert message in err
    assert out == ""
    assert sorted(path.name for path in place.iterdir()) == before


def test_no_freedom_is_said_and_is_no_error(tadnn_):
    out, _ = tadnn_("tail", "mine.py:rigid", "--input", "1,16,16", "--on", "own", "--widen")
    assert "there is no tail to remove" in out


def test_a_traced_module_is_what_the_report_is_of(place):
    module = mine_loader.load(place / "mine.py").net()
    assert trace(module, (1, 16, 16)).net.parameters == sum(p.numel() for p in module.parameters())


def test_a_tail_aware_study_resumes_as_if_undisturbed(in_tmp_path):
    """Interrupted after a few trials, then finished: trial by trial what one run finds."""
    facts = []
    for stops in ((10,), (4, 10)):
        folder = in_tmp_path / str(len(stops))
        folder.mkdir()
        with contextlib.chdir(folder):
            for trials in stops:
                write_study(folder, tail_aware=True, trials=trials, finalists=None)
                spec = load_spec("tiny")
                result = run_search(spec, device="fake", budget=BUDGET)
            trials_ = find_study(spec).get_trials(deepcopy=False)
            facts.append([(t.number, t.params, t.values) for t in trials_])
            counts = result.record["tail_aware"]
            assert counts["distinct"] == 10
            assert counts["sampled"] >= 10
            assert any("distinct networks remained" in note for note in result.notes)
    assert facts[0] == facts[1]
