from __future__ import annotations

import random

from tadnn.latency.memory import Memory


class Squares:
    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, keys: list[int]) -> list[int]:
        self.asked.append(keys)
        return [key * key for key in keys]


def test_what_is_known_is_not_computed_again() -> None:
    squares, memory = Squares(), Memory[int, int](10)
    assert memory.get([3, 1, 3], squares) == {3: 9, 1: 1}
    assert memory.get([1, 2], squares)[2] == 4
    memory.get([1, 2, 3], squares)
    assert squares.asked == [[3, 1], [2]], "each key once, nothing asked for in vain"


def test_keys_may_come_from_a_generator() -> None:
    known = Memory[int, int](1).get((i for i in range(5)), Squares())
    assert known == {i: i * i for i in range(5)}


def test_all_values_of_a_request_are_there_however_many() -> None:
    squares, memory = Squares(), Memory[int, int](3)
    rng = random.Random(0)
    for _ in range(300):
        keys = [rng.randrange(30) for _ in range(rng.randrange(1, 12))]
        known = memory.get(keys, squares)
        assert all(known[key] == key * key for key in keys)
        assert len(memory) <= 2 * (3 + 11)
    assert sum(map(len, squares.asked)) > 300, "some were forgotten in between"


def test_what_is_used_again_and_again_stays() -> None:
    squares, memory = Squares(), Memory[int, int](4)
    for fresh in range(100, 200):
        hot = 7 + fresh % 2
        assert memory.get([hot, fresh], squares)[hot] == hot * hot
    asked = [key for keys in squares.asked for key in keys]
    assert (asked.count(7), asked.count(8)) == (1, 1)


def test_a_failed_computation_leaves_no_trace() -> None:
    memory = Memory[int, int](4)

    def fail(keys: list[int]) -> list[int]:
        raise OverflowError

    for _ in range(2):
        try:
            memory.get([1], fail)
        except OverflowError:
            assert len(memory) == 0
    assert memory.get([1], Squares()) == {1: 1}
