from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tadnn.pareto import crowding_distance, dominates, front_mask, hypervolume, knee

NAN, INF = math.nan, math.inf


def brute_front(points: np.ndarray) -> list[bool]:
    """The definition, word for word."""
    rows = [tuple(row) for row in points]
    finite = [all(math.isfinite(v) for v in row) for row in rows]
    return [
        finite[i]
        and row not in rows[:i]
        and not any(
            finite[j]
            and all(a <= b for a, b in zip(other, row, strict=True))
            and any(a < b for a, b in zip(other, row, strict=True))
            for j, other in enumerate(rows)
        )
        for i, row in enumerate(rows)
    ]


def brute_volume(points: np.ndarray, reference: list[int]) -> int:
    """Count the unit cells of an integer grid that some point dominates."""
    cells = itertools.product(*(range(edge) for edge in reference))
    return sum(
        any(all(p <= c for p, c in zip(row, cell, strict=True)) for row in points) for cell in cells
    )


def test_dominates() -> None:
    assert dominates([1, 2], [1, 3])
    assert not dominates([1, 3], [1, 2])
    assert not dominates([1, 2], [1, 2])
    assert not dominates([1, 3], [2, 2])
    assert not dominates([NAN, 0], [1, 1])
    assert not dominates([1, 1], [NAN, 2])


class TestFront:
    @pytest.mark.parametrize("objectives", [1, 2, 3, 4])
    @pytest.mark.parametrize("seed", range(5))
    def test_against_the_definition(self, objectives: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        # A coarse grid makes ties and duplicates frequent.
        points = rng.integers(0, 6, size=(60, objectives)).astype(float)
        points[rng.random(points.shape) < 0.03] = NAN
        points[rng.random(points.shape) < 0.03] = INF
        points[rng.random(points.shape) < 0.03] = -INF
        assert front_mask(points).tolist() == brute_front(points)

    @pytest.mark.parametrize("objectives", [2, 3])
    def test_continuous_values(self, objectives: int) -> None:
        points = np.random.default_rng(7).random((200, objectives))
        assert front_mask(points).tolist() == brute_front(points)

    def test_of_duplicates_the_first(self) -> None:
        assert front_mask([[2, 2], [1, 1], [1, 1], [1, 1]]).tolist() == [False, True, False, False]

    def test_zero_and_minus_zero_are_equal(self) -> None:
        assert front_mask([[0.0, 1.0], [-0.0, 1.0]]).tolist() == [True, False]

    def test_ties_in_one_objective(self) -> None:
        assert front_mask([[1, 3], [1, 2], [2, 2], [3, 1]]).tolist() == [False, True, False, True]

    def test_rows_that_are_not_finite_neither_stay_nor_dominate(self) -> None:
        points = [[-INF, -INF], [NAN, 0], [0, NAN], [5, 5], [INF, 1]]
        assert front_mask(points).tolist() == [False, False, False, True, False]

    def test_none_and_only_bad_ones(self) -> None:
        assert front_mask([]).tolist() == []
        assert front_mask(np.empty((0, 3))).tolist() == []
        assert front_mask([[NAN, NAN]]).tolist() == [False]

    def test_shape_is_checked(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(3,\) received"):
            front_mask([1.0, 2.0, 3.0])

    def test_many_points_on_one_staircase(self) -> None:
        n = 100_000
        x = np.arange(n, dtype=float)
        points = np.concatenate([np.stack([x, n - x], 1), np.stack([x, n - x + 1], 1)])
        mask = front_mask(points)
        assert mask[:n].all()
        assert not mask[n:].any()


class TestCrowding:
    def test_by_hand(self) -> None:
        # Objective 1 spans 4, objective 2 spans 8: (3-0)/4 + (8-2)/8 and (4-1)/4 + (4-0)/8.
        points = [[0, 8], [1, 4], [3, 2], [4, 0]]
        assert crowding_distance(points).tolist() == [INF, 0.75 + 0.75, 0.75 + 0.5, INF]

    def test_constant_objective_adds_nothing(self) -> None:
        assert crowding_distance([[0, 5], [1, 5], [4, 5]]).tolist() == [INF, 1.0, INF]

    def test_small_sets(self) -> None:
        assert crowding_distance([]).tolist() == []
        assert crowding_distance([[1, 2]]).tolist() == [0.0]
        assert crowding_distance([[1, 2], [2, 1]]).tolist() == [INF, INF]


class TestHypervolume:
    def test_closed_forms(self) -> None:
        assert hypervolume([[1, 1]], [3, 4]) == 6
        # Boxes 2x1 and 1x2 overlap in 1x1.
        assert hypervolume([[1, 2], [2, 1]], [3, 3]) == 3
        assert hypervolume([[1.0]], [4.0]) == 3
        # Three 2x1x1-like slabs through one corner cube: 3*2 - 3*1 + 1.
        assert hypervolume([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [2, 2, 2]) == 4

    @pytest.mark.parametrize("n", [1, 10, 1000])
    def test_linear_front(self, n: int) -> None:
        # Points (i/n, 1 - i/n), i = 0..n, to (1, 1): stairs of area sum i/n^2 = (n-1)/2n.
        x = np.arange(n + 1) / n
        volume = hypervolume(np.stack([x, 1 - x], 1), [1, 1])
        assert volume == pytest.approx((n - 1) / (2 * n), abs=1e-12)

    @pytest.mark.parametrize("objectives", [1, 2, 3, 4])
    @pytest.mark.parametrize("seed", range(4))
    def test_against_counting_cells(self, objectives: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        points = rng.integers(0, 8, size=(12, objectives)).astype(float)
        reference = [6, 7, 6, 5][:objectives]
        assert hypervolume(points, reference) == brute_volume(points, reference)

    def test_inclusion_exclusion_in_five_dimensions(self) -> None:
        points = np.random.default_rng(3).random((6, 5))
        expected = 0.0
        for size in range(1, 7):
            for subset in itertools.combinations(range(6), size):
                box = np.prod(1 - points[list(subset)].max(axis=0))
                expected += (-1) ** (size + 1) * float(box)
        assert hypervolume(points, np.ones(5)) == pytest.approx(expected, rel=1e-12)

    def test_dominated_and_repeated_points_add_nothing(self) -> None:
        base = hypervolume([[1, 2], [2, 1]], [4, 4])
        assert hypervolume([[1, 2], [1, 2], [2, 1], [3, 3], [2, 2]], [4, 4]) == base

    def test_points_outside_contribute_nothing(self) -> None:
        outside = [[3, 0], [0, 3], [4, -9], [NAN, 0], [INF, 0], [-INF, 0]]
        assert hypervolume(outside, [3, 3]) == 0
        assert hypervolume([*outside, [2, 2]], [3, 3]) == 1
        assert hypervolume([], [3, 3]) == 0

    def test_order_does_not_matter(self) -> None:
        points = np.random.default_rng(5).random((20, 3))
        assert hypervolume(points[::-1], np.ones(3)) == pytest.approx(
            hypervolume(points, np.ones(3)), rel=1e-12
        )

    def test_reference_of_another_size(self) -> None:
        with pytest.raises(ValueError, match="2 expected"):
            hypervolume([[1, 2]], [3, 3, 3])


class TestKnee:
    def test_the_bend(self) -> None:
        # Scaled by 10 and 100; (2, 20) lies 0.6 below the chord, (1, 60) 0.3, (5, 10) 0.4.
        points = [[10, 0], [0, 100], [1, 60], [5, 10], [2, 20], [3, 90]]
        assert knee(points) == 4

    def test_equal_distances_take_the_smaller_first_objective(self) -> None:
        assert knee([[0.7, 0.1], [0, 1], [0.1, 0.7], [1, 0]]) == 2

    def test_one_and_two_points(self) -> None:
        assert knee([[3, 3]]) == 0
        assert knee([[NAN, 1], [3, 3], [4, 4]]) == 1
        assert knee([[5, 1], [1, 5]]) == 1

    def test_straight_and_concave_fronts_take_the_point_nearest_to_the_corner(self) -> None:
        assert knee([[0, 1], [0.25, 0.75], [0.5, 0.5], [1, 0]]) == 2
        # (0.6, 0.9) and (0.9, 0.6) bulge outwards: the extremes are nearer to (0, 0).
        assert knee([[1, 0], [0.6, 0.9], [0.9, 0.6], [0, 1]]) == 3

    def test_shifting_and_scaling_change_nothing(self) -> None:
        rng = np.random.default_rng(11)
        points = rng.random((50, 2))
        assert knee(points * [1e-3, 1e6] + [5, -7]) == knee(points)

    def test_dominated_points_never_win(self) -> None:
        points = np.random.default_rng(2).random((100, 2))
        assert front_mask(points)[knee(points)]

    def test_bad_requests(self) -> None:
        with pytest.raises(ValueError, match="finite point"):
            knee([[NAN, 1]])
        with pytest.raises(ValueError, match="finite point"):
            knee([])
        with pytest.raises(ValueError, match="3 received"):
            knee([[1, 2, 3]])
