"""Which kernels a runtime launches when a network's widths change.

Found out by lowering the network again with one width changed, so nothing here knows layers or
runtimes.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Final

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.runtimes import Runtime
from tadnn.tail.candidates import finest_step
from tadnn.tail.flow import Flow
from tadnn.tail.widths import with_widths

_VECTOR: Final = 16
"""Channels that fill whole vectors on every device of today."""

At = tuple[int, int]
"""A kernel's block, and its place in it."""
Slopes = dict[At, tuple[Fraction, ...]]
"""What each size of a kernel gains per unit of a width, of blocks of channels a fraction; kernels
that it doesn't change left out."""


class Launching:
    """What a runtime launches for a network with other widths.

    Args:
        flow: the network's groups.
        batch: the batch size.
        dtype: the data type.
        runtime: what launches the kernels.
    """

    def __init__(self, flow: Flow, batch: int, dtype: str, runtime: Runtime) -> None:
        self._flow, self._batch = flow, batch
        self._dtype, self._runtime = dtype, runtime

    @cached_property
    def whole(self) -> dict[int, int]:
        """The least widths that fill whole vectors, where all free groups have such.

        Runtimes that lay images out in blocks of channels launch the same kernels for all of them.
        """
        widths = {}
        for index in self._flow.free:
            unit = self._unit(index)
            widths[index] = -(-self._flow.groups[index].width // unit) * unit
        try:
            with_widths(self._flow, widths).chain(1)
        except ShapeError:
            return {index: self._flow.groups[index].width for index in self._flow.free}
        return widths

    @cached_property
    def at_whole(self) -> dict[At, Kernel]:
        """What is launched at widths that fill whole vectors."""
        return self.launched(with_widths(self._flow, self.whole))

    def launched(self, net: Net) -> dict[At, Kernel]:
        """Return the kernels of a network.

        Raises:
            ShapeError: its shapes don't fit together.
        """
        return {
            (b, i): kernel
            for b, (_, block, shape, _) in enumerate(net.chain(self._batch))
            for i, kernel in enumerate(self._runtime.lower(block, shape, self._dtype))
        }

    def slopes(self, index: int) -> Slopes | None:
        """Return what kernels gain per unit of a group's width, whole vectors added to it.

        Returns:
            None where other kernels are launched, or sizes don't change in proportion.
        """
        unit = self._unit(index)
        gains = self._gains(index, unit)
        if gains is None:
            return None
        slopes = {at: tuple(gain / unit for gain in gained) for at, gained in gains.items()}
        return slopes if self._gains(index, 2 * unit) == _times(slopes, 2 * unit) else None

    def step(self, index: int, slopes: Slopes) -> int:
        """Return the least step of a group's width at which the same kernels are launched.

        A width that doesn't fill a runtime's blocks may cost it passes over whole images, which
        the kernels at widths that do know nothing of.

        Args:
            index: the group.
            slopes: as :meth:`slopes` gives them.
        """
        unit = self._unit(index)
        step = finest_step(self._flow.groups[index])
        while unit % step == 0 and step < unit:
            if self._gains(index, step) == _times(slopes, step):
                return step
            step *= 2
        return unit

    def _unit(self, index: int) -> int:
        # Of a grouped convolution, the channels of every group fill whole vectors.
        return self._flow.groups[index].grain * _VECTOR

    def _gains(self, index: int, change: int) -> Slopes | None:
        """Return what kernels' sizes gain by a change, those that don't left out.

        Returns:
            None where other kernels are launched.
        """
        net = with_widths(self._flow, {**self.whole, index: self.whole[index] + change})
        try:
            changed = self.launched(net)
        except ShapeError:
            return None
        if changed.keys() != self.at_whole.keys():
            return None
        gains = {}
        for at, before in self.at_whole.items():
            after = changed[at]
            if after is before:
                continue
            if _kind(before) != _kind(after):
                return None
            sizes = zip(before.sizes, after.sizes, strict=True)
            gained = tuple(Fraction(new - old) for old, new in sizes)
            if any(gained):
                gains[at] = gained
        return gains


def _times(slopes: Slopes, change: int) -> Slopes:
    return {at: tuple(change * each for each in slope) for at, slope in slopes.items()}


def _kind(kernel: Kernel) -> tuple[object, ...]:
    return kernel.op, kernel.dtype, kernel.epilogue, kernel.extra, len(kernel.sizes)
