"""What a network's kernels become when its widths change.

A kernel's sizes are affine in the widths (an input's channels are sums of widths), as long as
the runtime launches the same kernels. Both is found out by lowering the network again with one
width changed, so nothing here knows layers or runtimes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tadnn.errors import ShapeError
from tadnn.kernels import DTYPE_BYTES, Kernel
from tadnn.latency import LatencyModel
from tadnn.latency.likeness import UNKNOWN
from tadnn.latency.nets import large_mb
from tadnn.nets import Net
from tadnn.runtimes import Runtime, find_runtime
from tadnn.tail.flow import Flow
from tadnn.tail.widths import with_widths

_VECTOR: Final = 16
"""Channels that fill whole vectors on every device of today."""


@dataclass(frozen=True)
class WideKernel:
    """A kernel whose sizes follow widths.

    Attributes:
        kernel: as it is now.
        slopes: by group, what each of its sizes gains per unit of width.
        count: how many of the network's launches are this one.
        block: the number of the first block that launches it.
    """

    kernel: Kernel
    slopes: tuple[tuple[int, tuple[int, ...]], ...]
    count: int
    block: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups whose widths it follows."""
        return tuple(group for group, _ in self.slopes)

    def at(self, changes: Mapping[int, int]) -> Kernel:
        """Return the kernel after changes of widths (new minus present, by group)."""
        sizes = np.array(self.kernel.sizes)
        for group, slope in self.slopes:
            if change := changes.get(group, 0):
                sizes = sizes + change * np.array(slope)
        return self._sized(sizes)

    def over(
        self, scope: Sequence[int], changes: Sequence[np.ndarray]
    ) -> tuple[list[Kernel], np.ndarray]:
        """Return the distinct kernels over combinations of changes, and which one stands where.

        Args:
            scope: groups.
            changes: of each of them, [k_i]; the second result is [k_1, k_2, ...].
        """
        slopes = dict(self.slopes)
        sizes = np.array(self.kernel.sizes)
        for i, (group, change) in enumerate(zip(scope, changes, strict=True)):
            gained = np.multiply.outer(change, np.array(slopes[group]))
            axes = [1] * len(scope) + [len(self.kernel.sizes)]
            axes[i] = len(change)
            sizes = sizes + gained.reshape(axes)
        flat = sizes.reshape(-1, len(self.kernel.sizes))
        _, first, where = np.unique(_numbers(flat), return_index=True, return_inverse=True)
        kernels = [self._sized(row) for row in flat[first]]
        return kernels, where.reshape([len(c) for c in changes])

    def _sized(self, sizes: np.ndarray) -> Kernel:
        now = self.kernel
        whole = tuple(int(size) for size in sizes)
        return Kernel(now.op, whole, now.dtype, now.epilogue, now.extra)


def _numbers(rows: np.ndarray) -> np.ndarray:
    """Return a number for every row of whole numbers, the same for equal rows only, [n]."""
    number: np.ndarray = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, at = np.unique(column, return_inverse=True)
        # Sorting numbers is many times faster than sorting rows.
        number = np.unique(number * len(values) + at, return_inverse=True)[1]
    return number


@dataclass(frozen=True)
class WidthCosts:
    """A network's kernels as functions of its widths.

    Attributes:
        flow: the network's groups.
        batch: the batch size.
        free: the groups that may change, by index, in order.
        kernels: those that follow any width, equal ones counted together.
        still: the others, with how often each is launched.
        irregular: names of groups left alone, since a change of theirs changes which kernels
            are launched, or sizes of kernels otherwise than in proportion.
        exact: whether these are the very kernels that the network launches as it is. Some
            runtimes launch more at widths that don't fill a vector; what is told here is what
            they launch at widths that do.
    """

    flow: Flow
    batch: int
    free: tuple[int, ...]
    kernels: tuple[WideKernel, ...]
    still: Mapping[Kernel, int]
    irregular: tuple[str, ...] = field(default=())
    exact: bool = True


def width_costs(flow: Flow, model: LatencyModel, batch: int = 1) -> WidthCosts:
    """Find out how a network's kernels follow its widths.

    Args:
        flow: the network's groups.
        model: the latency model, whose runtime and dtype say what is launched.
        batch: the batch size.
    """
    runtime, dtype = find_runtime(model.setting.runtime), model.setting.dtype
    whole = _whole(flow)
    now = _Lowered.of(with_widths(flow, whole), batch, dtype, runtime)
    slopes: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
    free, irregular = [], []
    for index, group in enumerate(flow.groups):
        if group.frozen:
            continue
        found = _slopes(flow, index, whole, now, batch, dtype, runtime)
        if found is None:
            irregular.append(group.name)
            continue
        free.append(index)
        for at, slope in found.items():
            slopes.setdefault(at, {})[index] = slope
    wide: dict[tuple[Kernel, tuple[tuple[int, tuple[int, ...]], ...]], list[int]] = {}
    still: dict[Kernel, int] = {}
    back = {index: flow.groups[index].width - width for index, width in whole.items()}
    for b, i, kernel in now:
        if (b, i) in slopes:
            follows = tuple(sorted(slopes[b, i].items()))
            # As it is at the present widths.
            kernel = WideKernel(kernel, follows, 1, b).at(back)
            wide.setdefault((kernel, follows), []).append(b)
        else:
            still[kernel] = still.get(kernel, 0) + 1
    kernels = tuple(
        WideKernel(kernel, slope, len(blocks), blocks[0])
        for (kernel, slope), blocks in wide.items()
    )
    launched = Counter(k for _, _, k in _Lowered.of(flow.net, batch, dtype, runtime))
    told = Counter(still)
    for wide_kernel in kernels:
        told[wide_kernel.kernel] += wide_kernel.count
    return WidthCosts(flow, batch, tuple(free), kernels, still, tuple(irregular), launched == told)


def _whole(flow: Flow) -> dict[int, int]:
    """Return the least widths that fill whole vectors, where all free groups have such.

    Runtimes that lay images out in blocks of channels launch the same kernels for all of them.
    """
    widths = {}
    for index in flow.free:
        group = flow.groups[index]
        unit = math.lcm(group.grain, _VECTOR)
        widths[index] = -(-group.width // unit) * unit
    try:
        with_widths(flow, widths).chain(1)
    except ShapeError:
        return {index: flow.groups[index].width for index in flow.free}
    return widths


@dataclass(frozen=True)
class _Lowered:
    net: Net
    batch: int
    blocks: tuple[tuple[Kernel, ...], ...]

    @classmethod
    def of(cls, net: Net, batch: int, dtype: str, runtime: Runtime) -> _Lowered:
        blocks = tuple(
            runtime.lower(block, shape, dtype) for _, block, shape, _ in net.chain(batch)
        )
        return cls(net, batch, blocks)

    def __iter__(self) -> Iterator[tuple[int, int, Kernel]]:
        for b, kernels in enumerate(self.blocks):
            for i, kernel in enumerate(kernels):
                yield b, i, kernel


def _slopes(
    flow: Flow,
    index: int,
    whole: Mapping[int, int],
    now: _Lowered,
    batch: int,
    dtype: str,
    runtime: Runtime,
) -> dict[tuple[int, int], tuple[int, ...]] | None:
    """Return what every kernel's sizes gain per unit of one width; None where they don't so."""
    unit = math.lcm(flow.groups[index].grain, _VECTOR)
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for steps in (1, 2):
        change = steps * unit
        net = with_widths(flow, {**whole, index: whole[index] + change})
        try:
            other = _Lowered.of(net, batch, dtype, runtime)
        except ShapeError:
            return None
        for b, (before, after) in enumerate(zip(now.blocks, other.blocks, strict=True)):
            if before is after or before == after:
                continue
            if [_kind(k) for k in before] != [_kind(k) for k in after]:
                return None
            for i, (old, new) in enumerate(zip(before, after, strict=True)):
                gains = [n - o for o, n in zip(old.sizes, new.sizes, strict=True)]
                slope = tuple(gain // change for gain in gains)
                if any(gain % change for gain in gains) or found.get((b, i), slope) != slope:
                    return None
                if any(slope):
                    found[b, i] = slope
    return found


def _kind(kernel: Kernel) -> tuple[object, ...]:
    return kernel.op, kernel.dtype, kernel.epilogue, kernel.extra, len(kernel.sizes)


class Pricer:
    """Milliseconds of kernels as parts of a network: their share of its calibration too.

    Args:
        model: the latency model.
    """

    def __init__(self, model: LatencyModel) -> None:
        self.model = model
        # Groups that follow each other ask for the same kernels again and again.
        self._us: dict[Kernel, float] = {}
        self._std: dict[Kernel, float] = {}

    def kernels_us(self, kernels: Sequence[Kernel]) -> np.ndarray:
        """Return what kernels add to a network's latency, in microseconds, [n]."""
        nets, device, us = self.model.nets, self.model.device, self._us
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in us]
        for kernel, alone in zip(new, self.model.predict_us(new).tolist(), strict=True):
            us[kernel] = nets.scale * alone + nets.large_us * large_mb(kernel, device)
        return np.array([us[kernel] for kernel in kernels])

    def differences_us(self, kernels: Sequence[Kernel]) -> np.ndarray:
        """Return the deviation of the difference between any two kernels of one op, [n, n].

        Errors of neighbours agree, as far as they were found to where the model was fitted:
        :class:`tadnn.latency.Likeness`.
        """
        std = self._std
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in std]
        std.update(zip(new, self.model.predict(new).std_us.tolist(), strict=True))
        fitted = self.model.ops.get(kernels[0].op)
        likeness = fitted.likeness if fitted is not None else UNKNOWN
        mine = np.array([std[kernel] for kernel in kernels])
        return self.model.nets.scale * likeness.differences(kernels, mine)

    def parameters_us(self) -> float:
        """Return what one parameter adds to a network's latency, in microseconds."""
        return self.model.nets.weights_us * DTYPE_BYTES[self.model.setting.dtype] / 1e6

    def rest_us(self, launches: int) -> float:
        """Return what a network takes beside kernels and weights, in microseconds."""
        return self.model.nets.base_us + self.model.nets.gap_us * launches

    def total_us(self, costs: WidthCosts, changes: Mapping[int, int]) -> float:
        """Return a network's predicted latency after changes, its weights' share left out."""
        kernels = [(wide.at(changes), wide.count) for wide in costs.kernels]
        kernels += list(costs.still.items())
        us = self.kernels_us([kernel for kernel, _ in kernels])
        counts = np.array([count for _, count in kernels])
        return float(us @ counts) + self.rest_us(int(counts.sum()))
