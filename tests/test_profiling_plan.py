from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.nets import (
    BatchNorm2d,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    Net,
    ReLU,
    block,
)
from tadnn.profiling import kernel_pool, next_kernels
from tadnn.runtimes import find_runtime

EAGER = find_runtime("torch-eager")


@block
def stage(b: BlockBuilder, out: int, window: int, stride: int) -> None:
    b.add(ReLU(), b.add(BatchNorm2d(), b.add(Conv2d(out, window, stride), b.input)))


@block
def head(b: BlockBuilder) -> None:
    b.add(GlobalAvgPool(), b.input)
    b.add(Flatten())
    b.add(Linear(10))


def some_nets(count: int, seed: int = 0) -> list[Net]:
    rng = random.Random(seed)
    nets = []
    for _ in range(count):
        blocks = [
            (f"s{i}", stage(rng.randrange(8, 129, 4), rng.choice((1, 3, 5)), 1 + (i == 2)))
            for i in range(5)
        ]
        nets.append(Net((3, 32, 32), (*blocks, ("head", head()))))
    return nets


POOL = kernel_pool(some_nets(150), 1, "fp32", EAGER)


def line(*widths: int, **changes: int) -> list[Kernel]:
    sizes = dict(n=1, c=32, h=8, w=8, r=3, s=3, stride=1, pad=1, dilation=1, groups=1)
    return [Kernel.of("conv2d", **{**sizes, **changes, "k": k}) for k in widths]


def widest_first(kernels: Sequence[Kernel]) -> list[float]:
    return [float(kernel.flops) for kernel in kernels]


def uses(kernels: Sequence[Kernel]) -> dict[Kernel, int]:
    return dict.fromkeys(kernels, 1)


def test_the_pool_counts_networks_not_launches() -> None:
    twice = Net((8, 4, 4), (("a", stage(8, 3, 1)), ("b", stage(8, 3, 1))))
    once = Net((8, 4, 4), (("a", stage(8, 3, 1)),))
    pool = kernel_pool([twice, once], 2, "bf16", EAGER)
    assert {kernel.op: count for kernel, count in pool.items()} == {
        "conv2d": 2,
        "batch_norm": 2,
        "relu": 2,
    }
    assert all(kernel.dtype == "bf16" for kernel in pool)
    assert kernel_pool([twice, twice, once], 2, "bf16", EAGER) == dict.fromkeys(pool, 3)
    assert kernel_pool([], 1, "fp32", EAGER) == {}


def test_the_pools_order_does_not_depend_on_the_networks_order() -> None:
    nets = some_nets(20)
    assert list(kernel_pool(nets, 1, "fp32", EAGER)) == list(
        kernel_pool(nets[::-1], 1, "fp32", EAGER)
    )


def test_a_first_choice_reaches_every_extreme() -> None:
    chosen = next_kernels(POOL, (), None, 200, seed=0)
    assert len(chosen) == len(set(chosen)) == 200

    def extremes(kernels: Sequence[Kernel]) -> dict[tuple[object, ...], tuple[int, int]]:
        found: dict[tuple[object, ...], list[int]] = {}
        for kernel in kernels:
            window = kernel.dims.get("r", 0), kernel.dims.get("stride", 0)
            for name, size in kernel.dims.items():
                found.setdefault((kernel.op, kernel.epilogue, window, name), []).append(size)
        return {key: (min(sizes), max(sizes)) for key, sizes in found.items()}

    assert extremes(chosen) == extremes(list(POOL))


def test_extremes_come_first_and_are_taken_up_where_a_call_ran_out() -> None:
    whole = next_kernels(POOL, (), None, 60, seed=0)
    first = next_kernels(POOL, (), None, 20, seed=0)
    assert first == whole[:20]
    assert len({kernel.op for kernel in first}) == len({kernel.op for kernel in POOL})
    kernels = line(*range(8, 200, 8))
    # An extreme of the pool that is missing comes before any doubt.
    (chosen,) = next_kernels(uses(kernels), kernels[:-1][::2], lambda ks: [1.0] * len(ks), 1, 0)
    assert chosen == kernels[-1]


def test_a_choice_is_deterministic_in_its_seed() -> None:
    shuffled = dict(sorted(POOL.items(), key=lambda item: hash(item)))
    assert next_kernels(POOL, (), None, 150, 3) == next_kernels(shuffled, [], None, 150, 3)
    assert next_kernels(POOL, (), None, 150, 3) != next_kernels(POOL, (), None, 150, 4)


def test_a_first_choice_spreads_over_the_logarithm_of_work() -> None:
    # 100 small kernels within a factor of 2 of each other's work, 100 over three decades.
    kernels = [Kernel.of("linear", m=1, n=n, k=64) for n in range(100, 200)]
    kernels += [Kernel.of("linear", m=1, n=round(200 * 1.07**i), k=64) for i in range(1, 101)]
    chosen = next_kernels(uses(kernels), (), None, 20, seed=0)
    quarters = Counter(sorted(kernels, key=lambda k: k.flops).index(k) // 50 for k in chosen)
    assert len(chosen) == 20
    assert all(3 <= quarters[quarter] <= 7 for quarter in range(4)), quarters


def test_ops_with_more_kernels_uses_and_reach_get_more() -> None:
    counts = Counter(kernel.op for kernel in next_kernels(POOL, (), None, 300, seed=0))
    assert counts["conv2d"] > counts["batch_norm"] > counts["linear"] > 0
    assert counts["conv2d"] > 150
    convs, relus = line(*range(8, 400, 2)), []
    relus = [Kernel.of("relu", rows=k.dim("k"), cols=64) for k in convs]
    rare = {**uses(convs), **dict.fromkeys(relus, 1)}
    often = {**uses(convs), **dict.fromkeys(relus, 100)}

    def share(pool: dict[Kernel, int]) -> int:
        return sum(k.op == "relu" for k in next_kernels(pool, (), None, 60, 0))

    assert share(often) > 1.5 * share(rare)


def test_everything_is_chosen_once_when_there_is_room() -> None:
    pool = kernel_pool(some_nets(10), 1, "fp32", EAGER)
    measured = list(pool)[::3]
    rest = set(pool) - set(measured)
    for unsure in (None, lambda ks: [0.1] * len(ks)):
        chosen = next_kernels(pool, measured, unsure, 10_000, seed=0)
        assert len(chosen) == len(rest)
        assert set(chosen) == rest
        assert next_kernels(pool, pool, unsure, 10, seed=0) == []
        assert next_kernels({}, (), unsure, 10, seed=0) == []
        assert next_kernels(pool, (), unsure, 0, seed=0) == []


def test_later_choices_go_where_the_model_is_unsure() -> None:
    kernels = line(*(1000 + 64 * i for i in range(50)), c=3)
    measured = [kernels[0], kernels[-1]]
    doubts = {kernel: 0.01 for kernel in kernels}
    doubts[kernels[7]], doubts[kernels[30]] = 0.9, math.nan
    asked: list[Kernel] = []

    def unsure(candidates: Sequence[Kernel]) -> list[float]:
        asked.extend(candidates)
        return [doubts[kernel] for kernel in candidates]

    chosen = next_kernels(uses(kernels), measured, unsure, 4, seed=0)
    assert chosen[:2] == [kernels[30], kernels[7]]
    assert not set(asked) & set(measured)


def test_doubtful_neighbours_are_not_all_chosen() -> None:
    # All doubt sits in a cluster of widths 1000..1019; a little lies elsewhere.
    cluster = [Kernel.of("relu", rows=rows, cols=64) for rows in range(1000, 1020)]
    others = [Kernel.of("relu", rows=rows, cols=64) for rows in (10, 30, 100, 300, 5000)]
    doubts = {**dict.fromkeys(cluster, 0.5), **dict.fromkeys(others, 0.1)}
    chosen = next_kernels(
        uses([*cluster, *others]), [others[0], others[-1]], lambda ks: [doubts[k] for k in ks], 4, 0
    )
    assert len(set(chosen) & set(cluster)) == 1
    assert set(chosen) >= {others[1], others[2], others[3]}


def test_half_of_a_later_choice_sits_on_both_sides_of_edges() -> None:
    kernels = line(*range(16, 129, 2))
    measured = [kernels[0], kernels[-1]]
    chosen = next_kernels(uses(kernels), measured, widest_first, 16, seed=0)
    widths = [kernel.dim("k") for kernel in chosen[8:]]
    # Without predictions, the jump in vectors counts: 1 to 2 (16 is known), 2 to 3, ...
    assert widths == [18, 32, 34, 48, 50, 64, 80, 96]
    assert {66, 82} <= {kernel.dim("k") for kernel in chosen[:8]}, "doubtful ones already"


def test_edges_go_by_predicted_steepness() -> None:
    kernels = line(*range(16, 129, 2))
    measured = [kernels[0], kernels[-1]]

    def predict(candidates: Sequence[Kernel]) -> list[float]:
        # The only step that this device has is from 96 to 98.
        return [10.0 + 10.0 * (kernel.dim("k") > 96) for kernel in candidates]

    chosen = next_kernels(uses(kernels), measured, widest_first, 4, seed=0, predict=predict)
    assert [kernel.dim("k") for kernel in chosen[2:]] == [96, 98]


def test_edges_are_not_all_alike() -> None:
    alike = [kernel for c in range(100, 110) for kernel in line(16, 18, c=c)]
    other = line(32, 34, c=20)
    ends = line(8, c=20) + line(200, c=109)
    chosen = next_kernels(uses([*alike, *other, *ends]), alike[:1], widest_first, 14, seed=0)
    assert set(other) <= set(chosen)


def test_edges_follow_the_vector_width_in_every_width_dimension() -> None:
    inputs = [Kernel.of("linear", m=1, n=64, k=k) for k in range(4, 41, 4)]
    chosen = next_kernels(uses(inputs), [inputs[0], inputs[-1]], widest_first, 4, seed=0, lanes=8)
    assert [kernel.dim("k") for kernel in chosen[2:]] == [8, 12]


def test_senseless_requests_are_refused() -> None:
    with pytest.raises(RequestError, match="count >= 0 and lanes >= 1; got -1 and 16"):
        next_kernels(POOL, (), None, -1, seed=0)
