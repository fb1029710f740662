"""What a network's kernels become when its widths change.

A kernel's sizes are affine in the widths (an input's channels are sums of widths), as long as
the runtime launches the same kernels; :mod:`tadnn.tail.launching` finds both out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

import numpy as np

from tadnn.kernels import DTYPE_BYTES, Kernel
from tadnn.latency import LatencyModel
from tadnn.latency.likeness import UNKNOWN
from tadnn.latency.nets import large_mb
from tadnn.runtimes import find_runtime
from tadnn.tail.flow import Flow
from tadnn.tail.launching import At, Launching

_ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class WideKernel:
    """A kernel whose sizes follow widths.

    Attributes:
        kernel: as it is at the present widths.
        sizes: the same before they are rounded up: half a block of channels is a block.
        slopes: by group, what each of its sizes gains per unit of width.
        count: how many of the network's launches are this one.
        block: the number of the first block that launches it.
    """

    kernel: Kernel
    sizes: tuple[float, ...]
    slopes: tuple[tuple[int, tuple[float, ...]], ...]
    count: int
    block: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups whose widths it follows."""
        return tuple(group for group, _ in self.slopes)

    def at(self, changes: Mapping[int, int]) -> Kernel:
        """Return the kernel after changes of widths (new minus present, by group)."""
        sizes = np.array(self.sizes)
        for group, slope in self.slopes:
            if change := changes.get(group, 0):
                sizes = sizes + change * np.array(slope)
        return _sized(self.kernel, _whole(sizes))

    def over(
        self, scope: Sequence[int], changes: Sequence[np.ndarray]
    ) -> tuple[list[Kernel], np.ndarray]:
        """Return the distinct kernels over combinations of changes, and which one stands where.

        Args:
            scope: groups.
            changes: of each of them, [k_i]; the second result is [k_1, k_2, ...].
        """
        slopes = dict(self.slopes)
        sizes = np.array(self.sizes)
        for i, (group, change) in enumerate(zip(scope, changes, strict=True)):
            gained = np.multiply.outer(change, np.array(slopes[group]))
            axes = [1] * len(scope) + [len(self.sizes)]
            axes[i] = len(change)
            sizes = sizes + gained.reshape(axes)
        flat = _whole(sizes.reshape(-1, len(self.sizes)))
        _, first, where = np.unique(_numbers(flat), return_index=True, return_inverse=True)
        kernels = [_sized(self.kernel, row) for row in flat[first]]
        return kernels, where.reshape([len(c) for c in changes])


def _sized(like: Kernel, sizes: np.ndarray) -> Kernel:
    return Kernel(like.op, tuple(sizes.tolist()), like.dtype, like.epilogue, like.extra)


def _whole(sizes: np.ndarray) -> np.ndarray:
    """Return sizes rounded up, but for what floating point adds to them."""
    whole: np.ndarray = np.ceil(sizes - _ROUNDING).astype(np.int64)
    return whole


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
        steps: the groups that may change, by index, in order: multiples of the step launch the
            kernels told here.
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
    steps: Mapping[int, int]
    kernels: tuple[WideKernel, ...]
    still: Mapping[Kernel, int]
    irregular: tuple[str, ...] = field(default=())
    exact: bool = True

    @property
    def free(self) -> tuple[int, ...]:
        """The groups that may change, by index, in order."""
        return tuple(self.steps)


def width_costs(flow: Flow, model: LatencyModel, batch: int = 1) -> WidthCosts:
    """Find out how a network's kernels follow its widths.

    Args:
        flow: the network's groups.
        model: the latency model, whose runtime and dtype say what is launched.
        batch: the batch size.
    """
    runtime, dtype = find_runtime(model.setting.runtime), model.setting.dtype
    launching = Launching(flow, batch, dtype, runtime)
    slopes: dict[At, dict[int, tuple[Fraction, ...]]] = {}
    steps: dict[int, int] = {}
    irregular = []
    for index in flow.free:
        found = launching.slopes(index)
        if found is None:
            irregular.append(flow.groups[index].name)
            continue
        steps[index] = launching.step(index, found)
        for at, slope in found.items():
            slopes.setdefault(at, {})[index] = slope
    wide: dict[tuple[object, ...], WideKernel] = {}
    still: Counter[Kernel] = Counter()
    back = {index: flow.groups[index].width - width for index, width in launching.whole.items()}
    for at, kernel in launching.at_whole.items():
        if at not in slopes:
            still[kernel] += 1
            continue
        made = _wide_kernel(kernel, slopes[at], back, at[0])
        key = (made.kernel, made.sizes, made.slopes)
        known = wide.get(key)
        wide[key] = made if known is None else replace(known, count=known.count + 1)
    kernels = tuple(wide.values())
    launched = Counter(launching.launched(flow.net).values())
    told = Counter(still)
    for wide_kernel in kernels:
        told[wide_kernel.kernel] += wide_kernel.count
    exact = launched == told
    return WidthCosts(flow, batch, steps, kernels, still, tuple(irregular), exact)


def _wide_kernel(
    kernel: Kernel,
    slopes: Mapping[int, tuple[Fraction, ...]],
    changes: Mapping[int, int],
    block: int,
) -> WideKernel:
    """Return a kernel of some widths as one of these widths changed."""
    sizes = [Fraction(size) for size in kernel.sizes]
    for group, slope in slopes.items():
        gains = (changes.get(group, 0) * each for each in slope)
        sizes = [size + gain for size, gain in zip(sizes, gains, strict=True)]
    exact = tuple(map(float, sizes))
    follows = tuple((group, tuple(map(float, slopes[group]))) for group in sorted(slopes))
    return WideKernel(_sized(kernel, _whole(np.array(exact))), exact, follows, 1, block)


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
