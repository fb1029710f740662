from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import ExportedProgram

from tadnn.accuracy import load_dataset
from tadnn.accuracy.digits import read_digits
from tadnn.errors import RequestError, Unwritable, WorkFailed
from tadnn.export import (
    CardFacts,
    ExportRequest,
    Measured,
    PhaseLatency,
    Predicted,
    ProxyScore,
    Trained,
    export_network,
    forms,
)
from tadnn.nets import (
    Add,
    BatchNorm2d,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    Net,
    NetBuilder,
    ReLU,
)

FILES = [
    "architecture.json",
    "card.md",
    "model.onnx",
    "model.pt2",
    "model.py",
    "preprocess.json",
    "run.py",
    "weights.safetensors",
    "SHA256SUMS",
]
TEXTS = ["architecture.json", "card.md", "model.py", "preprocess.json", "run.py", "SHA256SUMS"]
SHAPE = (1, 12, 12)


def small_net(classes: int = 10, width: int = 6) -> Net:
    stem = BlockBuilder()
    stem.add(Conv2d(width, 3), stem.input)
    norm = stem.add(BatchNorm2d())
    relu = stem.add(ReLU())
    stem.add(Add(), norm, relu)
    head = BlockBuilder()
    head.add(GlobalAvgPool(), head.input)
    head.add(Flatten())
    head.add(Linear(classes))
    net = NetBuilder(SHAPE)
    net.add("stem", stem.build("stem"))
    net.add("head", head.build("head"))
    return net.build()


def facts(**changes: Any) -> CardFacts:
    known: dict[str, Any] = {
        "study": "quickstart",
        "trial": 57,
        "study_seed": 4,
        "device": "Imaginary CPU",
        "setting": "torch-eager fp32, 2 threads",
        "batch": 2,
        "latency_model": "imaginary",
        "latency_model_error": 8.0,
        "predicted": Predicted(1.05, 0.05, in_range=True),
        "measured": Measured(1.0, 0.02, 30),
        "trained": Trained(0.9625, 20, "test"),
        "proxy": ProxyScore("naswot", 812.5),
        "environment": {"torch": "2.13.0"},
    }
    return CardFacts(**{**known, **changes})


def trained_module(net: Net) -> torch.nn.Module:
    """A module whose running statistics are not the initial ones."""
    module = net.to_module(seed=1)
    with torch.no_grad():
        module(torch.randn((8, *SHAPE), generator=torch.Generator().manual_seed(2)))
    return module


class Exported:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dataset = load_dataset("digits", SHAPE)
        self.net = small_net()
        self.module = trained_module(self.net)
        self.sample = self.dataset.splits["test"].images[:5]
        request = ExportRequest(
            self.net,
            facts(),
            arch={"width": 6},
            space="small",
            module=self.module,
            preprocess=self.dataset.preprocess(),
            sample=self.sample,
        )
        self.paths = export_network(folder, request)
        assert self.module.training, "the caller's module is left as it was"
        self.module.eval()

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.module(inputs)

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("export") / "knee")


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the slow exporter out of tests of everything around it."""

    def write(request: ExportRequest, program: ExportedProgram, folder: Path) -> Any:
        (folder / "model.onnx").write_bytes(b"stand-in")
        return program.module(), 18

    monkeypatch.setattr(forms, "write_onnx", write)


def isolated(code: str, *arguments: Path) -> str:
    blocked = "import sys; sys.modules['tadnn'] = None\n"
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", blocked + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_folder_is_complete_and_hashes_match(exported: Exported) -> None:
    assert exported.paths == [exported.folder / name for name in FILES]
    assert sorted(p.name for p in exported.folder.iterdir()) == sorted(FILES)
    status, *lines = (exported.folder / "SHA256SUMS").read_text().splitlines()
    assert status == "# Weights: trained for 20 epochs, accuracy 0.9625 on the test split."
    assert [line[66:] for line in lines] == FILES[:-1]
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((exported.folder / name).read_bytes()).hexdigest() == digest
    assert [p.name for p in exported.folder.parent.iterdir()] == ["knee"]
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=exported.folder, check=True)


def test_model_loads_without_tadnn(exported: Exported, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    inputs = torch.randn((4, *SHAPE), generator=torch.Generator().manual_seed(9))
    save_file({"inputs": inputs}, tmp_path / "inputs.safetensors")
    isolated(
        """
import torch
from safetensors.torch import load_file, save_file
folder, work = sys.argv[1:]
sys.path.insert(0, folder)
from model import Model
model = Model()
model.load_state_dict(load_file(folder + "/weights.safetensors"))
with torch.no_grad():
    outputs = model.eval()(load_file(work + "/inputs.safetensors")["inputs"])
save_file({"outputs": outputs}, work + "/outputs.safetensors")
""",
        exported.folder,
        tmp_path,
    )
    outputs = load_file(tmp_path / "outputs.safetensors")["outputs"]
    assert torch.allclose(outputs, exported.outputs(inputs), rtol=0, atol=1e-4)
    assert outputs.abs().max() > 0.01, "something to compare"


def test_example_runs_with_onnxruntime_alone(exported: Exported) -> None:
    out = isolated(
        "sys.modules['torch'] = None\nimport runpy\nrunpy.run_path(sys.argv[1])",
        exported.folder / "run.py",
    )
    assert out.startswith("output (2, 10), median ")


def test_what_the_page_says_of_loading_works(exported: Exported) -> None:
    page = (Path(__file__).parents[1] / "docs" / "exports.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:3]
    assert ["Model()" in blocks[0], "model.pt2" in blocks[1], "model.onnx" in blocks[2]] == [
        True
    ] * 3
    before = """
import os
import numpy
folder = sys.argv[1]
os.chdir(folder)
sys.path.insert(0, folder)
batch = numpy.zeros((2, 1, 12, 12), numpy.float32)
"""
    out = isolated(before + "\n".join(blocks) + "\nprint(logits.shape)", exported.folder)
    assert out == "(2, 10)\n"


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_onnx_gives_the_modules_outputs_at_any_batch(exported: Exported, batch: int) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        exported.folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    inputs = exported.dataset.splits["train"].images[:batch]
    (outputs,) = session.run(["output"], {"input": inputs.numpy()})
    expected = exported.outputs(inputs)
    assert torch.allclose(torch.from_numpy(outputs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 7])
def test_program_gives_the_modules_outputs_at_any_batch(exported: Exported, batch: int) -> None:
    program = torch.export.load(exported.folder / "model.pt2").module()
    inputs = exported.dataset.splits["train"].images[:batch]
    with torch.no_grad():
        assert torch.allclose(program(inputs), exported.outputs(inputs), rtol=0, atol=1e-4)


def test_architecture_is_the_network(exported: Exported) -> None:
    record = exported.json("architecture.json")
    assert record["space"] == "small"
    assert record["arch"] == {"width": 6}
    assert record["input_shape"] == [1, 12, 12]
    assert record["classes"] == 10
    assert Net.from_json(record["net"]) == exported.net


def test_preprocess_json_is_enough_to_make_inputs(exported: Exported) -> None:
    how = exported.json("preprocess.json")
    raw = read_digits().splits["test"].images[:20]
    assert list(raw.shape[1:]) == how["raw_shape"]
    low, high = how["value_range"]
    values = (raw - low) / (high - low)
    values = F.interpolate(
        values,
        size=how["resize"]["size"],
        mode=how["resize"]["mode"],
        align_corners=how["resize"]["align_corners"],
        antialias=how["resize"]["antialias"],
    ).repeat(1, how["repeat_channels"], 1, 1)
    mean, std = (torch.tensor(how[key])[:, None, None] for key in ("mean", "std"))
    expected = exported.dataset.splits["test"].images[:20]
    assert torch.allclose((values - mean) / std, expected, rtol=0, atol=1e-5)
    assert how["class_names"] == [str(digit) for digit in range(10)]
    assert how["layout"] == "NCHW"


def test_card_says_what_is_known(exported: Exported) -> None:
    card = (exported.folder / "card.md").read_text()
    assert card.startswith("# quickstart #57\n")
    for fact in (
        "study quickstart, trial 57, study seed 4",
        "| predicted | 1.05 ms, standard deviation 0.05 ms, by imaginary |",
        "| measured | 1 ms, spread 0.02 ms (median of 30 repeats) |",
        "| batch | 2 |",
        "| device | Imaginary CPU |",
        "| prediction | 5.0 % (0.05 ms) above the measurement |",
        "| accuracy | 0.9625 on the test split |",
        "| data set | digits |",
        "| licence of the data | CC BY 4.0; E. Alpaydin",
        "naswot 812.5",
        # conv 6*9, norm 2*6, linear 60 + 10
        "| parameters | 136 |",
        # 2 * 144 * 6 * 9 for the convolution, 2 * 60 for the classifier; two inputs
        "| FLOPs | 31,344 at batch 2, two per multiply-add |",
        "opset 18",
        "on 5 real inputs",
        "on 1 random input",
        "on 3 random inputs",
        "| torch | 2.13.0 |",
    ):
        assert fact in card
    assert "UNTRAINED" not in card
    assert "WARNING" not in card


def test_untrained_is_said_in_every_text(tmp_path: Path, without_onnx: None) -> None:
    preprocess = load_dataset("digits", SHAPE).preprocess()
    request = ExportRequest(small_net(), CardFacts(), weights_seed=3, preprocess=preprocess)
    export_network(tmp_path / "net", request)
    for name in TEXTS:
        text = (tmp_path / "net" / name).read_text()
        assert "UNTRAINED: the weights are random, drawn with seed 3" in text, name
    card = (tmp_path / "net" / "card.md").read_text()
    assert "| predicted | not predicted |" in card
    assert "| measured | not measured: what is predicted is all there is |" in card


def test_without_a_data_set_preprocess_json_says_what_the_input_must_be(
    tmp_path: Path, without_onnx: None
) -> None:
    export_network(tmp_path / "net", ExportRequest(small_net(), CardFacts()))
    how = json.loads((tmp_path / "net" / "preprocess.json").read_text())
    assert (how["layout"], how["dtype"], how["input_shape"]) == ("NCHW", "float32", [1, 12, 12])
    assert how["mean"] is how["std"] is how["resize"] is how["class_names"] is None
    assert how["formula"].startswith("unknown: no data set was handed in")
    assert "no data set was handed in" in (tmp_path / "net" / "card.md").read_text()


@pytest.mark.parametrize(
    ("predicted", "std", "expected"),
    [
        (1.05, 0.05, None),
        (1.09, 0.05, None),
        (0.90, 0.20, None),
        (1.11, 0.05, "11.0 % (0.11 ms) above the measurement"),
        (0.50, 0.05, "50.0 % (0.5 ms) below the measurement"),
    ],
)
def test_disagreement_beyond_the_models_error_is_said(
    predicted: float, std: float, expected: str | None
) -> None:
    text = facts(predicted=Predicted(predicted, std, in_range=True)).disagreement()
    if expected is not None:
        deviations = "more than two standard deviations of the prediction (0.1 ms)"
        expected = f"the prediction is {expected}, {deviations}"
    assert text == expected


@pytest.mark.parametrize(
    ("predicted", "spread", "said"),
    [
        (1.079, 0.02, False),  # within the 8 % that the model errs
        (1.09, 0.02, True),
        (1.09, 0.10, False),  # the measurement itself is no better known
        (0.91, 0.02, True),
        (1.11, 0.02, False),  # two deviations are 0.1: that is a warning
    ],
)
def test_a_gap_beyond_the_mean_error_is_noted(predicted: float, spread: float, said: bool) -> None:
    card = facts(
        predicted=Predicted(predicted, 0.05, in_range=True), measured=Measured(1.0, spread, 30)
    )
    text = card.remark()
    assert (text is not None) is said
    if text is not None:
        assert re.match(r"the prediction is 9\.0 % \(0\.09 ms\) (above|below) the measur", text)
        assert "more than the latency model's error of 8.0 % on average" in text
    assert facts(latency_model_error=None).remark() is None


def test_phases_are_compared_too() -> None:
    off = PhaseLatency("decode", Predicted(2.0, 0.1, in_range=True), Measured(1.0, 0.01, 7))
    card = facts(phases=(off, PhaseLatency("prefill")))
    assert "the prediction of decode is 100.0 % (1 ms) above" in (card.disagreement() or "")
    assert [text.partition(" is ")[0] for text in card.agreement()] == [
        "the prediction", "the prediction of decode"
    ]  # fmt: skip


def test_disagreement_and_range_are_loud_on_the_card(tmp_path: Path, without_onnx: None) -> None:
    card = facts(predicted=Predicted(2.0, 0.1, in_range=False), trained=None)
    export_network(tmp_path / "net", ExportRequest(small_net(), card))
    text = (tmp_path / "net" / "card.md").read_text()
    assert "> **WARNING: the prediction is 100.0 % (1 ms) above the measurement" in text
    assert "> **WARNING: the prediction is outside of the range" in text


def test_a_form_that_differs_fails_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(request: ExportRequest, program: ExportedProgram, folder: Path) -> Any:
        return (lambda inputs: program.module()(inputs) + 0.25), 18

    monkeypatch.setattr(forms, "write_onnx", wrong)
    with pytest.raises(WorkFailed, match=r"model\.onnx .* on 1 random input they differ by 0\.25"):
        export_network(tmp_path / "out" / "net", ExportRequest(small_net(), CardFacts()))
    assert list((tmp_path / "out").iterdir()) == []


def test_outputs_that_are_not_finite_fail(tmp_path: Path) -> None:
    module = small_net().to_module(0)
    with torch.no_grad():
        next(module.parameters()).fill_(float("nan"))
    request = ExportRequest(small_net(), facts(), module=module)
    with pytest.raises(WorkFailed, match="outputs must be finite"):
        export_network(tmp_path / "net", request)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_previous_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None
) -> None:
    folder = tmp_path / "net"
    export_network(folder, ExportRequest(small_net(), CardFacts()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(request: ExportRequest, program: ExportedProgram, folder: Path) -> Any:
        assert (folder / "weights.safetensors").exists(), "midway"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(forms, "write_program", full)
    with pytest.raises(Unwritable, match="No space left on device"):
        export_network(folder, ExportRequest(small_net(width=8), CardFacts()))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_a_previous_export_is_replaced_whole(tmp_path: Path, without_onnx: None) -> None:
    folder = tmp_path / "net"
    preprocess = load_dataset("digits", SHAPE).preprocess()
    export_network(folder, ExportRequest(small_net(), CardFacts(), preprocess=preprocess))
    (folder / "__pycache__").mkdir()
    export_network(folder, ExportRequest(small_net(width=8), CardFacts()))
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert json.loads((folder / "preprocess.json").read_text())["class_names"] is None
    record = json.loads((folder / "architecture.json").read_text())
    assert Net.from_json(record["net"]) == small_net(width=8)
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["thesis.tex"], "holds other things and no SHA256SUMS"),
        (["SHA256SUMS", "notes.txt"], r"holds what no export wrote, .*: notes\.txt"),
    ],
)
def test_what_no_export_wrote_is_never_removed(
    tmp_path: Path, files: list[str], message: str
) -> None:
    for name in files:
        (tmp_path / name).write_text("mine\n")
    with pytest.raises(RequestError, match=message):
        export_network(tmp_path, ExportRequest(small_net(), CardFacts()))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("mine")
    with pytest.raises(RequestError, match="is a file"):
        export_network(tmp_path / "net", ExportRequest(small_net(), CardFacts()))
    with pytest.raises(Unwritable):
        export_network(tmp_path / "net" / "deeper", ExportRequest(small_net(), CardFacts()))
    assert (tmp_path / "net").read_text() == "mine"


def test_another_networks_weights_are_refused(tmp_path: Path) -> None:
    request = ExportRequest(small_net(), facts(), module=small_net(width=8).to_module(0))
    with pytest.raises(RequestError, match=r"has the parameters of net\.to_module"):
        export_network(tmp_path / "net", request)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"card": facts()}, "an accuracy of 0.9625 and no module"),
        ({"card": CardFacts(batch=0)}, "at least one input; got 0"),
        ({"preprocess": {"class_names": ["a"]}}, "one class name per output, 10; got 1"),
        ({"sample": torch.zeros(2, 1, 8, 8)}, r"\[n, 1, 12, 12\]; got \[2, 1, 8, 8\]"),
        ({"sample": torch.zeros(0, 1, 12, 12)}, r"got \[0, 1, 12, 12\]"),
    ],
)
def test_requests_that_cannot_be_right(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ExportRequest(**{"net": small_net(), "card": CardFacts(), **changes})
