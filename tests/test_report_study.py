"""A study's view: columns, hypervolume history, importance; comparisons; a network's drawing."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from tadnn import pareto
from tadnn.errors import RequestError
from tadnn.nets import Add, BatchNorm2d, Conv2d, NetBuilder, ReLU, block
from tadnn.report.browser.drawing import network_svg, sparkline_svg, stair_svg
from tadnn.report.browser.records import study_record
from tadnn.report.columns import Column, columns_of
from tadnn.report.compare_view import compare_view
from tadnn.report.history import history_figure
from tadnn.report.network_view import NetworkView, layer_text, stage_views
from tadnn.report.study_view import (
    DOMINATED,
    FRONT,
    INFEASIBLE,
    ProgressView,
    StudyView,
    history_view,
    importance_view,
    worst_corner,
)
from tadnn.report.views import PredictionView, StairView


def goal(key, values, better="min", **changes):
    return Column(key, key.capitalize(), "", better, np.array(values, dtype=float), **changes)


def result(trial, latency, score, **changes):
    return {
        "trial": trial,
        "key": f"{trial}",
        "space": "resnet",
        "arch": {"width": trial},
        "parameters": 100 * trial,
        "flops": 7,
        "memory_bytes": 9 + trial,
        "predicted": {"latency_ms": latency, "std_ms": latency / 10, "in_range": True},
        "proxy": {"name": "naswot", "value": score},
        "trained": None,
        "feasible": True,
        **changes,
    }


def study(latency, score, status=None, name="a", **changes):
    n = len(latency)
    goals = (goal("latency", latency), goal("accuracy", score, "max"))
    points = np.stack([goals[0].values, -goals[1].values], axis=1)
    if status is None:
        status = np.where(pareto.front_mask(points), FRONT, DOMINATED)
    fields = {
        "name": name,
        "subtitle": "cpu",
        "progress": ProgressView(n, n, 0, 0, "", ""),
        "objectives": 2,
        "columns": goals,
        "trials": np.arange(n),
        "status": np.array(status),
        "in_range": np.ones(n, dtype=bool),
        "choices": {},
        "finalists": {},
        "knee": None,
        "history": history_view(name, "cpu", goals, np.ones(n, dtype=bool)),
        "importance": (),
        "failures": (),
        "warning": "",
        "front": {},
        "spec": {"accuracy": {"proxy": "naswot"}, "dataset": "digits"},
    }
    return StudyView(**{**fields, **changes})


def test_objectives_come_first_and_every_other_number_once():
    results = [result(1, 2.0, 30.0), result(2, 4.0, 50.0)]
    values = np.array([[2.0, 30.0], [4.0, 50.0]])
    facts = {"measured": {"latency_ms": 4.5, "spread_ms": 0.5}, "trained": {"accuracy": 0.9}}
    columns = columns_of(results, ["latency", "accuracy"], values, {2: facts})
    assert [c.key for c in columns] == [
        "latency", "accuracy", "parameters", "flops", "memory_bytes", "finalist.accuracy", "trial",
    ]  # fmt: skip
    latency, accuracy = columns[:2]
    assert latency.title == "Predicted latency (ms), less is better"
    assert latency.errors.tolist() == [0.2, 0.4]
    assert latency.measured == {2: (4.5, 0.5)}
    assert accuracy.title == "naswot score, more is better"
    assert accuracy.errors is None
    by_key = {c.key: c for c in columns}
    assert by_key["memory_bytes"].title == "Memory (bytes)"
    assert by_key["trial"].values.tolist() == [1, 2]
    np.testing.assert_array_equal(by_key["finalist.accuracy"].values, [math.nan, 0.9])


def test_a_third_objective_that_nobody_knows_is_a_column_like_the_others():
    extra = {"decode": {"latency_ms": 7.0, "std_ms": 0.7, "in_range": True}}
    results = [result(1, 2.0, 30.0, **extra), result(2, 4.0, 50.0)]
    values = np.array([[2.0, 30.0, 7.0], [4.0, 50.0, 8.0]])
    columns = columns_of(results, ["latency", "accuracy", "latency_decode"], values, {})
    third = columns[2]
    assert (third.key, third.label, third.better) == ("latency_decode", "Latency decode", "min")
    decode = next(c for c in columns if c.key == "decode.latency_ms")
    assert (decode.label, decode.unit) == ("Decode latency", "ms")
    assert decode.errors.tolist()[0] == 0.7
    assert math.isnan(decode.values[1])


def test_an_accuracy_that_counts_is_named_by_the_proxy_not_by_the_count():
    results = [
        result(n, n, 100.0 * n, proxy={"name": "parameters", "value": 100.0 * n}) for n in (1, 2)
    ]
    values = np.array([[1.0, 100.0], [2.0, 200.0]])
    columns = columns_of(results, ["latency", "accuracy"], values, {})
    assert columns[1].label == "parameters score"


def test_without_latency_model_and_proxy_there_are_fewer_columns():
    none = {"predicted": None, "proxy": None}
    results = [result(n, 1.0, 1.0, **none) for n in (1, 2)]
    columns = columns_of(results, ["parameters"], np.array([[100.0], [200.0]]), {})
    assert [c.key for c in columns] == ["parameters", "flops", "memory_bytes", "trial"]
    assert columns_of([], ["latency"], np.empty((0, 1)), {})[0].values.shape == (0,)


def test_hypervolume_grows_as_computed_by_hand():
    goals = [goal("latency", [4, 2, 3, 1]), goal("accuracy", [4, 2, 1, 1], "max")]
    view = history_view("s", "", goals, np.array([True, True, True, True]))
    # The worst, (4, 1), moved by a tenth of the ranges 3 and 3: (4.3, 0.7).
    assert view.reference == pytest.approx((4.3, 0.7))
    first = 0.3 * 3.3
    second = first + 2.0 * 1.3
    assert view.trials == (1, 2, 3, 4)
    last = second + 1.0 * 0.3
    assert view.volume == pytest.approx(last)
    assert view.volumes == pytest.approx((first / last, second / last, second / last, 1.0))


def test_hypervolume_leaves_out_the_infeasible_and_the_endless():
    goals = [goal("latency", [1, 2, math.nan]), goal("accuracy", [9, 2, 5], "max")]
    view = history_view("s", "", goals, np.array([False, True, True]))
    # What is infeasible shapes the corner (2.1, 1.3) and dominates nothing.
    assert view.volume == pytest.approx(0.1 * 0.7)
    none = history_view("s", "", goals, np.zeros(3, dtype=bool))
    assert (none.volume, none.volumes) == (0.0, (0.0, 0.0, 0.0))


@pytest.mark.parametrize("count", [1, 3])
def test_hypervolume_of_one_and_three_objectives_is_that_of_all_trials(count):
    values = np.random.default_rng(0).random((200, count))
    goals = [goal(f"o{i}", values[:, i]) for i in range(count)]
    view = history_view("s", "", goals, np.ones(200, dtype=bool))
    assert view.volume == pytest.approx(pareto.hypervolume(values, worst_corner(values)))
    assert list(view.volumes) == sorted(view.volumes)
    assert view.trials[-1] == 200


def test_four_objectives_and_no_trials_have_no_history():
    four = [goal(f"o{i}", [1, 2]) for i in range(4)]
    assert history_view("s", "", four, np.ones(2, dtype=bool)).volumes == ()
    empty = history_view("s", "", [goal("a", []), goal("b", [])], np.ones(0, dtype=bool))
    assert (empty.volumes, empty.volume) == ((), None)
    assert len(history_figure(empty).axes) == 1


def test_history_is_drawn_as_steps():
    view = study([4, 2, 3], [4, 2, 1]).history
    (line,) = history_figure(view).axes[0].lines
    assert line.get_xdata().tolist() == list(view.trials)
    assert line.get_ydata().tolist() == list(view.volumes)


def test_importance_is_the_share_of_variance_less_chance():
    values = [1.0, 1.0, 3.0, 3.0]
    choices = {"all": ("a", "a", "b", "b"), "none": (1, 2, 1, 2), "same": (0, 0, 0, 0)}
    found = {view.choice: view.shares for view in importance_view(choices, [goal("o", values)])}
    assert found == {"all": (1.0,), "none": (0.0,)}
    # Sum of squares 4.5 + 0.5 = 5 between (1 + 1 within, freedom 2): (4.5 - 0.25) / 5.
    view = importance_view({"w": (1, 1, 2, 2)}, [goal("o", [0.0, 1.0, 2.0, 2.0])])
    between, within, total = 2.25, 0.5, 2.75
    assert view[0].shares[0] == pytest.approx((between - within / 2) / total)


def test_importance_counts_an_inactive_choice_and_survives_the_degenerate():
    shares = importance_view({"k": (None, None, 3, 3)}, [goal("o", [1.0, 1.0, 2.0, 2.0])])[0].shares
    assert shares == (1.0,)
    lone = importance_view({"k": (1, 2)}, [goal("o", [1.0, 2.0]), goal("p", [math.nan, math.nan])])
    assert lone[0].shares == (0.0, 0.0)


def test_compared_hypervolumes_share_a_corner():
    a, b = study([1, 3], [1, 3], name="a"), study([2, 3.0], [3, 1], name="b")
    view = compare_view([("a", a), ("b-2", b)])
    assert view.objectives == ("latency", "accuracy")
    # Members (1, 1), (3, 3) and (2, 3): the worst is (3, 1), the ranges 2 and 2.
    assert view.reference == pytest.approx((3.2, 0.8))
    assert view.studies[0].volume == pytest.approx(2.2 * 0.2 + 0.2 * 2.0)
    assert view.studies[1].volume == pytest.approx(1.2 * 2.2)
    assert view.studies[1].key == "b-2"
    assert view.studies[1].trials == (0,)
    assert view.doubts == ()


def test_a_doubtful_comparison_says_why():
    other = study([1], [1], subtitle="gpu", spec={"accuracy": {"proxy": "zen"}, "dataset": "d"})
    fewer = study([1], [1])
    fewer = study([1], [1], columns=fewer.columns[:1], objectives=1)
    assert len(compare_view([("a", study([1], [1])), ("b", other)]).doubts) == 2
    assert "Not all objectives" in compare_view([("a", study([1], [1])), ("c", fewer)]).doubts[0]
    alien = study([1], [1], columns=(goal("flops", [1]),), objectives=1)
    with pytest.raises(RequestError, match="over objectives that all of them have"):
        compare_view([("a", study([1], [1])), ("d", alien)])


def test_fronts_without_members_compare_as_nothing():
    none = study([1], [1], status=[INFEASIBLE])
    view = compare_view([("a", none)])
    assert view.reference == ()
    assert view.studies[0].volume is None


def test_a_page_keeps_the_front_whole_when_it_must_leave_out_trials(monkeypatch):
    rng = np.random.default_rng(0)
    view = study(rng.random(3000), rng.random(3000))
    whole = study_record(view)
    assert whole["trials"] == list(range(3000))
    monkeypatch.setattr("tadnn.report.browser.records.MOST_BYTES", 20_000)
    part = study_record(view)
    assert len(part["trials"]) < 1000 < part["total"] == 3000
    assert part["status"].count(FRONT) == view.members
    assert part["trials"] == sorted(part["trials"])
    assert len(part["columns"][0]["values"]) == len(part["trials"])


@block
def residual(b, width):
    b.add(Conv2d(width, 3), b.input, name="conv")
    main = b.add(BatchNorm2d(), name="norm")
    b.add(Add(), main, b.input, name="add")
    b.add(ReLU(), name="relu")


@block
def stem(b, width):
    b.add(Conv2d(width, 3, stride=2), b.input, name="conv")


def network():
    net = NetBuilder((3, 8, 8))
    net.add("stem", stem(4))
    for i in range(3):
        net.add(f"body{i}", residual(4))
    net.add("down", stem(6))
    return net.build()


def test_equal_neighbours_are_drawn_as_one_block():
    stages = stage_views(
        network(), {"stem": 1.0, "body0": 2.0, "body1": 2.0, "body2": 2.0, "down": 3.0}
    )
    assert [stage.title for stage in stages] == ["4×4", "2×2"]
    first, body = stages[0].blocks
    assert (first.repeats, first.skips, first.latency_us) == (1, False, 1.0)
    assert (body.repeats, body.skips, body.latency_us) == (3, True, 6.0)
    assert body.parameters == 3 * (4 * 4 * 9 + 8)
    assert body.layers == ("Conv2d(4, 3)", "BatchNorm2d", "Add", "ReLU")
    assert layer_text(Conv2d(4, 3, stride=2)) == "Conv2d(4, 3, stride=2)"


def test_drawings_are_svg_with_a_description():
    view = NetworkView(
        study="<s>", trial=1, subtitle="", standing="", facts=(), choices=(),
        input_shape=(3, 8, 8), stages=stage_views(network()), breakdown=None, groups=(),
        remarks=(), note="", pair=None, pairs=PredictionView("", "", ()), disagreement="",
        curve=(), commands=(),
    )  # fmt: skip
    drawing = ElementTree.fromstring(network_svg(view))
    assert drawing.get("role") == "img"
    assert drawing.get("aria-label").startswith("Drawing of <s> #1: 3 kinds of blocks in 2 stages")
    texts = [text.text for text in drawing.iter("text")]
    assert {"3 × residual", "4×4×4", "6×2×2", "input 3×8×8"} <= set(texts)
    assert len([p for p in drawing.iter("path") if p.get("class") == "skip"]) == 1
    stair = StairView("t", "", "output channels", (8, 16, 24), (1.0, 2.0, 2.0), (0.0,) * 3, 16)
    tiny = ElementTree.fromstring(stair_svg(stair, "a stair"))
    assert tiny.find("circle") is not None
    line = ElementTree.fromstring(sparkline_svg([1, 2], [0.0, 0.0], "flat & low"))
    assert line.get("aria-label") == "flat & low"
