"""Which proxy predicts: lists of architectures, recommendations, and studies that use them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr
from studies_examples import run, trial_facts, write_space, write_study

from tadnn.accuracy import PROXIES, agreement, evaluate_proxy, gain, noise_for
from tadnn.cli.main import run as command
from tadnn.errors import RequestError, SpecError, StudyMismatch, TableError
from tadnn.search import (
    Scored,
    Task,
    find_study,
    load_spec,
    proxy_records,
    read_archs,
    recommend,
    sample_agreement,
    score_all,
)
from tadnn.search.judges import arch_seed
from tadnn.search.proxy_scores import NONE
from tadnn.spaces import load_space

CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|none~1|nor_conv_1x1~2|"
SKIPS = "|skip_connect~0|+|none~0|none~1|+|none~0|skip_connect~1|none~2|"
NONES = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"
MINI_TASK = Task(("mini",), {}, (1, 8, 8), 10, batch_size=8)


def mini_list(folder, rows=None, columns="layers,channels,accuracy"):
    write_space(folder)
    rows = rows or [f"{n},{w},{0.1 * n + 0.01 * w}" for n in (1, 2) for w in (8, 16, 24)]
    path = folder / "list.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


def scored(**values):
    """Return networks with these values by proxy."""
    count = len(next(iter(values.values())))
    every = {name: values.get(name, [0.0] * count) for name in PROXIES}
    seconds = dict.fromkeys(PROXIES, 0.5)
    return [Scored({n: v[i] for n, v in every.items()}, seconds) for i in range(count)]


# Rank correlations


def test_correlations_are_scipys_and_intervals_hold_them():
    rng = np.random.default_rng(3)
    x = rng.normal(size=60).round(1)
    y = x + rng.normal(size=60)
    found = agreement(x, y)
    assert found.spearman == pytest.approx(spearmanr(x, y).statistic)
    assert found.kendall == pytest.approx(kendalltau(x, y).statistic)
    assert found.interval[0] < found.spearman < found.interval[1]
    assert found.kendall_interval[0] < found.kendall < found.kendall_interval[1]
    assert agreement(x, y) == found
    assert found.kendall_interval[0] > 0
    # The bootstrap's deviation is near the one theory gives, 1.06 / sqrt(n - 3) around zero.
    wide = agreement(rng.normal(size=60), rng.normal(size=60)).interval
    assert wide[1] - wide[0] == pytest.approx(4 * 1.03 / math.sqrt(57), rel=0.3)


def test_a_network_without_a_value_is_the_last():
    assert agreement([NONE, 1, 2, 3, 4], [1, 2, 3, 4, 5]).spearman == pytest.approx(1)


def test_constant_values_have_no_correlation():
    assert agreement([1.0] * 6, range(6)).spearman is None
    assert agreement(range(6), [1.0] * 6).interval is None
    assert gain([1.0] * 6, range(6), range(6)) is None


def test_four_networks_are_too_few():
    with pytest.raises(RequestError, match="at least 5 networks; received 4 and 4"):
        agreement(range(4), range(4))


def test_gain_tells_a_proxy_apart_from_its_baseline():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=80)
    good, bad = truth + 0.1 * rng.normal(size=80), truth + 3 * rng.normal(size=80)
    low, high = gain(good, bad, truth)
    assert 0 < low < high
    assert gain(truth, truth, truth) == (0.0, 0.0)


# Recommendation


def test_what_is_surely_better_than_flops_is_recommended():
    rng = np.random.default_rng(0)
    truth = list(rng.normal(size=40))
    record = proxy_records(scored(flops=list(rng.normal(size=40)), zico=truth), truth)
    assert record["proxies"][0]["name"] == "zico"
    assert record["proxies"][0]["beats_flops"] is True
    assert recommend(record) == {
        "name": "zico",
        "reason": "it orders these networks better than flops",
    }


def test_what_may_be_no_better_than_flops_is_said_to():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=12)
    record = proxy_records(
        scored(
            flops=list(truth + 0.6 * rng.normal(size=12)),
            zico=list(truth + 0.5 * rng.normal(size=12)),
        ),
        list(truth),
    )
    best = record["proxies"][0]
    assert best["name"] == "zico"
    assert best["beats_flops"] is False
    chosen = recommend(record)
    assert chosen["name"] == "flops"
    assert "zico is ahead" in chosen["reason"]


def test_equal_accuracies_recommend_nothing():
    with pytest.raises(RequestError, match="no proxy can be recommended"):
        recommend(proxy_records(scored(flops=list(range(6))), [0.5] * 6))


def test_values_are_those_of_a_study_whatever_the_number_of_workers(in_tmp_path):
    archs = read_archs(mini_list(in_tmp_path), load_space("mini")).archs[::-1]
    alone = score_all(MINI_TASK, archs)
    together = score_all(MINI_TASK, archs * 3, workers=2)
    assert [s.values for s in alone] * 3 == [s.values for s in together]
    space = load_space("mini")
    whole = score_all(Task(("mini",), {}, (1, 8, 8), 10), archs[:1])[0]
    net = space.build(archs[0], (1, 8, 8), 10)
    module = net.to_module(arch_seed(0, space.key(archs[0])))
    for name, value in whole.values.items():
        assert value == evaluate_proxy(name, net, module, noise_for(net, 0), 0)


def test_a_record_is_read_as_it_was_written():
    done = Scored({"zen": NONE, "snip": 2.0}, {"zen": 1.0, "snip": 2.0}, {"naswot": "no"}, 0.5)
    assert Scored.from_record(json.loads(json.dumps(done.to_record(), allow_nan=False))) == done


# Lists


def test_cells_are_read_from_their_strings(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("\ufeffarch_str,accuracy\n" + "".join(f"{CELL},{i}.5\n" for i in range(5)))
    found = read_archs(path, load_space("nasbench201"))
    assert found.archs[0]["edge0_1"] == "nor_conv_3x3"
    assert found.archs[0]["edge2_3"] == "nor_conv_1x1"
    assert found.accuracies == (0.5, 1.5, 2.5, 3.5, 4.5)
    assert found.lines == (2, 3, 4, 5, 6)


def test_choices_without_effect_stay_empty_and_whole_numbers_may_have_a_point(tmp_path):
    space = load_space("resnet").narrow({"depth": 1, "kernel": 3, "block": "basic"})
    arch = space.sample(1, 0)[0]
    row = [f"{v:.1f}" if k.startswith("width") else v for k, v in arch.items()]
    path = tmp_path / "nets.csv"
    text = ",".join([*arch, "kernel1_2"]) + "\n"
    path.write_text(text + (",".join(map(str, [*row, ""])) + "\n") * 5)
    found = read_archs(path, load_space("resnet"))
    assert found.archs[0] == arch
    assert found.accuracies is None


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ("layers,chanels", ["1,8"] * 5, "line 1: unknown column 'chanels'; did you mean channels"),
        ("layers,layers", ["1,1"] * 5, "line 1: columns are named once"),
        ("arch_str", ["|x~0|"] * 5, "line 1: the space mini reads no arch_str"),
        ("accuracy", ["1"] * 5, "line 1: no column tells architectures"),
        ("layers,channels", ["1,8"] * 4, "at least 5 architectures; this list has 4"),
        ("layers,channels", ["1,8", "1,9", *["1,8"] * 4], "line 3: channels is one of"),
        ("layers,channels", ["1,8", "1,wide", *["1,8"] * 4], "line 3: channels is one of"),
        ("layers,channels", ["1,8", "1,", *["1,8"] * 4], "line 3: an architecture of mini has a"),
        ("layers,channels", ["1,8", "1", *["1,8"] * 4], "line 3: every row has a value for each"),
        ("layers,channels,accuracy", ["1,8,0.5", "1,8,nan"], "line 3: an accuracy is a finite"),
        ("layers,channels,accuracy", ["1,8,0.5", "1,8,"], "line 3: an accuracy is a finite"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_with_its_line(in_tmp_path, columns, rows, message):
    path = mini_list(in_tmp_path, rows, columns)
    with pytest.raises(TableError, match=message):
        read_archs(path, load_space("mini"))


def test_a_cell_that_is_none_is_refused_with_its_line(tmp_path, capsys):
    path = tmp_path / "cells.csv"
    path.write_text("arch_str\n" + f"{CELL}\n" * 5 + CELL.replace("none", "nothing") + "\n")
    assert command(["proxies", "nasbench201", "--archs", str(path)]) == 2
    error = capsys.readouterr().err
    assert "line 7: a cell reads" in error
    assert error.startswith("error: ")


def test_lists_that_are_none_are_refused(tmp_path):
    space = load_space("nasbench201")
    with pytest.raises(TableError, match="no such file"):
        read_archs(tmp_path / "absent.csv", space)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(TableError, match="it is empty"):
        read_archs(tmp_path / "empty.csv", space)
    (tmp_path / "bytes.csv").write_bytes(b"arch_str\n\xff\xfe")
    with pytest.raises(TableError, match="CSV in UTF-8"):
        read_archs(tmp_path / "bytes.csv", space)


# The command


def test_a_list_from_command_to_correlations(in_tmp_path, capsys):
    mini_list(in_tmp_path)
    words = ["proxies", "mini", "--archs", "list.csv", "--input", "1,8,8", "--workers", "1"]
    assert command([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    proxies = {proxy["name"]: proxy for proxy in record["proxies"]}
    assert set(proxies) == {*PROXIES, "az_nas"}
    for proxy in proxies.values():
        assert {"spearman", "kendall", "interval", "seconds_per_net"} <= set(proxy)
    scores = [net["scores"]["parameters"] for net in record["nets"]]
    truth = [0.18, 0.26, 0.34, 0.28, 0.36, 0.44]
    expected = spearmanr(scores, truth).statistic
    assert proxies["parameters"]["spearman"] == pytest.approx(expected)
    assert command(words) == 0
    assert "than FLOPs" in capsys.readouterr().out


def test_dead_and_identical_cells_are_ranked_last(in_tmp_path, capsys):
    (in_tmp_path / "cells.csv").write_text("arch_str\n" + "\n".join([CELL, SKIPS, NONES] * 2))
    words = ["proxies", "nasbench201", "--archs", "cells.csv", "--input", "3,8,8"]
    assert command([*words, "--workers", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    cell, skips, nones = (net["scores"] for net in record["nets"][:3])
    assert skips["trainability"] is None  # every cell is an identity
    assert nones["expressivity"] is None  # features are zero
    assert cell["az_nas"] > max(skips["az_nas"], nones["az_nas"])
    missing = {proxy["name"]: proxy["no_value"] for proxy in record["proxies"]}
    assert missing["trainability"] == 2
    assert missing["flops"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet"], "takes --archs LIST.csv to score a list, or --dataset D"),
        (["resnett"], "unknown space or study 'resnett'; did you mean 'resnet'"),
        (["resnet", "--dataset", "digit"], "unknown data set 'digit'"),
        (["resnet", "--dataset", "digits", "--n", "4"], "at least 5 networks; received a sample"),
        (["resnet", "--dataset", "digits", "--classes", "9"], "classes are those of the data"),
        (["resnet", "--dataset", "digits", "--epochs", "1.5"], "epochs is a whole number"),
        (["resnet", "--dataset", "digits", "--epochs", "0"], "epochs is a whole number"),
    ],
)
def test_what_cannot_be_done_is_refused(in_tmp_path, capsys, words, message):
    assert command(["proxies", *words]) == 2
    assert message in capsys.readouterr().err


# A sample that is trained, and studies


def test_a_sample_is_trained_once_and_recommends(in_tmp_path, capsys):
    write_space(in_tmp_path)
    words = ["proxies", "mini", "--dataset", "digits", "--n", "40", "--workers", "1"]
    assert command([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["n"] == 6  # the whole space
    kept = sorted((in_tmp_path / "studies" / ".proxies").rglob("*.json"))
    assert len(kept) == 7
    times = [path.stat().st_mtime_ns for path in kept if path.name != "proxy.json"]
    assert command(words) == 0
    assert f"recommended: {record['recommended']['name']}" in capsys.readouterr().out
    assert [p.stat().st_mtime_ns for p in kept if p.name != "proxy.json"] == times
    assert command([*words, "--epochs", "0.25", "--json"]) == 0
    shorter = json.loads(capsys.readouterr().out)
    assert (shorter["epochs"], record["epochs"]) == (0.25, 1)


AUTO = {"latency_model": None, "objectives": ["flops", "accuracy"], "finalists": None, "trials": 3}


def auto_study(folder, **changes):
    write_space(folder)
    mini = {"space": "mini", "overrides": None, "input_shape": [1, 8, 8]}
    return write_study(folder, **{**AUTO, **mini, "accuracy": {"proxy": "auto"}, **changes})


def test_auto_is_what_was_recommended_and_stays_so(in_tmp_path):
    auto_study(in_tmp_path)
    spec, result = run()
    kept = next((in_tmp_path / "studies" / ".proxies").rglob("proxy.json"))
    name = json.loads(kept.read_text())["recommended"]["name"]
    assert any(note.startswith(f"the proxy is {name}: ") for note in result.notes)
    found = [trial[5]["proxy"]["name"] for trial in trial_facts(spec)]
    assert found == [name] * 3
    assert find_study(spec).user_attrs["tadnn:proxy"]["name"] == name
    # Another recommendation, or none, is nothing to a study that has begun.
    other = {**json.loads(kept.read_text()), "recommended": {"name": "zen", "reason": "other"}}
    kept.write_text(json.dumps(other))
    (in_tmp_path / "studies" / "tiny" / "proxy.json").unlink()
    auto_study(in_tmp_path, trials=5)
    spec, _ = run()
    assert [trial[5]["proxy"]["name"] for trial in trial_facts(spec)] == [name] * 5


def test_auto_uses_what_the_command_recommended(in_tmp_path, capsys):
    auto_study(in_tmp_path, workers=2)
    assert command(["proxies", "tiny", "--workers", "1"]) == 0
    kept = next((in_tmp_path / "studies" / ".proxies").rglob("proxy.json"))
    record = {**json.loads(kept.read_text()), "recommended": {"name": "az_nas", "reason": "so"}}
    kept.write_text(json.dumps(record))
    spec, _ = run()
    proxies = [trial[5]["proxy"] for trial in trial_facts(spec)]
    assert [proxy["name"] for proxy in proxies] == ["az_nas"] * 3


def test_az_nas_in_a_study_depends_on_the_network_alone(in_tmp_path):
    auto_study(in_tmp_path, accuracy={"proxy": "az_nas"})
    first = {trial[5]["key"]: trial[5]["proxy"]["value"] for trial in trial_facts(run()[0])}
    auto_study(in_tmp_path, accuracy={"proxy": "az_nas"}, sampler="nsga2", trials=6, name="all")
    every = {t[5]["key"]: t[5]["proxy"]["value"] for t in trial_facts(run("all")[0])}
    assert len(every) == 6
    assert all(every[key] == value for key, value in first.items())
    assert max(every.values()) <= 0


def test_auto_needs_data(in_tmp_path):
    auto_study(in_tmp_path, dataset=None)
    with pytest.raises(SpecError, match="proxy: auto trains a sample, so it needs the key"):
        load_spec("tiny")


def test_a_begun_study_does_not_become_auto(in_tmp_path):
    auto_study(in_tmp_path, accuracy={"proxy": "parameters"})
    run()
    auto_study(in_tmp_path)
    with pytest.raises(StudyMismatch, match=r"accuracy\.proxy: parameters -> auto"):
        run()


def test_an_interrupted_sample_goes_on(in_tmp_path, monkeypatch):
    write_space(in_tmp_path)
    task = Task(("mini",), {}, (1, 8, 8), 10, "digits", epochs=1)
    from tadnn.search import proxy_scores

    whole, trained = proxy_scores.Scorer.score, []

    def score(self, arch):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(arch)
        return whole(self, arch)

    monkeypatch.setattr(proxy_scores.Scorer, "score", score)
    with pytest.raises(KeyboardInterrupt):
        sample_agreement(task, 6)
    monkeypatch.setattr(proxy_scores.Scorer, "score", whole)
    done = sample_agreement(task, 6)
    files = [p for p in (in_tmp_path / "studies").rglob("*.json") if p.name != "proxy.json"]
    assert len(files) == 6
    again = sample_agreement(task, 6)
    assert again == done
