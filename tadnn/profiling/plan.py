"""Which kernels to measure next."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tadnn.errors import RequestError
from tadnn.kernels import OPAQUE, Kernel
from tadnn.nets import Net
from tadnn.runtimes import Runtime, lower_net

PerKernel = Callable[[Sequence[Kernel]], Sequence[float]]
"""One number per kernel; a NumPy array will do."""

# What makes kernels of one op different code, not just a different amount of work.
_STRUCTURE: Final = ("r", "s", "stride", "pad", "dilation", "groups")
# Widths that are cut into vectors or tiles.
_WIDTHS: Final = {"conv2d": ("k", "c"), "linear": ("n", "k"), "bmm": ("n", "k")}
# Kernels of a family nearer than this (largest log-ratio of a size) tell the same.
_NEAR: Final = 0.2


def kernel_pool(nets: Iterable[Net], batch: int, dtype: str, runtime: Runtime) -> dict[Kernel, int]:
    """Return every kernel that the nets launch, with the number of nets that do.

    Opaque kernels are left out: they say how much is done, not what, so there is nothing to
    run that would take as long.
    """
    pool: Counter[Kernel] = Counter()
    for net in nets:
        pool.update(set(lower_net(net, batch, dtype, runtime)))
    return {k: pool[k] for k in sorted(pool, key=_by_key) if k.op != OPAQUE}


def next_kernels(
    pool: Mapping[Kernel, int],
    measured: Collection[Kernel],
    unsure: PerKernel | None,
    count: int,
    seed: int,
    *,
    predict: PerKernel | None = None,
    lanes: int = 16,
) -> list[Kernel]:
    """Choose up to ``count`` kernels of the pool that are not measured yet.

    Always first: the smallest and the largest of every size in every family
    (op, epilogue and window), so that no kernel of the pool lies outside of
    what was measured. Then, as long as ``unsure`` is None, an even spread over
    the logarithm of work, ops weighted by how many kernels and uses they have
    and how far those reach. Later, half goes where the model is unsure and half
    to the edges of stairs: pairs that differ by one step of one width across a
    multiple of the vector width, the steepest first.

    Args:
        pool: kernels with their number of uses, from :func:`kernel_pool`.
        measured: what is known already.
        unsure: relative standard deviation of predictions; None before there is a model.
        count: how many to choose.
        seed: same arguments and seed, same choice.
        predict: microseconds, to find steep edges; without it, the jump in vectors counts.
        lanes: values in a vector.
    """
    if count < 0 or lanes < 1:
        raise RequestError(f"count >= 0 and lanes >= 1; got {count} and {lanes}")
    known = set(measured)
    kernels = sorted(pool, key=_by_key)
    left = [kernel for kernel in kernels if kernel not in known]
    chosen = _Chosen(count, known)
    # Taken in turns over families, so that a small count still sees all of them.
    chosen.take(_extremes(kernels, pool, known))
    if unsure is None:
        chosen.take(_spread(left, pool, count, random.Random(f"plan {seed}")))
    else:
        edges = chosen.room // 2
        ranked = _ranked(left, unsure)
        _diverse(ranked, chosen, chosen.room - edges)
        chosen.take(_edges(kernels, pool, known, predict, lanes))
        _diverse(ranked, chosen, chosen.room)
    return list(chosen.kernels)


class _Chosen:
    """Distinct, unmeasured kernels in the order chosen, up to a limit."""

    def __init__(self, count: int, known: set[Kernel]) -> None:
        self.kernels: dict[Kernel, None] = {}
        self._count, self._known = count, known

    @property
    def room(self) -> int:
        return self._count - len(self.kernels)

    def take(self, kernels: Iterable[Kernel]) -> None:
        for kernel in kernels:
            if self.room <= 0:
                return
            if kernel not in self._known:
                self.kernels[kernel] = None


def _by_key(kernel: Kernel) -> tuple[object, ...]:
    return kernel.op, kernel.epilogue, kernel.dtype, kernel.sizes, kernel.extra


def _family(kernel: Kernel) -> tuple[object, ...]:
    dims = kernel.dims
    structure = [dims.get(name, 0) for name in _STRUCTURE]
    if dims.get("groups", 1) > 1:
        structure[-1] = -1 if dims["groups"] == dims["c"] else -2  # depthwise, grouped
    # What an op has only sometimes (a window's other stride or padding) is structure too.
    return kernel.op, kernel.dtype, kernel.epilogue, kernel.extra, *structure


def _families(kernels: Iterable[Kernel]) -> dict[tuple[object, ...], list[Kernel]]:
    families: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        families[_family(kernel)].append(kernel)
    return families


def _work(kernel: Kernel) -> float:
    return float(kernel.flops or kernel.bytes_moved)


def _extremes(
    kernels: Sequence[Kernel], pool: Mapping[Kernel, int], known: set[Kernel]
) -> Iterator[Kernel]:
    """Yield, family by family in turns, a kernel at every extreme that none measured reaches."""
    wanted = []
    for family in _families(kernels).values():
        missing: list[Kernel] = []
        reached = [kernel for kernel in family if kernel in known]
        for values in [_work, *(_size_at(i) for i in range(len(family[0].sizes)))]:
            for best in (min, max):
                extreme = best(values(kernel) for kernel in family)
                if not any(
                    values(kernel) == extreme for kernel in itertools.chain(reached, missing)
                ):
                    candidates = (kernel for kernel in family if values(kernel) == extreme)
                    missing.append(max(candidates, key=lambda kernel: pool[kernel]))
        wanted.append(missing)
    for turn in itertools.zip_longest(*wanted):
        yield from (kernel for kernel in turn if kernel is not None)


def _size_at(index: int) -> Callable[[Kernel], float]:
    return lambda kernel: float(kernel.sizes[index])


def _spread(
    left: Sequence[Kernel], pool: Mapping[Kernel, int], count: int, rng: random.Random
) -> Iterator[Kernel]:
    """Yield kernels evenly spread over log-work within each op, ops by weight in turns."""
    ops: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in left:
        ops[kernel.op].append(kernel)
    queues: dict[str, list[Kernel]] = {}
    weights: dict[str, float] = {}
    for op, kernels in ops.items():
        kernels.sort(key=_work)  # stable: ties stay in order of key
        span = math.log10(_work(kernels[-1]) / _work(kernels[0]))
        uses = sum(pool[kernel] for kernel in kernels)
        weights[op] = math.sqrt(len(kernels) * uses) * (1 + span)
        queues[op] = _stratified(kernels, pool, min(count, len(kernels)), rng)
    given = dict.fromkeys(queues, 0)
    while any(queues.values()):
        # The op that is furthest behind its share.
        op = min(
            (op for op in queues if queues[op]), key=lambda o: ((given[o] + 1) / weights[o], o)
        )
        given[op] += 1
        yield queues[op].pop()


def _stratified(
    kernels: Sequence[Kernel], pool: Mapping[Kernel, int], count: int, rng: random.Random
) -> list[Kernel]:
    """Return kernels in random order of strata, coarse strata last so that popping is even."""
    order: list[Kernel] = []
    taken: set[Kernel] = set()
    strata = 1
    while len(order) < count:
        bounds = [round(i * len(kernels) / strata) for i in range(strata + 1)]
        pieces = [kernels[a:b] for a, b in itertools.pairwise(bounds)]
        rng.shuffle(pieces)
        for piece in pieces:
            free = [kernel for kernel in piece if kernel not in taken]
            # A piece that a coarser round has sampled already is covered.
            if free and (len(free) == len(piece) or strata >= len(kernels)):
                picked = rng.choices(free, weights=[pool[kernel] for kernel in free])[0]
                taken.add(picked)
                order.append(picked)
        strata = min(2 * strata, len(kernels))
    return order[::-1]


def _ranked(left: Sequence[Kernel], unsure: PerKernel) -> list[Kernel]:
    doubts = [float(doubt) for doubt in unsure(left)] if left else []
    # NaN would order at random: no idea at all comes first.
    doubts = [math.inf if math.isnan(doubt) else doubt for doubt in doubts]
    return [left[i] for i in sorted(range(len(left)), key=lambda i: -doubts[i])]


def _diverse(ranked: Sequence[Kernel], chosen: _Chosen, count: int) -> None:
    """Take up to ``count`` in order of rank, near neighbours of each other last."""
    goal = max(0, chosen.room - count)
    places: dict[tuple[object, ...], list[tuple[float, ...]]] = defaultdict(list)
    for kernel in chosen.kernels:
        places[_family(kernel)].append(_place(kernel))
    near: list[Kernel] = []
    for kernel in ranked:
        if chosen.room <= goal:
            return
        if kernel in chosen.kernels:
            continue
        place = _place(kernel)
        others = places[_family(kernel)]
        if any(max(map(abs, map(float.__sub__, place, other))) < _NEAR for other in others):
            near.append(kernel)
            continue
        others.append(place)
        chosen.take([kernel])
    chosen.take(near[: max(0, chosen.room - goal)])


def _place(kernel: Kernel) -> tuple[float, ...]:
    return tuple(math.log(size) if size else 0.0 for size in kernel.sizes)


def _edges(
    kernels: Sequence[Kernel],
    pool: Mapping[Kernel, int],
    known: set[Kernel],
    predict: PerKernel | None,
    lanes: int,
) -> Iterator[Kernel]:
    """Yield the kernels on both sides of each stair edge: steepest first, lookalikes last."""
    pairs = [
        (low, high, jump)
        for low, high, jump in _crossings(kernels, lanes)
        if low not in known or high not in known
    ]
    if predict is not None and pairs:
        ends = sorted({kernel for low, high, _ in pairs for kernel in (low, high)}, key=_by_key)
        latency = dict(zip(ends, map(float, predict(ends)), strict=True))
        pairs = [(low, high, latency[high] / latency[low]) for low, high, _ in pairs]

    def steepness(pair: tuple[Kernel, Kernel, float]) -> tuple[float, int]:
        # Two widths far apart differ by ordinary growth, which is no edge.
        low, high, ratio = pair
        return ratio * _work(low) / _work(high), pool[low] + pool[high]

    seen: set[object] = set()
    lookalikes: list[Kernel] = []
    for low, high, _ in sorted(pairs, key=steepness, reverse=True):
        place = _family(low), *(round(log / _NEAR) for log in _place(low))
        if place in seen:
            lookalikes += low, high
        else:
            seen.add(place)
            yield from (low, high)
    yield from lookalikes


def _crossings(kernels: Sequence[Kernel], lanes: int) -> Iterator[tuple[Kernel, Kernel, float]]:
    """Yield neighbours along a width with a multiple of ``lanes`` between; and vectors gained."""
    for op, names in _WIDTHS.items():
        for name in names:
            lines: dict[object, list[Kernel]] = defaultdict(list)
            for kernel in kernels:
                if kernel.op == op:
                    rest = tuple(size for key, size in kernel.dims.items() if key != name)
                    lines[rest, kernel.dtype, kernel.epilogue].append(kernel)
            for line in lines.values():
                line.sort(key=lambda kernel: kernel.dim(name))
                for low, high in itertools.pairwise(line):
                    before, after = (-(-kernel.dim(name) // lanes) for kernel in (low, high))
                    if after > before:
                        yield low, high, after / before
