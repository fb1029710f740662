from __future__ import annotations

import numpy as np
import pytest

from tadnn.latency import error_summary, pairs_ordered


def test_a_summary_by_hand() -> None:
    predicted = np.array([104.0, 92.0, 100.0, 130.0])
    measured = np.array([100.0, 100.0, 125.0, 100.0])
    assert error_summary(predicted, measured) == {
        "n": 4,
        "mape": 15.5,  # 4, 8, 20, 30
        "median_ape": 14.0,
        "within_5": 25.0,
        "within_10": 50.0,
        "within_20": 75.0,
        "bias": 1.5,  # 4 - 8 - 20 + 30
        "spearman": pytest.approx(-0.2582, abs=1e-4),  # ranks 3 1 2 4 against 2 2 4 2
        # Pairs that differ, within 30 %: the third against each other; two of three are right.
        "near_pairs": pytest.approx(33.333),
    }


def test_the_numbers_are_plain_and_finite() -> None:
    summary = error_summary(np.array([1.0, 1.3]), np.array([1.0, 1.2]))
    assert {type(value) for value in summary.values()} == {int, float}


@pytest.mark.parametrize(
    ("predicted", "measured"), [([5.0], [4.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0])]
)
def test_where_ranks_say_nothing_there_is_no_correlation(
    predicted: list[float], measured: list[float]
) -> None:
    assert error_summary(np.array(predicted), np.array(measured))["spearman"] is None


def test_spearman_ignores_scale() -> None:
    measured = np.array([1.0, 2.0, 3.0, 10.0])
    assert error_summary(measured**3, measured)["spearman"] == 1.0
    assert error_summary(1 / measured, measured)["spearman"] == -1.0


def test_pairs_by_hand() -> None:
    # Pairs apart by more than 10 %: (100, 120), (100, 200), (105, 120), (105, 200), (120, 200).
    measured = np.array([100.0, 105.0, 120.0, 200.0])
    assert pairs_ordered(measured, measured, 0.1) == 100.0
    assert pairs_ordered(np.array([2.0, 1.0, 3.0, 4.0]), measured, 0.1) == 100.0
    assert pairs_ordered(np.array([4.0, 1.0, 3.0, 5.0]), measured, 0.1) == 80.0
    assert pairs_ordered(-measured, measured, 0.1) == 0.0
    assert pairs_ordered(np.array([1.0, 1.0, 1.0, 2.0]), measured, 0.1) == 60.0, "a tie is no order"


def test_near_pairs_by_hand() -> None:
    # Within 30 %: (100, 105), (100, 120), (105, 120); 200 is far from all.
    measured = np.array([100.0, 105.0, 120.0, 200.0])
    assert pairs_ordered(np.array([2.0, 1.0, 3.0, 0.0]), measured, within=0.3) == 66.667
    assert error_summary(np.array([2.0, 1.0, 3.0, 0.5]), measured)["near_pairs"] == 66.667
    assert pairs_ordered(np.array([1.0, 2.0]), np.array([1.0, 2.0]), within=0.3) is None
    many = np.arange(1.0, 4001.0)
    assert error_summary(many, many)["near_pairs"] == 100.0, "a sample of many rows"


def test_a_pair_just_at_the_limit_does_not_count() -> None:
    measured = np.array([100.0, 110.0])
    assert pairs_ordered(measured, measured, 0.1) is None
    assert pairs_ordered(measured, measured, 0.0999) == 100.0
    assert pairs_ordered(np.array([1.0]), np.array([1.0]), 0.1) is None
