from __future__ import annotations

import itertools

import numpy as np
import pytest

from tadnn.tail.branching import solve_branched
from tadnn.tail.solve import Problem, Table, elimination_order, maximise


def random_problem(rng: np.random.Generator, least: int = 2) -> Problem:
    """Up to five variables of up to four candidates, tables over up to three of them."""
    n = int(rng.integers(least, 6))
    sizes = [int(size) for size in rng.integers(1, 5, n)]

    def tables() -> list[Table]:
        found = []
        for _ in range(n + 2):
            count = int(rng.integers(1, min(3, n) + 1))
            scope = tuple(sorted(int(v) for v in rng.choice(n, count, replace=False)))
            found.append(Table(scope, 10 * rng.random([sizes[v] for v in scope])))
        return found

    return Problem(sizes, tables(), tables())


def every(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*[range(size) for size in problem.sizes]))


@pytest.mark.parametrize("seed", range(60))
def test_against_all_choices(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    choices = every(problem)
    budget = float(np.quantile([problem.cost(c) for c in choices], rng.random()))
    best = max(problem.gain(c) for c in choices if problem.cost(c) <= budget + 1e-9)
    found = problem.solve(budget)
    assert found is not None
    assert found.cost == pytest.approx(problem.cost(found.choice))
    assert found.gain == pytest.approx(problem.gain(found.choice))
    assert found.cost <= budget + 1e-6
    assert found.gain <= best + 1e-9
    assert found.bound >= best - 1e-6
    assert found.gain >= 0.85 * best


def test_most_small_problems_are_solved_to_the_optimum():
    solved = 0
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        problem = random_problem(rng, least=3)
        costs = {c: problem.cost(c) for c in every(problem)}
        budget = float(np.quantile(list(costs.values()), 0.5))
        best = max(problem.gain(c) for c, cost in costs.items() if cost <= budget + 1e-9)
        found = problem.solve(budget)
        assert found is not None
        solved += found.gain >= best - 1e-9
    assert solved >= 45


@pytest.mark.parametrize("seed", range(20))
def test_a_price_is_paid_exactly(seed):
    rng = np.random.default_rng(seed)
    problem, price = random_problem(rng), float(rng.random())
    value, choice = problem.priced(price)
    values = [problem.gain(c) - price * problem.cost(c) for c in every(problem)]
    assert value == pytest.approx(max(values))
    assert problem.gain(choice) - price * problem.cost(choice) == pytest.approx(value)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_is_the_cheapest(seed):
    problem = random_problem(np.random.default_rng(seed))
    least = min(problem.cost(c) for c in every(problem))
    assert problem.cost(problem.cheapest()) == pytest.approx(least)


def test_nothing_fits_below_the_cheapest():
    problem = random_problem(np.random.default_rng(0))
    assert problem.solve(problem.cost(problem.cheapest()) - 0.01) is None


def test_a_budget_for_everything_gives_the_most():
    problem = random_problem(np.random.default_rng(1))
    found = problem.solve(1e9)
    assert found is not None
    assert found.gain == found.bound == pytest.approx(max(map(problem.gain, every(problem))))


def test_a_known_choice_is_never_lost():
    """The hull misses the middle of three; a knapsack that starts there keeps it."""
    costs = [Table((0,), np.array([0.0, 6.0, 10.0]))]
    gains = [Table((0,), np.array([0.0, 1.0, 10.0]))]
    problem = Problem([3], costs, gains)
    for start in (None, (1,)):
        found = problem.solve(7.0, start)
        assert found is not None
        assert (found.choice, found.gain) == ((1,), 1.0)
        assert found.bound == pytest.approx(7.0, rel=1e-3)  # on the hull from 0 to 10


def test_moves_in_pairs_fill_a_budget():
    """One item must leave for another to enter: no single move helps."""
    costs = [Table((v,), np.array([0.0, cost])) for v, cost in enumerate((5.0, 6.0))]
    gains = [Table((v,), np.array([0.0, gain])) for v, gain in enumerate((5.0, 5.5))]
    found = Problem([2, 2], costs, gains).solve(6.0, (1, 0))
    assert found is not None
    assert found.choice == (0, 1)


def test_chains_are_eliminated_from_their_ends():
    order, largest = elimination_order([3, 4, 5, 6], {(0, 1), (1, 2), (2, 3)})
    assert set(order) == {0, 1, 2, 3}
    assert largest <= 30


def test_ties_of_the_sum_are_broken_alike():
    tables = [Table((0,), np.zeros(3)), Table((0, 1), np.zeros((3, 2)))]
    order, _ = elimination_order([3, 2], {(0,), (0, 1)})
    assert maximise(tables, [3, 2], order) == (0.0, (0, 0))


def test_branching_closes_the_gap_of_a_hull():
    """The middle of three is far below the hull: with it tried by itself, nothing is open."""
    costs = [Table((0,), np.array([0.0, 6.0, 10.0])), Table((1,), np.array([0.0, 0.5]))]
    gains = [Table((0,), np.array([0.0, 1.0, 10.0])), Table((1,), np.array([0.0, 0.5]))]
    problem = Problem([3, 2], costs, gains)
    relaxed, found = problem.solve(7.0), solve_branched(problem, 7.0)
    assert relaxed is not None
    assert found is not None
    assert relaxed.bound > 6
    assert found.gain == pytest.approx(1.5)
    assert found.bound == pytest.approx(1.5)
    assert problem.gain(found.choice) == pytest.approx(found.gain)
    assert solve_branched(problem, -1.0) is None


@pytest.mark.parametrize("seed", range(30))
def test_branching_is_never_worse_and_its_bound_holds(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    costs = {c: problem.cost(c) for c in every(problem)}
    budget = float(np.quantile(list(costs.values()), 0.4))
    best = max(problem.gain(c) for c, cost in costs.items() if cost <= budget + 1e-9)
    relaxed, found = problem.solve(budget), solve_branched(problem, budget)
    assert relaxed is not None
    assert found is not None
    assert relaxed.gain - 1e-9 <= found.gain <= best + 1e-9
    assert best - 1e-6 <= found.bound <= relaxed.bound + 1e-9
    assert found.cost == pytest.approx(problem.cost(found.choice))
    assert found.cost <= budget + 1e-6
