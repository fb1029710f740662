"""Bad input: exit code 2, one line ``error:`` on stderr, no traceback, and nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from studies_examples import (
    MINI,
    OVERRIDES,
    TINY,
    finished,
    profiled,
    trial_facts,
    write_space,
    write_study,
)

from tadnn.cli.main import INTERRUPTED, run
from tadnn.files import read_json
from tadnn.latency import load_latency_model
from tadnn.search import load_spec, run_search

ROOT = Path(__file__).parent.parent
KERNEL = '"linear(m=1,n=8,k=8,dtype=fp32)"'


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished study; leave it as it is."""
    folder = tmp_path_factory.mktemp("place")
    with finished(folder, finalists=None, trials=6):
        pass
    return folder


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """A copy of the folder as working directory."""
    shutil.copytree(place, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def refused(capfd):
    """Run a command that must be refused; return its one error message."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        assert code == 2, (out, err)
        assert "Traceback" not in out + err
        assert out == ""
        assert re.findall(r"^error: ", err, re.MULTILINE) == ["error: "]
        return err.partition("error: ")[2].strip()

    return call


def contents(folder):
    """Every file below a folder with its bytes; SQLite's helpers come and go."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".db-wal", ".db-shm", ".lock")
        and path.name != ".lock" and "__pycache__" not in path.parts
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serch", "tiny"], "No such command 'serch'. Did you mean 'search'? (see tadnn --help)"),
        (["search"], "Missing argument 'STUDY' (see tadnn search --help)"),
        (["search", "tiny", "--devise", "cpu"], "No such option: --devise (Possible options: --de"),
        (["latency", "tiny#0"], "Missing option '--on' (see tadnn latency --help)"),
        (["latency", "tiny#0", "--on", "auto-tiny", "--batch", "0"], "Invalid value for '--batch'"),
        (["latency", "tiny#0", "--on", "auto-tiny", "--batch", "many"], "Invalid value for '--b"),
        (["latency", "tiny#0", "--on", "auto-tiny", "--input", "3,x"], "--input is one to three "),
        (["latency", "tiny#0", "--on", "auto-tiny", "--input", "3,0,9"], "--input is one to thre"),
        (["latency", "tiny#0", "--on", "auto-tinny"], "did you mean 'auto-tiny'? Valid: a100"),
        (["latency", "tiny#0", "--on", "auto-tiny@h100"], "predicts a cpu; got h100, a gpu"),
        (["latency", "tiny#0", "--on", "auto-tiny@cpu-fak"], "did you mean 'cpu-fake'"),
        (["latency", "tiny#0", "--on", "auto-tiny@"], "unknown device ''"),
        (["latency", "tiny#99", "--on", "auto-tiny"], "no evaluated trial 99; it has 6, from 0"),
        (["latency", "missing.json", "--on", "auto-tiny"], "no such file: missing.json"),
        (["front", "tinny"], "unknown study 'tinny'; did you mean 'tiny'?"),
        (["front", "new"], "the study 'new' has no results yet: tadnn search comes first"),
        (["plot", "new"], "the study 'new' has no results yet: tadnn search comes first"),
        (["export", "new", "-o", "out"], "the study 'new' has no results yet: tadnn search co"),
        (["latency", "new#0", "--on", "auto-tiny"], "the study 'new' has no results yet"),
        (["plot", "tiny", "--formats", "pgn"], "picture format 'pgn'; did you mean 'png'?"),
        (["plot", "tiny", "--formats", ""], "unknown picture format ''"),
        (["export", "tiny", "--trial", "77", "-o", "out"], "has no evaluated trial 77"),
        (["export", "tiny", "--knee", "--trial", "1", "-o", "out"], "takes one of --knee, --trial"),
        (["export", "tiny", "--max-latency-ms", "0.001", "-o", "out"], "the fastest, trial "),
        (["export", "tiny", "--max-latency-ms", "-1", "-o", "out"], "'--max-latency-ms'"),
        (["search", "tiny", "--device", "cuda:7"], "cuda:7"),
        (["search", "tiny", "--device", "cpuu"], "device 'cpuu'; did you mean 'cpu'?"),
        (["search", "tiny", "--device", "h100"], "this machine has no device 'h100'; it has cpu"),
        (["spaces", "resnt"], "unknown space 'resnt'; did you mean 'resnet'?"),
        (["profile", "--name", "x"], "either --space NAME or --net TARGET; got neither"),
        (["profile", "--name", "x", "--space", "resnet", "--net", "tiny#0"], "TARGET; got both"),
        (["profile", "--name", "x", "--space", "resnt"], "did you mean 'resnet'?"),
        (["profile", "--name", "../x", "--net", "tiny#0"], "--name becomes a folder"),
        (["profile", "--name", "a@b", "--net", "tiny#0"], "--name becomes a folder"),
        (["profile", "--name", "x", "--net", "tiny#0", "--dtype", "fp33"], "did you mean 'fp32'?"),
        (["profile", "--name", "x", "--net", "tiny#0", "--runtime", "eager"], "torch-eager"),
        (["profile", "--name", "x", "--net", "tiny#0", "--device", "fakee"], "unknown device 'fak"),
        (["profile", "--name", "x", "--net", "tiny#0", "--kernels", "2"], "'--kernels'"),
        (["profile", "--name", "x", "--net", "tiny#0", "--minutes", "0"], "'--minutes'"),
        (["profile", "--name", "x", "--net", "tiny#0", "--minutes", "nan"], "minutes"),
        (["fit", "--table", "k.csv", "--runtime", "torch-eager", "--name", "x"], "DEVICE=TABLE.c"),
        (["fit", "--table", "h10=k.csv", "--runtime", "torch-eager", "--name", "x"], "'h100'"),
        (["fit", "--table", "h100=k.csv", "--runtime", "torch-eagr", "--name", "x"], "did you mea"),
        (["fit", "--table", "h100=k.csv", "--runtime", "torch-eager", "--name", "x"], "no such fi"),
        (["fit", "--table", "h100=k.csv", "--runtime", "torch-eager", "--name", "x/y"], "--name b"),
        (["evaluate", "k.csv", "--on", "auto-tiny"], "no such file: k.csv"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)  # fmt: skip
def test_requests_that_are_wrong(here, refused, arguments, said):
    write_study(here, name="new")
    before = contents(here)
    assert said in refused(*arguments)
    assert contents(here) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"smapler": "random"}, "tiny.yaml: unknown key smapler; did you mean 'sampler'?"),
        ({"sampler": "nsga3"}, "sampler: unknown value 'nsga3'; did you mean 'nsga2'?"),
        ({"space": "resnt"}, "space: unknown space 'resnt'; did you mean 'resnet'?"),
        ({"space": "gone/mini.py"}, "space: no such file: gone/mini.py"),
        ({"runtime": "torch-eagre"}, "runtime: unknown runtime 'torch-eagre'; did you mean 'torch"),
        ({"dataset": "digit"}, "dataset: unknown data set 'digit'; did you mean 'digits'?"),
        ({"accuracy": {"proxy": "naswat"}}, "unknown proxy 'naswat'; did you mean 'naswot'?"),
        ({"latency_model": "auto-tinny"}, "unknown latency model 'auto-tinny'"),
        ({"overrides": {"widht": 8}}, "widht"),
        ({"overrides": {"width": {"low": 8, "high": 4000}}}, "width"),
        ({"trials": 0}, "trials"),
        ({"objectives": []}, "objectives"),
        ({"input_shape": [1, 16]}, "input_shape"),
        ({"storage": "nosql://x/y"}, "nosql://x/y"),
        ({"storage": "study.db"}, "a storage is a database URL that Optuna opens"),
    ],
    ids=str,
)
def test_study_files_that_break_a_rule(in_tmp_path, refused, changes, said):
    path = in_tmp_path / "studies" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    before = contents(in_tmp_path)
    assert said in refused("search", "tiny", "--device", "fake")
    assert contents(in_tmp_path) == before


def test_a_study_file_that_is_no_yaml(in_tmp_path, refused):
    (in_tmp_path / "bad.yaml").write_text("name: x\n  trials: [1\n")
    assert re.search(r"bad\.yaml, line 2, column \d+: not valid YAML", refused("front", "bad.yaml"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"overrides": {**OVERRIDES, "kernel": 5}}, "overrides.kernel: 3 -> 5"),
        ({"latency_model": None, "objectives": ["parameters"]}, "objectives: "),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["search", "front"])
def test_a_study_resumed_with_another_spec_shows_the_difference(
    here, refused, changes, said, command
):
    write_study(here, trials=6, finalists=None, **changes)
    before = contents(here)
    message = refused(command, "tiny", *(["--device", "fake"] if command == "search" else []))
    assert said in message
    assert contents(here) == before


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (f"kernel,latency_ms\n{KERNEL},3\n", "line 1: wrong unit 'latency_ms'; the unit here is"),
        (f"kernel,latency_us\n{KERNEL},3\n{KERNEL},-2\n", "line 3: latency_us is a positive,"),
        (f"kernel,latency_us\n{KERNEL},nan\n", "line 2: latency_us is a positive, finite number"),
        (f"kernel,latency_us\n{KERNEL},inf\n", "line 2: latency_us is a positive, finite number"),
        (f"kernel,latency_us\n{KERNEL},3\n{KERNEL}", "line 3: a row has 2 fields (kernel,"),
        (f"kernel,latency_us\n{KERNEL},3\n{KERNEL[:-4]}", "line 3: not a line of CSV"),
        (f"kernel,latency_us\n{KERNEL},3\nlinear(m=1),2\n", "line 3: "),
        (f"kernel,latency_us,colour\n{KERNEL},3,red\n", "line 1: unknown column 'colour'"),
        ("kernel,latency_us\n", "a table has at least one row; got none"),
        ("", "line 1: no column kernel"),
        ("target,batch,latency_us\ntiny#0,1,3\n", "line 1: wrong unit 'latency_us'; the unit here"),
        ("target,batch,latency_ms\ntiny#0,1,3\ntiny#0,0,3\n", "line 3: batch is a positive whole"),
        ("target,batch,latency_ms\ntiny#0,1,3\ntiny#99,1,3\n", "no evaluated trial 99"),
    ],
)  # fmt: skip
def test_tables_that_break_a_rule(here, refused, table, said):
    (here / "t.csv").write_text(table)
    assert said in refused("evaluate", "t.csv", "--on", "auto-tiny")
    if not table.startswith("target"):
        fit = ["fit", "--table", "cpu=t.csv", "--runtime", "torch-eager", "--name", "auto-tiny"]
        before = contents(here)
        assert said in refused(*fit)
        assert contents(here) == before  # the model of that name is still there


def test_a_table_with_too_little_to_fit(here, refused):
    (here / "t.csv").write_text(f"kernel,latency_us\n{KERNEL},3\n")
    said = refused("fit", "--table", "h100=t.csv", "--runtime", "torch-eager", "--name", "x")
    assert "at least 10 distinct kernels to fit; got 1 for h100" in said


def test_tables_of_gpus_and_cpus_make_no_model(here, refused):
    text = gzip.decompress((here / "latency_models/auto-tiny/kernels.csv.gz").read_bytes())
    (here / "t.csv").write_bytes(text)
    both = ["--table", "h100=t.csv", "--table", "cpu=t.csv"]
    assert "all GPUs or all CPUs" in refused(
        "fit", *both, "--runtime", "torch-eager", "--name", "x"
    )


@pytest.mark.parametrize("command", ["search", "front", "plot", "export"])
@pytest.mark.parametrize("damage", ["text", "middle"])
def test_a_damaged_study_database(here, refused, command, damage):
    path = here / "studies" / "tiny" / "study.db"
    data = bytearray(path.read_bytes())
    if damage == "text":
        data[:100] = b"x" * 100
    else:
        data[4096 : len(data)] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    options = {"search": ["--device", "fake"], "export": ["-o", "out"]}.get(command, [])
    said = refused(command, "tiny", *options)
    assert "study.db is damaged" in said
    assert path.read_bytes() == bytes(data)


def test_a_database_that_is_no_study(here, refused):
    with contextlib.closing(sqlite3.connect(here / "other.db")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    write_study(here, storage="sqlite:///other.db", trials=6, finalists=None)
    assert "other.db is a SQLite database, but no Optuna storage" in refused("front", "tiny")


def test_a_damaged_profile_database(here, refused):
    path = here / "latency_models" / "profiles.db"
    path.write_bytes(b"nothing of SQLite's" * 1000)
    write_study(here, name="new", threads=2)
    assert "profiles.db is damaged" in refused("search", "new", "--device", "fake")
    profile = ["profile", "--net", "tiny#0", "--device", "fake", "--name", "x"]
    assert "profiles.db is damaged" in refused(*profile)
    assert path.read_bytes().startswith(b"nothing of SQLite's")


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "card.yaml").write_text("a: [1"),
        lambda f: (f / "card.yaml").write_bytes(b"\xff\xfe\x00"),
        lambda f: (f / "card.yaml").write_text("[]"),
        lambda f: (f / "card.yaml").write_text((f / "card.yaml").read_text()[:800]),
        lambda f: (f / "model.npz").write_bytes((f / "model.npz").read_bytes()[:-40]),
        lambda f: (f / "model.npz").unlink(),
        lambda f: (f / "kernels.csv.gz").write_bytes(b""),
    ],
    ids=["yaml", "bytes", "list", "cut", "numbers cut", "numbers gone", "table emptied"],
)
def test_a_damaged_latency_model(here, refused, damage):
    damage(here / "latency_models" / "auto-tiny")
    assert "auto-tiny" in refused("latency", "tiny#0", "--on", "auto-tiny")
    before = contents(here)
    assert "auto-tiny" in refused("search", "tiny", "--device", "fake")
    assert contents(here) == before


def test_a_model_for_another_setting(here, refused):
    for dtype in ("fp16", "fp32"):
        write_study(here, name="other", latency_model="auto-tiny", threads=2, dtype=dtype)
        said = refused("search", "other", "--device", "fake")
        assert "latency model auto-tiny is fitted for another setting" in said
        assert "threads 1, not 2" in said
        assert ("dtype" in said) == (dtype == "fp16")
        assert "Models that would do: none; 'latency_model: auto' learns one" in said
    assert not (here / "studies" / "other" / "study.db").exists()


def test_kernels_of_another_dtype(here, refused):
    (here / "t.csv").write_text(f"kernel,latency_us\n{KERNEL.replace('fp32', 'fp16')},3\n")
    assert "predicts fp32 kernels" in refused("evaluate", "t.csv", "--on", "auto-tiny")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0\n", "mini.py, line 1, raised ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "mini.py, line 2, raised SystemExit: 3"),
        ("def build(:\n", "mini.py is not valid Python"),
        ("choices = {}\n", "has no build"),
    ],
)
def test_a_space_file_that_raises(in_tmp_path, refused, text, said):
    write_space(in_tmp_path, text=text)
    write_study(in_tmp_path, space="mini", overrides=None)
    for command in (["search", "tiny", "--device", "fake"], ["spaces", "mini"], ["spaces"],
                    ["profile", "--space", "mini", "--name", "x", "--device", "fake"]):  # fmt: skip
        assert said in refused(*command)
    assert not (in_tmp_path / "latency_models").exists()


def test_a_space_that_raises_when_it_builds(in_tmp_path, refused):
    write_space(in_tmp_path, text=MINI.replace("    net = Net", "    1 / 0\n    net = Net"))
    write_study(in_tmp_path, space="mini", overrides=None)
    said = refused("search", "tiny", "--device", "fake")
    assert "build() of space mini raised ZeroDivisionError" in said
    assert "mini.py, line " in said


def test_a_space_whose_shapes_do_not_fit_names_the_layer(in_tmp_path, refused):
    late = 'net.add("head", head(classes))\n    net.add("late", conv(8))'
    write_space(in_tmp_path, text=MINI.replace('net.add("head", head(classes))', late))
    write_study(in_tmp_path, space="mini", overrides=None)
    assert "block late, layer conv " in refused("search", "tiny", "--device", "fake")
    (in_tmp_path / "a.json").write_text('{"space": "mini", "layers": 1, "channels": 8}')
    profile = ["profile", "--net", "a.json", "--name", "x", "--device", "fake"]
    assert "block late, layer conv " in refused(*profile)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arch: arch.pop("width2"), "width2"),
        (lambda arch: arch.update(widht2=8), "widht2"),
        (lambda arch: arch.update(width2=9), "width2"),
        (lambda arch: arch.update(width2="8"), "width2"),
        (lambda arch: arch.update(space="resnt"), "unknown space 'resnt'; did you mean 'resnet'"),
    ],
    ids=["missing", "unknown", "outside", "text", "space"],
)
def test_an_architecture_that_is_no_point_of_its_space(here, refused, change, said):
    member = read_json(here / "studies" / "tiny" / "front.json")["members"][0]
    arch = {"space": "resnet", **member["arch"]}
    change(arch)
    (here / "arch.json").write_text(json.dumps(arch))
    assert said in refused("latency", "arch.json", "--on", "auto-tiny")


def test_a_file_where_a_folder_is_needed(here, refused):
    """What stands for a folder without permission: root may write everywhere else."""
    before = contents(here)
    assert "cannot write" in refused("plot", "tiny", "-o", "studies/tiny.yaml/pictures")
    assert "studies/tiny.yaml" in refused("export", "tiny", "-o", "studies/tiny.yaml")
    assert "cannot write" in refused("export", "tiny", "-o", "studies/tiny.yaml/out")
    (here / "studies" / "blocked").write_text("")
    write_study(here, name="blocked", latency_model="auto-tiny")
    assert "cannot write in" in refused("search", "blocked", "--device", "fake")
    (here / "studies" / "blocked").unlink()
    (here / "studies" / "blocked.yaml").unlink()
    assert contents(here) == before
    shutil.rmtree(here / "latency_models")
    (here / "latency_models").write_text("")
    profile = ["profile", "--net", "tiny#0", "--name", "x", "--device", "fake"]
    assert "cannot write in" in refused(*profile)


def test_an_export_replaces_nothing_but_an_export(here, refused):
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("years of work")
    assert "holds other things" in refused("export", "tiny", "-o", "mine")
    assert (here / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_disk_that_fills_up_while_the_front_is_written(here, refused, monkeypatch):
    write_study(here, trials=8, finalists=None)
    front = (here / "studies" / "tiny" / "front.json").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        said = refused("search", "tiny", "--device", "fake")
    assert said.endswith("tiny/front.json: No space left on device")
    assert (here / "studies" / "tiny" / "front.json").read_bytes() == front
    assert not list((here / "studies" / "tiny").glob(".front*"))
    # The trials are kept.
    assert len(trial_facts(load_spec("tiny"))) == 8


LIMITED = (
    "import resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
    "from tadnn.cli.main import run\n"
    "sys.exit(run(sys.argv[2:]))\n"
)


@pytest.mark.parametrize("what", ["profile", "fit", "search"])
def test_a_full_disk_loses_nothing(here, what):
    """No file may grow beyond a limit, as on a disk without space."""
    text = gzip.decompress((here / "latency_models/auto-tiny/kernels.csv.gz").read_bytes())
    (here / "t.csv").write_bytes(text)
    write_study(here, trials=40, finalists=None)
    size = (here / "studies" / "tiny" / "study.db").stat().st_size
    limit, arguments, said = {
        "profile": (45_000, ["profile", "--net", "tiny#0", "--threads", "3"], "profiles.db"),
        "fit": (900, ["fit", "--table", "h100=t.csv", "--runtime", "torch-eager"], "auto-tiny"),
        "search": (size + 8192, ["search", "tiny"], "study.db"),
    }[what]
    arguments += ["--name", "auto-tiny"] if what != "search" else []
    arguments += ["--device", "fake"] if what != "fit" else []
    before = contents(here / "latency_models" / "auto-tiny")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "cannot write" in line
    assert said in line
    assert contents(here / "latency_models" / "auto-tiny") == before
    assert load_latency_model("auto-tiny").card.data["rows"] == 60
    assert profiled(here)[0] >= 60
    if what == "search":
        # With space again, it goes on.
        assert 6 <= len(trial_facts(load_spec("tiny"))) < 40
        assert run_search(load_spec("tiny"), device="fake").complete == 40


def test_a_key_press_stops_a_search_and_says_that_it_can_go_on(here, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tadnn.search.run_search", interrupted)
    assert run(["search", "tiny"]) == INTERRUPTED == 130
    assert capsys.readouterr().err.strip() == (
        "interrupted: what was finished is kept; the same command goes on"
    )


def completed(database):
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            query = "SELECT count(*) FROM trials WHERE state = 'COMPLETE'"
            return connection.execute(query).fetchone()[0]
        except sqlite3.OperationalError:  # the tables are being made
            return 0


# Slow enough to be killed in the middle.
SLOW = """
import time
from tadnn.cli import main
from tadnn.search import Evaluator
evaluate = Evaluator.evaluate
Evaluator.evaluate = lambda self, *asked: (time.sleep(0.1), evaluate(self, *asked))[1]
main(["search", "tiny", "--device", "fake"])
"""


def test_killed_in_the_middle_a_search_ends_as_an_undisturbed_one(tmp_path, monkeypatch):
    """``tadnn search`` and all that it started, killed with SIGKILL, then run again."""
    changes = {"finalists": None, "trials": 40, "sampler": "tpe"}
    facts, records = [], []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        write_study(folder, **changes)
        monkeypatch.chdir(folder)
        if name == "killed":
            process = subprocess.Popen(
                [sys.executable, "-c", SLOW],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.PIPE,
            )
            try:
                while completed(folder / "studies" / "tiny" / "study.db") < 14:
                    assert process.poll() is None, process.stderr.read().decode()
                    time.sleep(0.01)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process.stderr.close()
            assert 14 <= completed(folder / "studies" / "tiny" / "study.db") < 40
        result = run_search(load_spec("tiny"), device="fake")
        assert result.complete == 40
        facts.append(trial_facts(load_spec("tiny")))
        records.append(result.record)
    assert facts[0] == facts[1]
    assert len(facts[0]) == 40
    assert records[0] == records[1]
