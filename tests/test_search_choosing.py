from __future__ import annotations

import pytest

from tadnn.errors import RequestError
from tadnn.search import best_within, knee_trial


def member(trial, predicted, value, measured=None, accuracy=None, split="test", **sizes):
    """A member of a front, as ``front.json`` has it."""
    return {
        "trial": trial,
        "parameters": 100,
        "flops": 1000,
        "memory_bytes": 10000,
        **sizes,
        "predicted": None if predicted is None else {"latency_ms": predicted},
        "proxy": None if value is None else {"name": "naswot", "value": value},
        "trained": None if accuracy is None else {"accuracy": accuracy, "split": split},
        "measured": None if measured is None else {"latency_ms": measured},
    }


def front(*members, objectives=("latency", "accuracy")):
    return {"objectives": list(objectives), "members": list(members)}


def test_the_knee_of_a_front_lies_farthest_below_the_chord():
    # Scaled to the unit square, (latency, lost score): (0, 1), (.1, .2), (.5, .1), (1, 0).
    members = [member(7, 1.0, 0.0), member(3, 2.0, 8.0), member(5, 6.0, 9.0), member(1, 11.0, 10.0)]
    assert knee_trial(front(*members)) == 3


def test_trained_finalists_have_their_own_knee():
    """By proxy and prediction it would be trial 3, which was not trained."""
    members = [
        member(7, 1.0, 0.0, measured=1.0, accuracy=0.5),
        member(3, 2.0, 8.0),
        member(5, 6.0, 9.0, measured=9.0, accuracy=0.6),
        member(2, 7.0, 9.5, measured=4.0, accuracy=0.9),
        member(1, 11.0, 10.0, measured=11.0, accuracy=0.95),
    ]
    assert knee_trial(front(*members)) == 2
    # Without measurements, 5 and 2 lie at 6 and 7.
    for m in members:
        m["measured"] = None
    assert knee_trial(front(*members)) == 2
    members[2]["trained"]["accuracy"] = 0.92
    assert knee_trial(front(*members)) == 5


def test_training_in_the_search_makes_no_finalists():
    members = [
        member(0, 1.0, None, accuracy=0.5, split="validation"),
        member(1, 2.0, None, accuracy=0.9, split="validation"),
        member(2, 9.0, None, accuracy=0.95, split="validation"),
    ]
    assert knee_trial(front(*members)) == 1
    members[0]["trained"]["split"] = "test"  # the only finalist
    assert knee_trial(front(*members)) == 0


@pytest.mark.parametrize("objectives", [("latency", "parameters"), ("parameters", "latency")])
def test_the_other_objective_may_be_a_count(objectives):
    members = [
        member(0, 1.0, None, parameters=1000),
        member(1, 2.0, None, parameters=200),
        member(2, 9.0, None, parameters=100),
    ]
    assert knee_trial(front(*members, objectives=objectives)) == 1


def test_a_study_without_latency_has_the_knee_of_its_first_two_objectives():
    members = [
        member(0, None, 0.0, flops=1),
        member(1, None, 8.0, flops=2),
        member(2, None, 10.0, flops=10),
    ]
    assert knee_trial(front(*members, objectives=["accuracy", "flops"])) == 1
    # A latency that is only a bound is no objective.
    for latency, m in zip((5.0, 9.0, 1.0), members, strict=True):
        m["predicted"] = {"latency_ms": latency}
    assert knee_trial(front(*members, objectives=["accuracy", "flops"])) == 1


def test_finalists_of_a_study_without_latency_are_weighed_by_its_cost():
    members = [
        member(0, None, 0.0, flops=1, accuracy=0.1),
        member(1, None, 1.0, flops=2, accuracy=0.8),
        member(2, None, 10.0, flops=10, accuracy=0.9),
    ]
    assert knee_trial(front(*members, objectives=["flops", "accuracy"])) == 1


def test_a_phase_is_weighed_where_there_is_no_other_latency():
    members = [
        member(0, 1.0, 0.0, phases={"decode": {"predicted": {"latency_ms": 9.0}}}),
        member(1, 2.0, 8.0, phases={"decode": {"predicted": {"latency_ms": 9.9}}}),
        member(2, 10.0, 10.0, phases={"decode": {"predicted": {"latency_ms": 20.0}}}),
        member(3, 11.0, 9.0, phases={"decode": {"predicted": {"latency_ms": 1.0}}}),
    ]
    both = ["decode_latency", "latency", "accuracy"]
    assert knee_trial(front(*members, objectives=both)) == 1
    assert knee_trial(front(*members, objectives=["accuracy", "decode_latency"])) == 3
    # Measured, it is no longer as fast.
    members[3]["phases"]["decode"]["measured"] = {"latency_ms": 30.0}
    assert knee_trial(front(*members, objectives=["accuracy", "decode_latency"])) == 1
    # Latencies alone: one against the other, (1, 9) and (11, 1), of which the first is faster.
    members[3]["phases"]["decode"].pop("measured")
    assert knee_trial(front(*members, objectives=["latency", "decode_latency"])) == 0
    # Within a latency counts what is bought, not the other latency.
    assert best_within(front(*members, objectives=both), 2.0) == 1


@pytest.mark.parametrize("objectives", [["latency"], ["accuracy"], ["memory"]])
def test_a_front_of_one_objective_has_its_best(objectives):
    assert knee_trial(front(member(4, 1.0, 0.5), objectives=objectives)) == 4


def test_an_empty_front_has_no_knee():
    assert knee_trial(front()) is None


MEMBERS = (
    member(0, 1.0, 1.0),
    member(1, 2.0, 2.0, measured=2.2, accuracy=0.7),
    member(2, 3.0, 3.0, measured=2.9, accuracy=0.6),
    member(3, 4.0, 4.0, measured=4.1, accuracy=0.8),
    member(4, 5.0, 5.0),
)


@pytest.mark.parametrize(
    ("bound", "trial"),
    [
        (1.0, 0),  # the bound itself is within; no finalist is
        (2.1, 0),  # measured 2.2, whatever was predicted
        (2.2, 1),
        (3.0, 1),  # the most accurate finalist, not the slowest
        (4.05, 1),
        (4.1, 3),
        (99.0, 3),  # trial 4 scored higher, but nobody trained it
    ],
)
def test_the_best_within_a_latency(bound, trial):
    assert best_within(front(*MEMBERS), bound) == trial


def test_without_finalists_the_other_objective_decides():
    members = [member(0, 1.0, 9.0), member(1, 2.0, 3.0), member(2, 3.0, 10.0)]
    assert best_within(front(*members), 2.5) == 0
    assert best_within(front(*members), 3.0) == 2
    sizes = [member(i, 1.0 + i, None, parameters=p) for i, p in enumerate((30, 10, 20))]
    assert best_within(front(*sizes, objectives=["latency", "parameters"]), 2.5) == 1
    assert best_within(front(*sizes, objectives=["latency"]), 99.0) == 0


def test_of_equal_accuracies_the_faster_one():
    members = [member(i, 1.0 + i, 0.0, accuracy=0.5) for i in (0, 1)]
    assert best_within(front(*members), 9.0) == 0


def test_nothing_within_names_the_fastest():
    with pytest.raises(
        RequestError, match=r"within 0\.5 ms; the fastest, trial 0, takes 1\.000 ms"
    ):
        best_within(front(*MEMBERS), 0.5)
    with pytest.raises(RequestError, match="none has a latency"):
        best_within(front(member(0, None, 1.0)), 0.5)
    with pytest.raises(RequestError, match="none has a latency"):
        best_within(front(), 0.5)
