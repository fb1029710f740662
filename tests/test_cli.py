"""The commands, each run in this process on a finished tiny study."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from studies_examples import profiled, write_space, write_study

import tadnn.export
from tadnn.cli.app import app
from tadnn.cli.main import run
from tadnn.files import read_json
from tadnn.hardware import DeviceSpec, devices
from tadnn.kernels import Kernel, KernelRow, TimingRow, write_kernel_table, write_timing_table
from tadnn.latency import load_latency_model
from tadnn.nets import Net
from tadnn.profiling import FAKE_DEVICE
from tadnn.search import find_study, load_spec, resolve_target

COMMANDS = {
    "devices", "spaces", "profile", "fit", "adapt", "calibrate", "evaluate", "latency", "screen",
    "search", "front", "plot", "export", "browse", "report", "proxies", "sweep", "tail",
}  # fmt: skip
JUDGED = [
    *("n", "mape", "median_ape", "within_5", "within_10", "within_20", "bias", "spearman"),
    *("near_pairs", "one_sigma", "two_sigma", "out_of_range"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a study that ``tadnn search --json`` finished; leave it as it is."""
    folder = tmp_path_factory.mktemp("place")
    write_study(folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["search", "tiny", "--device", "fake", "--json"])
    assert code == 0, err.getvalue()
    return folder, json.loads(out.getvalue()), err.getvalue()


@pytest.fixture
def here(place, monkeypatch):
    """The folder as working directory; leave it as it is."""
    monkeypatch.chdir(place[0])
    return place[0]


@pytest.fixture
def tadnn_(capsys):
    """Run a command that must succeed; return what it printed, and what it said beside."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out, err

    return call


@pytest.fixture
def printed(tadnn_):
    """Run a command with --json; return what it printed."""
    return lambda *arguments: json.loads(tadnn_(*arguments, "--json")[0])


def test_every_command_of_the_contract_and_all_its_options_have_help(tadnn_):
    commands = typer.main.get_command(app).commands
    assert set(commands) == COMMANDS
    for name, command in commands.items():
        out, err = tadnn_(name, "--help")
        assert out.startswith(f"Usage: tadnn {name} ")
        assert err == ""
        for parameter in command.params:
            assert getattr(parameter, "help", ""), f"{name} {parameter.name}"
        # A summary of the list is whole: it is not cut with dots.
        assert f"  {name} " in tadnn_("--help")[0]
    assert "..." not in tadnn_("--help")[0].replace("[ARGS]...", "")


def test_alone_it_shows_its_help(tadnn_):
    assert tadnn_() == tadnn_("--help")


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from tadnn.cli.main import run\n"
        "codes = [run(words) for words in (['--help'], ['search', '--help'])]\n"
        "heavy = {'torch', 'optuna', 'sqlalchemy', 'matplotlib', 'numpy'}\n"
        "print(codes, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[0, 0] []", done.stderr


def test_devices(printed, tadnn_):
    found = printed("devices")
    assert list(found) == ["here", "known"]
    assert found["here"]["cpu"]["slug"].startswith("cpu-")
    known = {slug: DeviceSpec.from_dict(facts) for slug, facts in found["known"].items()}
    assert known == devices()
    text, _ = tadnn_("devices")
    assert found["here"]["cpu"]["slug"] in text
    assert all(slug in text for slug in known)


def test_spaces(printed, tadnn_, in_tmp_path):
    write_space(in_tmp_path)
    spaces = {space["name"]: space for space in printed("spaces")["spaces"]}
    assert list(spaces["mini"]) == ["name", "choices", "size", "default_input", "file"]
    assert spaces["mini"]["size"] == 6
    assert spaces["mini"]["default_input"] == [1, 16, 16]
    assert spaces["mini"]["file"] == str(in_tmp_path / "search_spaces" / "mini.py")
    text, _ = tadnn_("spaces")
    assert "search_spaces/mini.py" in text
    assert re.search(r"resnet .* built-in", text)


def test_the_choices_of_a_space(printed, tadnn_):
    shown = printed("spaces", "resnet")
    assert list(shown) == ["name", "size", "choices"]
    choices = {choice["name"]: choice for choice in shown["choices"]}
    assert choices["block"] == {
        "name": "block", "group": "", "values": ["basic", "bottleneck"], "when": {},
    }  # fmt: skip
    assert choices["kernel1_3"]["when"] == {"depth1": [3, 4, 5, 6]}
    text, _ = tadnn_("spaces", "resnet")
    assert re.search(r"width1 +width +8 to 512 in steps of 8 +-", text)
    assert re.search(r"kernel1_3 +kernel +3, 5 +depth1 is 3 to 6", text)
    assert re.search(r"kernel1_5 +kernel +3, 5 +depth1 is 5 or 6", text)
    assert "phases" not in text
    assert printed("spaces", "transformer")["phases"] == ["decode"]
    assert "phases, with a latency of their own: decode" in tadnn_("spaces", "transformer")[0]


def test_search_prints_the_front_and_what_it_wrote(place):
    folder, printed_, said = place
    results = folder / "studies" / "tiny"
    files = printed_.pop("files")
    assert printed_ == read_json(results / "front.json")
    pictures = [
        f"{name}.{suffix}"
        for name in ("pareto", "history", "prediction", "breakdown", "stairs")
        for suffix in ("png", "svg")
    ]
    assert files == {
        "front": str(results / "front.json"),
        "table": str(results / "front.csv"),
        **{name: str(results / name) for name in pictures},
        "knee": str(results / "knee"),
    }
    for name in pictures:
        head = (results / name).read_bytes()[:5]
        assert head == (b"\x89PNG\r" if name.endswith("png") else b"<?xml")
    architecture = read_json(results / "knee" / "architecture.json")
    knee = front_of(folder)
    assert architecture["arch"] in [m["arch"] for m in knee["members"] if m["trained"]]
    for stage in ("profiling kernels", "measuring networks", "fitting", "search: 12/12",
                  # Three finalists twice, and three networks that the machine was learned on.
                  "re-measuring finalists: 9/9", "training finalist", "exporting"):  # fmt: skip
        assert stage in said


def front_of(folder, name="tiny"):
    return read_json(folder / "studies" / name / "front.json")


def test_search_again_exports_nothing_again(here, place, tadnn_, monkeypatch):
    def never(*_):
        raise AssertionError("the knee was there")

    monkeypatch.setattr(tadnn.export, "export_network", never)
    front = (here / "studies" / "tiny" / "front.json").read_bytes()
    out, err = tadnn_("search", "tiny", "--device", "fake")
    assert (here / "studies" / "tiny" / "front.json").read_bytes() == front
    assert "profiling" not in err
    assert "training" not in err
    paths = [line.strip() for line in out.partition("wrote\n")[2].splitlines()]
    assert len(paths) == 13
    assert all((here / path).exists() for path in paths)
    assert "a network against itself differs by up to 0.0 %" in out
    assert max(map(len, out.splitlines())) <= 80


def test_front(here, printed, tadnn_):
    record = printed("front", "tiny")
    assert record == read_json(here / "studies" / "tiny" / "front.json")
    assert printed("front", "studies/tiny.yaml") == record
    text, _ = tadnn_("front", "tiny")
    assert text.count("knee") == 1
    rows = {}
    for line in text.replace("knee", "").splitlines():
        number, *_ = line.split() or [""]
        if number.isdigit():
            rows[int(number)] = line
    assert set(rows) == {member["trial"] for member in record["members"]}
    for member in record["members"]:
        row = rows[member["trial"]]
        assert f" {member['predicted']['latency_ms']:.3f} ± " in row
        if member["measured"]:
            assert f" {member['measured']['latency_ms']:.3f} ± " in row
            assert f" {member['trained']['accuracy']:.3f} " in row


def test_plot(here, tmp_path, tadnn_):
    out, _ = tadnn_("plot", "tiny", "-o", tmp_path / "pictures")
    paths = sorted((tmp_path / "pictures").iterdir())
    assert sorted(out.split()) == [str(path) for path in paths]
    assert len(paths) == 15
    heads = {".png": b"\x89PNG", ".svg": b"<?xm", ".pdf": b"%PDF"}
    assert all(path.read_bytes()[:4] == heads[path.suffix] for path in paths)


def test_plot_of_another_network(here, tmp_path, tadnn_):
    tadnn_("plot", "tiny", "--formats", "svg", "-o", tmp_path, "--trial", "7")
    assert "tiny #7" in (tmp_path / "breakdown.svg").read_text()


def test_plot_says_what_it_cannot_draw_without_the_frozen_model(
    place, tmp_path, monkeypatch, tadnn_
):
    shutil.copytree(place[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    shutil.rmtree("latency_models/auto-tiny")
    out, err = tadnn_("plot", "tiny", "--formats", "png", "-o", "pictures")
    drawn = ["pareto", "history", "prediction"]
    assert out.split() == [f"pictures/{name}.png" for name in drawn]
    assert "no breakdown and no stairs: unknown latency model 'auto-tiny'" in err


def test_export_a_trial(here, tmp_path, printed):
    record = front_of(Path())
    member = next(m for m in record["members"] if not m["trained"])
    done = printed("export", "tiny", "--trial", member["trial"], "-o", tmp_path / "out")
    said = ["trial", "files", "predicted", "measured", "unmeasured", "warning", "note"]
    assert list(done) == said
    assert done["trial"] == member["trial"]
    assert done["warning"] is None  # nothing was measured that could differ
    assert sorted(done["files"]) == sorted(map(str, (tmp_path / "out").iterdir()))
    names = {path.rpartition("/")[2] for path in done["files"]}
    wanted = {"model.onnx", "model.pt2", "model.py", "weights.safetensors", "architecture.json"}
    assert wanted | {"card.md", "preprocess.json"} <= names
    assert "UNTRAINED" in (tmp_path / "out" / "card.md").read_text()
    # What was exported is a TARGET, and the network that the study predicted.
    target = str(tmp_path / "out" / "architecture.json")
    predicted = printed("latency", target, "--on", "auto-tiny")
    assert predicted["latency_ms"] == member["predicted"]["latency_ms"]


@pytest.mark.parametrize("way", ["--knee", "--max-latency-ms", "neither"])
def test_export_chooses(here, printed, monkeypatch, way):
    exported = []
    monkeypatch.setattr(
        tadnn.export, "export_network", lambda folder, request: exported.append(request) or []
    )
    members = front_of(Path())["members"]
    finalists = [m for m in members if m["trained"]]
    options = {"--knee": ["--knee"], "neither": []}.get(way, ["--max-latency-ms", "0.3"])
    done = printed("export", "tiny", *options, "-o", "nowhere")
    assert exported[0].card.trial == done["trial"]
    if way == "--max-latency-ms":
        within = [m for m in finalists if m["measured"]["latency_ms"] <= 0.3]
        assert len(within) < len(finalists)
        best = max(within, key=lambda m: m["trained"]["accuracy"])
        assert done["trial"] == best["trial"]
    else:
        knee = read_json(Path("studies/tiny/knee/architecture.json"))["arch"]
        assert exported[0].arch == knee


PREDICTION = [
    "latency_ms", "std_ms", "in_range", "batch", "latency_model", "unprofiled_share", "kernels",
    "opaque",
]  # fmt: skip
SHARE = [
    "kernel", "count", "latency_us", "std_us", "in_range", "waves", "utilisation", "profiled",
]  # fmt: skip


def test_latency_of_a_trial(here, printed, tadnn_):
    prediction = printed("latency", "tiny#3", "--on", "auto-tiny")
    assert list(prediction) == PREDICTION
    for share in prediction["kernels"]:
        assert list(share) == SHARE
        assert Kernel.parse(share["kernel"]).key == share["kernel"]
        assert 0 < share["utilisation"] <= 1
    trial = find_study(load_spec("tiny")).trials[3]
    assert prediction["latency_ms"] == trial.values[0]
    assert (prediction["in_range"], prediction["batch"]) == (True, 1)
    assert (prediction["latency_model"], prediction["opaque"]) == ("auto-tiny", [])
    assert prediction["unprofiled_share"] == 0
    text, _ = tadnn_("latency", "tiny#3", "--on", "auto-tiny")
    last = text.splitlines()[-1]
    latency = f"{prediction['latency_ms']:.3f} ± "
    assert last.startswith(f"tiny#3 at 1x16x16 on auto-tiny, batch 1: {latency}")
    assert len(text.splitlines()) == len(prediction["kernels"]) + 5
    assert max(map(len, text.splitlines())) <= 80


def test_latency_beyond_what_was_profiled_is_marked(here, printed, tadnn_):
    prediction = printed("latency", "tiny#3", "--on", "auto-tiny", "--batch", "8")
    assert (prediction["batch"], prediction["in_range"]) == (8, False)
    text, _ = tadnn_("latency", "tiny#3", "--on", "auto-tiny", "--batch", "8")
    assert "?: outside of the profiled range" in text
    marked = sum(line.startswith(" ? ") for line in text.splitlines())
    assert marked == sum(not share["in_range"] for share in prediction["kernels"]) > 0


def test_latency_on_a_device_of_that_name(here, printed):
    prediction = printed("latency", "tiny#3", "--on", f"auto-tiny@{FAKE_DEVICE.slug}")
    assert prediction["latency_model"] == "auto-tiny"


@pytest.fixture
def targets(place, tmp_path, monkeypatch):
    """One network, named in every way that a TARGET allows, and as a Net."""
    shutil.copytree(place[0], tmp_path / "here")
    folder = tmp_path / "here"
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    target = resolve_target("tiny#3")
    write_space(folder)
    record = json.dumps(target.net.to_json())
    (folder / "my_nets_of_test_cli.py").write_text(
        f"import json\nfrom tadnn import Net\ndef made():\n    return Net.from_json({record})\n"
    )
    member = front_of(folder)["members"][0]
    arch = target.arch
    files = {
        "net": target.net.to_json(),
        "flat": {"space": "resnet", **arch},
        "plain": arch,
        "wrapped": {"space": "resnet", "arch": arch, "input_shape": [1, 16, 16], "classes": 10},
        "joined": {"space": "resnet", **{f"resnet.{k}": v for k, v in arch.items()}},
        "member": {**member, "arch": arch},
        "export": {"format": "tadnn-architecture-1", "net": target.net.to_json(), "arch": arch},
    }
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return target.net


@pytest.mark.parametrize(
    "text",
    [
        "tiny#3",
        "studies/tiny.yaml#3",
        "my_nets_of_test_cli.py:made",
        "my_nets_of_test_cli:made",
        "net.json",
        "flat.json",
        "plain.json",
        "wrapped.json",
        "joined.json",
        "member.json",
        "export.json",
    ],
)
def test_every_form_of_target(targets, printed, text):
    # 8x8 is another input than each of them has by itself.
    shape = (1, 8, 8)
    wanted = load_latency_model("auto-tiny").predict_net(Net.checked(shape, targets.blocks))
    found = resolve_target(text, shape)
    assert found.net.input_shape == shape
    if text in ("flat.json", "plain.json", "joined.json", "member.json"):
        # These don't say how many classes: the space's own, 1000.
        assert found.net.blocks[:-1] == targets.blocks[:-1]
        assert found.net.output_shape() == (1, 1000)
        return
    assert found.net.blocks == targets.blocks
    prediction = printed("latency", text, "--on", "auto-tiny", "--input", "1,8,8")
    assert prediction["latency_ms"] == wanted.latency_ms


def test_targets_have_their_own_input_where_none_is_given(targets):
    for text in ("tiny#3", "net.json", "export.json", "wrapped.json", "my_nets_of_test_cli:made"):
        assert resolve_target(text).net == targets
    assert resolve_target("flat.json").net.input_shape == (3, 224, 224)


LEARNED = ["latency_model", "path", "devices", "setting", "kernels", "held_out", "nets"]


def test_profile_a_network_then_again(in_tmp_path, printed, tadnn_):
    write_space(in_tmp_path)
    (in_tmp_path / "arch.json").write_text('{"space": "mini", "layers": 2, "channels": 16}')
    command = ["profile", "--device", "fake", "--threads", "1", "--name", "mine"]
    command += ["--space", "mini", "--input", "1,12,12", "--kernels", "60"]
    learned = printed(*command)
    assert list(learned) == LEARNED
    assert learned["latency_model"] == "mine"
    assert learned["path"] == str(in_tmp_path / "latency_models" / "mine")
    assert learned["devices"] == [FAKE_DEVICE.slug]
    assert learned["setting"] == {
        "runtime": "torch-eager", "dtype": "fp32", "math": "ieee", "layout": "nchw", "threads": 1,
    }  # fmt: skip
    measured = profiled(in_tmp_path)
    # Six networks launch: 2 convolutions and 1 relu of each width, 3 heads of two kernels.
    assert measured == (learned["kernels"], 6)
    out, err = tadnn_(*command)
    assert profiled(in_tmp_path) == measured
    assert err.splitlines()[-1] == "wrote latency_models/mine"
    assert re.search(r"conv2d +6 ", out)
    prediction = printed("latency", "arch.json", "--on", "mine", "--input", "1,12,12")
    assert prediction["in_range"]


@pytest.fixture
def tables(here, tmp_path):
    """Tables of the study's kernels, ten percent slow, and of some of its networks."""
    model = load_latency_model("auto-tiny")
    text = gzip.decompress((here / "latency_models/auto-tiny/kernels.csv.gz").read_bytes())
    keys = re.findall(r'"(.*?)"', text.decode())
    kernels = [Kernel.parse(key) for key in keys]
    slow = 1.1 * model.predict_us(kernels)
    rows = [KernelRow(k, float(us), None, None) for k, us in zip(kernels, slow, strict=True)]
    write_kernel_table(tmp_path / "kernels.csv", rows)
    times = [
        TimingRow(
            f"tiny#{i}", 1, model.predict_net(resolve_target(f"tiny#{i}").net).latency_ms, None
        )
        for i in range(8)
    ]
    write_timing_table(tmp_path / "nets.csv", times)
    return tmp_path / "kernels.csv", tmp_path / "nets.csv"


def test_evaluate_a_kernel_table(tables, printed, tadnn_):
    result = printed("evaluate", tables[0], "--on", "auto-tiny")
    assert list(result) == ["overall", "by_op", "out_of_range", "contradictions"]
    assert list(result["overall"]) == JUDGED
    assert set(result["by_op"]) == {
        "conv2d", "batch_norm", "relu", "add", "global_avg_pool", "linear",
    }  # fmt: skip
    assert all(list(summary) == JUDGED for summary in result["by_op"].values())
    overall = result["overall"]
    assert sum(summary["n"] for summary in result["by_op"].values()) == overall["n"]
    # Measured 1.1 times the prediction: an error of 1/1.1 - 1 everywhere.
    assert overall["mape"] == overall["median_ape"] == -overall["bias"]
    assert overall["bias"] == pytest.approx(100 * (1 / 1.1 - 1), abs=1e-3)
    assert (overall["within_5"], overall["within_10"], overall["within_20"]) == (0, 100, 100)
    assert (overall["spearman"], result["out_of_range"]) == (1, 0)
    text, _ = tadnn_("evaluate", tables[0], "--on", "auto-tiny")
    assert re.search(rf"overall +{overall['n']} +9\.09 +9\.09 +0 +100 +100 +-9\.09 +1", text)
    assert max(map(len, text.splitlines())) <= 80


def test_evaluate_a_timing_table(tables, printed):
    result = printed("evaluate", tables[1], "--on", "auto-tiny")
    assert list(result) == ["overall", "by_op", "out_of_range", "contradictions"]
    assert list(result["overall"]) == JUDGED
    assert (result["overall"]["n"], result["by_op"], result["out_of_range"]) == (8, {}, 0)
    assert result["overall"]["mape"] == pytest.approx(0, abs=1e-3)


def test_adapt_and_calibrate(tables, place, tmp_path, monkeypatch, printed):
    shutil.copytree(place[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    made = printed("adapt", tables[0], "--on", "auto-tiny", "--name", "slower")
    assert list(made) == ["latency_model", "path", "device", "base", "kernels", "held_out"]
    assert (made["latency_model"], made["base"]) == ("slower", "auto-tiny")
    assert made["kernels"] == made["held_out"]["overall"]["n"]
    # Ten percent slower, as the adapted model has learned.
    assert abs(printed("evaluate", tables[0], "--on", "slower")["overall"]["bias"]) < 2
    made = printed("calibrate", tables[1], "--on", "slower", "--name", "whole", "--notes", "lent")
    assert list(made) == [
        "latency_model", "path", "device", "base", "timings", "nets", "factors",
    ]  # fmt: skip
    model = load_latency_model("whole")
    assert model.card.notes == "lent"
    assert made["nets"] == model.nets.to_dict()
    assert made["timings"] == len(model.card.data["calibration_nets"]) == 8
    assert printed("evaluate", tables[1], "--on", "whole")["overall"]["mape"] < 5


def test_fit_to_tables(tables, place, tmp_path, monkeypatch, printed):
    shutil.copytree(place[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    command = ["fit", "--table", f"cpu={tables[0]}", "--nets", tables[1], "--name", "board"]
    learned = printed(*command, "--runtime", "torch-eager", "--threads", "1", "--notes", "lent")
    assert list(learned) == LEARNED
    model = load_latency_model("board")
    assert model.card.notes == "lent"
    assert model.card.data["source"] == "kernels.csv"
    assert len(model.card.data["calibration_nets"]) == 8
    assert learned["nets"] == model.nets.to_dict()
    assert not (tmp_path / "copy" / "latency_models" / "board" / "kernels.csv.gz").exists()
    # Fitted to kernels that are ten percent slower, and to networks that are not.
    kernels = printed("evaluate", tables[0], "--on", "board")["overall"]
    assert abs(kernels["bias"]) < 2
    assert printed("evaluate", tables[1], "--on", "board")["overall"]["mape"] < 3


def test_a_study_that_nothing_meets_shows_the_nearest(in_tmp_path, tadnn_):
    write_study(in_tmp_path, constraints={"latency_ms": 0.01}, finalists=None, trials=8)
    out, err = tadnn_("search", "tiny", "--device", "fake")
    assert "no trial meets the constraints; the least infeasible" in out
    assert err.count("warning: no trial of study 'tiny' meets the constraints") == 1
    record = front_of(Path())
    assert record["members"] == []
    nearest = record["least_infeasible"]
    assert len(nearest) == 5
    violations = [m["violations"]["latency_ms"] for m in nearest]
    assert violations == sorted(violations)
    assert nearest[0]["predicted"]["latency_ms"] / 0.01 - 1 == pytest.approx(violations[0])
    rows = [line for line in out.splitlines() if " ± " in line]
    assert len(rows) == 5
    assert "knee" not in out
    assert not (in_tmp_path / "studies" / "tiny" / "knee").exists()
    out, err = tadnn_("front", "tiny")
    assert len([line for line in out.splitlines() if " ± " in line]) == 5
    assert "warning: no trial" in err
