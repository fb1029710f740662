"""``benchmarks/search_table.py`` on tables made here."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from tadnn.errors import RequestError, TableError, UnknownName
from tadnn.pareto import front_mask, hypervolume

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "search_table.py"
PUBLIC = Path(__file__).parents[2] / "shared/data/accelnasbench_imagenet_mnasnet.csv.gz"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("search_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["search_table"] = module
    spec.loader.exec_module(module)
    return module


def grid(n=120, seed=0):
    """Rows of whole, broken and textual features; errors that grow as latency falls."""
    rng = np.random.default_rng(seed)
    lines = ["id,f_width,f_ratio,f_kind,error,ips"]
    for i in range(n):
        width, ratio = int(rng.integers(1, 9)), float(rng.choice([0.25, 0.5, 1.5]))
        kind = str(rng.choice(["a", "b", "c"]))
        work = width * ratio + {"a": 0.0, "b": 1.0, "c": 0.5}[kind]
        error = 30.0 / (1.0 + work) + 2.0 * (kind == "b") + 0.2 * rng.random()
        lines.append(f"{i},{width},{ratio},{kind},{error:.4f},{1000.0 / (1.0 + work):.4f}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(grid())
    return path


GOALS = ["--features", "f_*", "--minimize", "error", "--minimize", "1000/ips"]


def call(bench, capsys, *words):
    code = bench.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_record_has_what_was_asked_for(bench, table, capsys, tmp_path):
    words = ["--budgets", "20,40", "--seeds", "2", "--known", "1000 / ips", "--json"]
    plot = tmp_path / "new" / "curve.png"
    code, out, _ = call(bench, capsys, table, *GOALS, *words, "--plot", plot)
    assert code == 0
    record = json.loads(out)
    loaded = bench.load(table, "f_*", [("error", 1.0), ("1000/ips", 1.0)], [])
    assert record["front_size"] == front_mask(loaded.values).sum()
    results = record["results"]
    assert [(r["sampler"], r["budget"]) for r in results] == [
        (s, b) for s in ("random", "nsga2", "tpe", "frontier") for b in (20, 40)
    ]
    for r in results:
        assert 0 < r["hv_ratio_mean"] <= 1 + 1e-12
        assert r["hv_ratio_std"] >= 0
        assert r["seconds_per_trial"] > 0
    by = {(r["sampler"], r["budget"]): r["hv_ratio_mean"] for r in results}
    assert by["frontier", 40] > by["random", 40]
    assert plot.stat().st_size > 1000


def test_ratios_are_those_of_the_rows_that_were_evaluated(bench, table):
    loaded = bench.load(table, "f_*", [("error", 1.0), ("ips", -1.0)], [])
    record = bench.measured(loaded, ["random"], [15], 1)
    rows = np.random.default_rng(0).permutation(120)[:15]
    reference = loaded.values.max(axis=0)
    expected = hypervolume(loaded.values[rows], reference) / hypervolume(loaded.values, reference)
    assert record["results"][0]["hv_ratio_mean"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["random", "frontier"])
def test_a_whole_table_is_found_by_taking_every_row(bench, tmp_path, kind):
    path = tmp_path / "small.csv.gz"
    path.write_bytes(gzip.compress(grid(25).encode()))
    loaded = bench.load(path, "f_*", [("error", 1.0), ("1000/ips", 1.0)], [])
    rows = bench.search(loaded, kind, 0, 25)
    assert sorted(rows) == list(range(25))
    assert bench.measured(loaded, [kind], [25], 1)["results"][0]["hv_ratio_mean"] == 1.0


def test_equal_seeds_give_equal_rows(bench, table):
    loaded = bench.load(table, "f_*", [("error", 1.0), ("1000/ips", 1.0)], ["1000/ips"])
    for kind in bench.SAMPLERS:
        assert bench.search(loaded, kind, 3, 14) == bench.search(loaded, kind, 3, 14)


def test_the_nearest_row_is_by_hamming_distance_and_the_first_of_equals(bench):
    points = [{"a": 1, "b": "x", "#": 0}, {"a": 2, "b": "x", "#": 0}, {"a": 2, "b": "y", "#": 0}]
    nearest = bench.Nearest(bench.Table(points, np.zeros((3, 2)), ()))
    assert nearest.row({"a": 2, "b": "y"}) == 2
    assert nearest.row({"a": 1, "b": "y"}) == 0


COLUMNS = {"a": ["1", "2"], "b c": ["3", "4"], "d": ["0.5", "0.25"]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", [1, 2]),
        ("b c", [3, 4]),
        ("100 - a", [99, 98]),
        ("1000/d", [2000, 4000]),
        ("-a**2 + 2*(d - 1)", [-2, -5.5]),
        ("log(a)", [0, math.log(2)]),
        ("sqrt(4) * +a", [2, 4]),
    ],
)
def test_expressions(bench, text, values):
    assert bench.evaluate(text, COLUMNS) == pytest.approx(values)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.real",
        "a[0]",
        "a if a else d",
        "lambda: a",
        "a > d",
        "a @ d",
        "'x'",
        "True",
        "log(a, d)",
        "log(x=a)",
        "a; d",
        "",
        "a//d",
    ],
)
def test_what_is_no_arithmetic_is_refused(bench, text):
    with pytest.raises(RequestError):
        bench.evaluate(text, COLUMNS)


def test_huge_powers_are_infinite_at_once(bench):
    assert bench.evaluate("9**9**9**9 + a", COLUMNS).tolist() == [math.inf, math.inf]


def test_features_are_whole_numbers_numbers_or_texts(bench, table):
    columns = bench.read_columns(table)
    found = bench.features(columns, "f_width, f_ratio,f_kind")
    assert [type(values[0]) for values in found.values()] == [int, float, str]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--features", "f_*", "--minimize", "eror"], "did you mean 'error'"),
        (["--features", "g_*", "--minimize", "error"], "unknown column 'g_*'"),
        (["--features", "f_*", "--minimize", "f_kind"], "objectives are numbers"),
        (["--features", "f_*"], "at least one of --minimize and --maximize"),
        ([*GOALS, "--known", "ips"], "unknown known objective 'ips'"),
        ([*GOALS, "--samplers", "nsga3"], "did you mean 'nsga2'"),
        ([*GOALS, "--budgets", "0"], "positive whole numbers"),
        ([*GOALS, "--budgets", ","], "lists at least one"),
        ([*GOALS, "--seeds", "0"], "positive whole number"),
        ([*GOALS, "--minimize", "error"], "objectives are distinct"),
        (["--features", "f_*", "--minimize", "foo(ips)"], "unknown function 'foo'"),
    ],
)
def test_bad_requests(bench, table, capsys, words, said):
    code, out, err = call(bench, capsys, table, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no row"),
        ("f_a,error\n", "no row"),
        ("f_a,f_a\n1,2\n", "distinct names"),
        ("f_a,error,ips\n1,2\n", "line 2: 3 values expected"),
        ("f_a,error,ips\n1,nan,3\n", "no row has finite objectives"),
        ("f_a,error,ips\n1,2,3\n2,2,3\n", "dominates nothing"),
    ],
)
def test_bad_tables(bench, tmp_path, capsys, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, _, err = call(bench, capsys, path, *GOALS)
    assert code == 2
    assert said in err


def test_missing_and_damaged_files(bench, tmp_path):
    with pytest.raises(RequestError, match="no such table"):
        bench.read_columns(tmp_path / "none.csv")
    (tmp_path / "t.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(TableError, match="no readable CSV"):
        bench.read_columns(tmp_path / "t.csv.gz")
    with pytest.raises(UnknownName):
        bench.features({"a": ["1"]}, "b")


def test_rows_without_finite_objectives_are_left_out_with_a_note(bench, tmp_path, capsys):
    path = tmp_path / "holes.csv"
    path.write_text(grid(30) + "30,1,0.5,a,,3.0\n31,1,0.5,a,nan,3.0\n32,1,0.5,a,2.0,0\n")
    code, out, err = call(
        bench, capsys, path, *GOALS, "--budgets", "10,99", "--seeds", "1", "--samplers", "random"
    )
    assert code == 0
    assert "3 of 33 rows have no finite objectives" in err
    assert "larger budgets are cut" in err
    assert "30 rows" in out


def test_rows_with_equal_features_are_all_there(bench, tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text(grid(20) + grid(20).partition("\n")[2])
    loaded = bench.load(path, "f_*", [("error", 1.0), ("1000/ips", 1.0)], [])
    assert sorted(bench.search(loaded, "frontier", 0, 40)) == list(range(40))


@pytest.mark.skipif(not PUBLIC.exists(), reason="needs ../shared/data")
def test_the_public_table_at_fifty_evaluations(bench):
    goals = [("100 - val_top1", 1.0), ("1000/throughput_a100_ips", 1.0)]
    loaded = bench.load(PUBLIC, "block*", goals, [])
    record = bench.measured(loaded, ["random", "frontier"], [50], 2)
    assert record["front_size"] == 35
    random, frontier = (r["hv_ratio_mean"] for r in record["results"])
    assert random < 0.95 < 0.97 < frontier
