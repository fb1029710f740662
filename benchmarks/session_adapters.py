"""CDECatapult's tables: wall times of TensorFlow sessions, and what is taken off them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from table_adapter import Measured, Row, TableAdapter, int_of, us_of

from tadnn.errors import KernelError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel

_NEGLIGIBLE_US: Final = 10.0
_REACHED: Final = 0.8  # of nominal bandwidth, by passes over a tensor


class _Session(TableAdapter):
    """TensorFlow 1 wall times: what a session costs is fitted to the table and taken off.

    The overhead is what the fastest rows take whose roofline is negligible. Beside it, a session
    launches bias and activation as kernels of their own: each one reads and writes the output,
    at the 80 % of nominal bandwidth that held-out errors on two devices settle for.
    Rows that leave less than the overhead's own scatter say nothing about the kernel.
    """

    @abstractmethod
    def kernel(self, row: Row) -> tuple[Kernel, int]:
        """Return a row's kernel, and how many passes over its output follow it."""

    def convert(self, rows: Sequence[Row], spec: DeviceSpec) -> Iterator[Measured | str]:
        kept: list[tuple[Row, Kernel, int]] = []
        for row in rows:
            try:
                kept.append((row, *self.kernel(row)))
            except KernelError as error:
                yield f"no such kernel: {str(error).split(';')[0]}"
        if not kept:
            return
        wall = np.array([us_of(row, "ms_median") for row, _, _ in kept])
        passes = np.array([2.0 * k.output_bytes * n for _, k, n in kept])
        passes /= _REACHED * spec.bandwidth_gbps * 1e3
        overhead, scatter = self.overhead(wall, [k for _, k, _ in kept], spec)
        for (row, kernel, _), us, after in zip(kept, wall, passes, strict=True):
            left = us - overhead - after
            if left < 3 * scatter:
                yield f"within the scatter of the session's overhead ({overhead:.0f} us)"
            else:
                yield Measured(kernel, float(left), float(row["ms_std"]) * 1e3)

    def overhead(
        self, wall_us: np.ndarray, kernels: Sequence[Kernel], spec: DeviceSpec
    ) -> tuple[float, float]:
        """Return a session's overhead and its scatter, microseconds."""
        peak = spec.peak_tflops["fp32"] * 1e6
        rate = spec.bandwidth_gbps * 1e3
        roofline = np.array([k.flops / peak + k.bytes_moved / rate for k in kernels])
        # At least a hundredth of the rows, where a table has no small kernels at all.
        limit = max(_NEGLIGIBLE_US, float(np.quantile(roofline, 0.01)))
        small = wall_us[roofline <= limit]
        low, quarter = np.quantile(small, [0.05, 0.25])
        return float(quarter), float(max(quarter - low, 0.01 * quarter))


class CdeConv(_Session):
    about = "convolutions, fp32, the session's overhead removed"

    def kernel(self, row: Row) -> tuple[Kernel, int]:
        h, r, stride = (int_of(row[c]) for c in ("hw_in", "ksize", "stride"))
        pad = 0
        if row["same_pad"] == "1":
            pad = max((-(-h // stride) - 1) * stride + r - h, 0)
        if pad % 2:
            # TensorFlow pads the far side by one more, in a kernel of its own that takes 15 %.
            raise KernelError("a convolution pads both sides alike; one side has a pixel more")
        bias = row["bias"] == "1"
        kernel = Kernel.of(
            "conv2d",
            n=int_of(row["batch"]),
            c=int_of(row["cin"]),
            h=h,
            w=h,
            k=int_of(row["cout"]),
            r=r,
            s=r,
            stride=stride,
            pad=pad // 2,
            dilation=1,
            groups=1,
        )
        return kernel, int(bias) + int(row["activation"] != "none")


class CdeDense(_Session):
    about = "linear, fp32, the session's overhead removed"

    def kernel(self, row: Row) -> tuple[Kernel, int]:
        sizes = {"m": row["batch"], "n": row["out_features"], "k": row["in_features"]}
        kernel = Kernel.of("linear", **{name: int_of(text) for name, text in sizes.items()})
        return kernel, int(row["activation"] != "none")
