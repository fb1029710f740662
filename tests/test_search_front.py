from __future__ import annotations

import csv
import io
import itertools
import json
import random

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial
from search_fakes import FACTS, make_evaluator, make_spec

from tadnn.files import read_json, write_json
from tadnn.search import front_csv, front_record, infeasible_warning, search
from tadnn.search.storage import create_study, directions


def study_of(tmp_path, rows, **changes):
    """A study of trials (latency, accuracy, violation or None, state) that nobody searched."""
    spec = make_spec(tmp_path, **changes)
    study = create_study(
        spec, optuna.storages.InMemoryStorage(), {"deep": "x"}, FACTS, input_shape=(1, 8, 8)
    )
    for i, (latency, accuracy, violation, state) in enumerate(rows):
        measures = {"latency": latency, "accuracy": accuracy, "parameters": 10 * i}
        result = {
            "key": f"key{i}",
            "space": "deep",
            "arch": {"x": i},
            "parameters": 10 * i,
            "flops": 100 * i,
            "memory_bytes": 1000 * i,
            "predicted": {"latency_ms": latency, "std_ms": 0.1, "in_range": True},
            "proxy": {"name": "formula", "value": accuracy},
            "trained": None,
        }
        study.add_trial(
            create_trial(
                state=state,
                values=[measures[o] for o in spec.objectives]
                if state == TrialState.COMPLETE
                else None,
                params={"x": i},
                distributions={"x": IntDistribution(0, 999)},
                user_attrs={"tadnn:result": result},
                system_attrs={} if violation is None else {"constraints:latency_ms": violation},
            )
        )
    return study


def complete(*rows):
    return [(latency, accuracy, None, TrialState.COMPLETE) for latency, accuracy in rows]


def test_the_front_is_what_no_feasible_finite_trial_beats(tmp_path):
    rows = [
        *complete((1.0, 0.5), (2.0, 0.7), (2.5, 0.6), (1.0, 0.4)),
        (0.5, 0.9, 0.2, TrialState.COMPLETE),  # infeasible
        (0.1, float("inf"), None, TrialState.COMPLETE),
        (float("-inf"), 0.1, None, TrialState.COMPLETE),
        (0.1, 0.99, None, TrialState.FAIL),
        (0.1, 0.99, None, TrialState.RUNNING),
        (4.0, 0.8, 0.0, TrialState.COMPLETE),  # exactly on the bound is feasible
    ]
    record = front_record(study_of(tmp_path, rows))
    assert [m["trial"] for m in record["members"]] == [0, 1, 9]
    assert [m["predicted"]["latency_ms"] for m in record["members"]] == [1.0, 2.0, 4.0]
    assert "least_infeasible" not in record
    assert infeasible_warning(record) is None


def test_the_record_has_the_contracts_keys(tmp_path):
    record = front_record(study_of(tmp_path, complete((1.0, 0.5))))
    assert list(record) == [
        "study", "latency_model", "device", "runtime", "dtype", "threads", "batch",
        "input_shape", "environment", "objectives", "hypervolume", "reference", "members",
    ]  # fmt: skip
    assert record["study"] == "study"
    assert (record["latency_model"], record["device"]) == ("formula", "cpu-test")
    assert (record["runtime"], record["dtype"], record["threads"]) == ("torch-eager", "fp32", 1)
    assert record["input_shape"] == [1, 8, 8]
    assert list(record["members"][0]) == [
        "trial", "key", "arch", "parameters", "flops", "memory_bytes", "predicted", "proxy",
        "trained", "measured",
    ]  # fmt: skip
    json.dumps(record, allow_nan=False)


def test_hypervolume_and_reference_by_hand(tmp_path):
    # Latency from 1 to 3, accuracy from 0.2 to 0.7: each worst, made worse by a tenth.
    rows = complete((1.0, 0.5), (2.0, 0.7), (3.0, 0.2))
    record = front_record(study_of(tmp_path, rows))
    assert record["reference"] == pytest.approx([3.2, 0.15])
    # (3.2 - 1) x (0.5 - 0.15) + (3.2 - 2) x (0.7 - 0.5)
    assert record["hypervolume"] == pytest.approx(2.2 * 0.35 + 1.2 * 0.2)


def test_a_study_of_equal_trials_still_has_a_reference(tmp_path):
    record = front_record(study_of(tmp_path, complete((2.0, 0.0), (2.0, 0.0))))
    assert record["reference"] == pytest.approx([2.2, -1.0])
    assert record["hypervolume"] == pytest.approx(0.2)
    assert len(record["members"]) == 1


@pytest.mark.parametrize("seed", range(5))
def test_front_and_hypervolume_against_brute_force(tmp_path, seed):
    rng = random.Random(seed)
    points = [(float(rng.randint(1, 9)), float(rng.randint(0, 9))) for _ in range(25)]
    record = front_record(study_of(tmp_path, complete(*points)))
    found = {(m["predicted"]["latency_ms"], m["proxy"]["value"]) for m in record["members"]}
    best = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)}
    assert found == best
    assert len(record["members"]) == len(best)
    # Cells of a grid through all coordinates, each dominated or not.
    xs = sorted({*(p[0] for p in best), record["reference"][0]})
    ys = sorted({*(p[1] for p in best), record["reference"][1]})
    volume = sum(
        (x2 - x1) * (y2 - y1)
        for (x1, x2), (y1, y2) in itertools.product(itertools.pairwise(xs), itertools.pairwise(ys))
        if any(p[0] <= x1 and p[1] >= y2 for p in best)
    )
    assert record["hypervolume"] == pytest.approx(volume)


def test_a_front_of_other_objectives_has_no_hypervolume(tmp_path):
    rows = complete((1.0, 0.5), (0.5, 0.4))
    record = front_record(study_of(tmp_path, rows, objectives=["latency", "parameters"]))
    assert record["hypervolume"] is record["reference"] is None
    assert [m["trial"] for m in record["members"]] == [1, 0]


def test_three_objectives_keep_what_two_would_drop(tmp_path):
    rows = complete((1.0, 0.5), (1.5, 0.4))
    with_size = ["parameters", "latency", "accuracy"]
    record = front_record(study_of(tmp_path, rows, objectives=with_size))
    assert [m["trial"] for m in record["members"]] == [0]
    rows = complete((1.5, 0.4), (1.0, 0.5))
    record = front_record(study_of(tmp_path, rows, objectives=with_size))
    assert [m["trial"] for m in record["members"]] == [1, 0]
    assert record["reference"] == pytest.approx([1.55, 0.39])


def test_where_nothing_is_feasible_the_least_infeasible_are_named(tmp_path):
    rows = [(1.0, 0.5, 0.1 * i, TrialState.COMPLETE) for i in range(9, 1, -1)]
    record = front_record(study_of(tmp_path, rows))
    assert record["members"] == []
    assert record["hypervolume"] == 0.0
    assert [m["trial"] for m in record["least_infeasible"]] == [7, 6, 5, 4, 3]
    assert record["least_infeasible"][0]["violations"] == pytest.approx({"latency_ms": 0.2})
    warning = infeasible_warning(record)
    assert warning is not None
    assert "no trial of study 'study' meets the constraints" in warning
    assert "trial 7, exceeds latency_ms by 20.0%" in warning


def test_a_study_without_trials_has_an_empty_front(tmp_path):
    record = front_record(study_of(tmp_path, []))
    assert record["members"] == []
    assert record["hypervolume"] is None
    assert front_csv(record) == "trial\n"


def test_finalists_show_what_they_were_trained_and_measured_to(tmp_path):
    study = study_of(tmp_path, complete((1.0, 0.5), (2.0, 0.7)))
    trained = {"accuracy": 0.9, "epochs": 3, "split": "test"}
    measured = {"latency_ms": 1.1, "spread_ms": 0.01, "repeats": 9}
    study.set_user_attr("tadnn:finalist:1", {"trained": trained, "measured": measured})
    first, second = front_record(study)["members"]
    assert first["trained"] is first["measured"] is None
    assert second["trained"] == trained
    assert second["measured"] == measured


def test_the_csv_is_the_members_flattened(tmp_path):
    study = study_of(tmp_path, complete((1.0, 0.5), (2.0, 0.7)))
    study.set_user_attr("tadnn:finalist:1", {"measured": {"latency_ms": 1.1}})
    rows = list(csv.DictReader(io.StringIO(front_csv(front_record(study)))))
    assert [row["trial"] for row in rows] == ["0", "1"]
    assert [row["predicted.latency_ms"] for row in rows] == ["1.0", "2.0"]
    assert [row["arch.x"] for row in rows] == ["0", "1"]
    assert [row["measured.latency_ms"] for row in rows] == ["", "1.1"]


def test_a_searched_study_gives_its_front(tmp_path):
    spec = make_spec(tmp_path, trials=30, constraints={"latency_ms": 0.8})
    study, _ = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    record = front_record(study)
    assert record["members"]
    assert all(m["predicted"]["latency_ms"] <= 0.8 for m in record["members"])
    write_json(tmp_path / "front.json", record)
    assert read_json(tmp_path / "front.json") == record
    assert {m["trial"] for m in record["members"]} == {t.number for t in study.best_trials}
    assert directions(spec.objectives) == study.directions


def test_a_constraint_that_nothing_meets_is_no_error(tmp_path):
    spec = make_spec(tmp_path, trials=8, constraints={"parameters": 1.0})
    study, ended = search(spec, make_evaluator(spec), {"deep": "x"}, FACTS)
    assert ended.complete == 8
    record = front_record(study)
    assert record["members"] == []
    nearest = record["least_infeasible"][0]
    least = min(t.user_attrs["tadnn:result"]["parameters"] for t in study.trials)
    assert nearest["parameters"] == least
    assert nearest["violations"]["parameters"] == pytest.approx(least - 1)
