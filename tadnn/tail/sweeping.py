"""Latency against one size of a kernel, predicted and measured: the staircase."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tadnn.errors import RequestError
from tadnn.files import write_text
from tadnn.kernels import Kernel
from tadnn.latency import LatencyModel
from tadnn.profiling import Clock, measure
from tadnn.progress import SILENT, Progress
from tadnn.tail.cost import Pricer
from tadnn.tail.stairs import efficient_widths

MOST_VALUES: Final = 4096
_OVER: Final = re.compile(
    r"(?P<size>[a-z_]+)=(?P<low>\d{1,9}):(?P<high>\d{1,9})(:(?P<step>\d{1,9}))?"
)


@dataclass(frozen=True)
class Sweep:
    """A kernel at several values of one size.

    Attributes:
        kernel: as it was given.
        size: which size.
        values: ascending, [n].
        latency_us: predicted, [n].
        std_us: of the predictions, [n].
        in_range: whether in the profiled range, [n].
        efficient: which values are efficient, [n]; see :func:`efficient_widths`.
        measured_us: measured, [n]; None where nothing was.
        spread_us: of the measurements, [n].
    """

    kernel: Kernel
    size: str
    values: tuple[int, ...]
    latency_us: tuple[float, ...]
    std_us: tuple[float, ...]
    in_range: tuple[bool, ...]
    efficient: tuple[bool, ...]
    measured_us: tuple[float, ...] | None = None
    spread_us: tuple[float, ...] | None = None

    @property
    def efficient_values(self) -> tuple[int, ...]:
        """Those of the values that are efficient."""
        pairs = zip(self.values, self.efficient, strict=True)
        return tuple(value for value, efficient in pairs if efficient)

    def to_json(self) -> dict[str, Any]:
        """Return what ``tadnn sweep --json`` prints."""
        return {
            "kernel": self.kernel.key,
            "over": self.size,
            "points": [dict(zip(self.columns, row, strict=True)) for row in self.rows()],
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what :meth:`rows` gives."""
        names = (self.size, "latency_us", "std_us", "in_range", "efficient")
        return names if self.measured_us is None else (*names, "measured_us", "spread_us")

    def rows(self) -> list[tuple[Any, ...]]:
        """Return one row per value."""
        rows = [self.values, self.latency_us, self.std_us, self.in_range, self.efficient]
        if self.measured_us is not None and self.spread_us is not None:
            rows += [self.measured_us, self.spread_us]
        return list(zip(*rows, strict=True))

    def write_csv(self, path: Path) -> None:
        """Write the rows, atomically."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(self.columns)
        table.writerows(
            [f"{v:.6g}" if isinstance(v, float) else int(v) for v in row] for row in self.rows()
        )
        write_text(path, text.getvalue())


def sweep_values(kernel: Kernel, over: str) -> tuple[str, list[int]]:
    """Return the size and its values of a text such as ``k=16:512:16`` (ends included).

    Sizes that change together in a depthwise convolution (c, k and groups equal) may be swept
    by any of them.

    Raises:
        RequestError: it reads otherwise, the kernel has no such size, or values are too many.
    """
    match = _OVER.fullmatch(over.strip())
    if match is None:
        raise RequestError(f"--over reads SIZE=LOW:HIGH or SIZE=LOW:HIGH:STEP; got {over!r}")
    size, low, high = match["size"], int(match["low"]), int(match["high"])
    step = int(match["step"] or 1)
    if size not in kernel.dims:
        raise RequestError(
            f"--over names a size of {kernel.op}: {', '.join(kernel.dims)}; got {size!r}"
        )
    if not 1 <= low <= high or step < 1 or (high - low) // step + 1 > MOST_VALUES:
        raise RequestError(
            f"--over ascends from at least 1, in at most {MOST_VALUES} values; got {over!r}"
        )
    return size, list(range(low, high + 1, step))


def swept(kernel: Kernel, size: str, values: Sequence[int]) -> list[Kernel]:
    """Return the kernel at every value; a depthwise convolution stays one.

    Raises:
        KernelError: a value that no such kernel has.
    """
    together = {"c", "k", "groups"} if kernel.op == "conv2d" else set()
    depthwise = size in together and len({kernel.dim(name) for name in together}) == 1
    names = together if depthwise and kernel.dim("groups") > 1 else {size}
    return [kernel.replace(**dict.fromkeys(names, value)) for value in values]


def sweep_kernel(
    model: LatencyModel,
    kernel: Kernel,
    size: str,
    values: Sequence[int],
    clock: Clock | None = None,
    progress: Progress = SILENT,
) -> Sweep:
    """Predict a kernel at each value of one of its sizes, and measure it where a clock is given.

    Raises:
        KernelError: a value that no such kernel has.
        SettingMismatch: the model is fitted for another dtype.
        RequestError: the clock's runtime never launches such a kernel.
    """
    kernels = swept(kernel, size, values)
    predicted = model.predict(kernels)
    deviation = Pricer(model).differences_us(kernels) / model.nets.scale
    efficient = efficient_widths(predicted.latency_us, deviation)
    found = Sweep(
        kernel,
        size,
        tuple(values),
        tuple(predicted.latency_us.tolist()),
        tuple(predicted.std_us.tolist()),
        tuple(predicted.in_range.tolist()),
        tuple(efficient.tolist()),
    )
    if clock is None:
        return found
    measured = measure(clock, kernels, progress=progress)
    return replace(
        found,
        measured_us=tuple(m.latency_us for m in measured),
        spread_us=tuple(m.spread_us for m in measured),
    )
