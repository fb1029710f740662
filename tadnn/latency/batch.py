"""Kernels of one op as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from tadnn.hardware import DeviceSpec
from tadnn.kernels import DTYPE_BYTES, EPILOGUES, OPS, Kernel
from tadnn.latency.quantization import occupancy, peak_of, slots_of

_OUTPUTS: Final = 4  # a side of the tile that Winograd's algorithm computes at once


@dataclass(frozen=True)
class KernelBatch:
    """Kernels of one op on one device in one setting, as arrays.

    Attributes:
        op: the op they share.
        dims: arrays [n] by size name: whole numbers, float64 so that products don't overflow.
        dtype: the dtype they share.
        device: where they run.
        threads: CPU threads of one operator.
        flops: [n].
        bytes_moved: [n].
        epilogues: 0 or 1 per part that ``EPILOGUES`` knows, in its order, [n, parts].
        math: whether tensor cores round fp32 operands; see ``Setting``.
    """

    op: str
    dims: Mapping[str, np.ndarray]
    dtype: str
    device: DeviceSpec
    threads: int
    flops: np.ndarray
    bytes_moved: np.ndarray
    epilogues: np.ndarray
    math: str = "ieee"

    @classmethod
    def of(
        cls, kernels: Sequence[Kernel], device: DeviceSpec, threads: int, math: str = "ieee"
    ) -> KernelBatch:
        """Collect kernels that share op and dtype (at least one)."""
        op, dtype = kernels[0].op, kernels[0].dtype
        table = np.array([k.sizes for k in kernels], dtype=float)
        dims = {name: table[:, i] for i, name in enumerate(OPS[op].sizes)}
        if any(k.extra for k in kernels):
            names = OPS[op].optional
            dims |= {name: np.array([k.dim(name) for k in kernels], dtype=float) for name in names}
        # A row per epilogue, not per kernel: thousands of lists at once wake the collector.
        rows = {e: [part in e for part in EPILOGUES] for e in {k.epilogue for k in kernels}}
        parts = np.array([rows[k.epilogue] for k in kernels], dtype=float)
        extra = parts @ np.array(list(EPILOGUES.values()), dtype=float)
        moved = OPS[op].read(dims) + (1 + extra) * OPS[op].output(dims)
        flops = np.asarray(OPS[op].flops(dims), dtype=float)
        return cls(op, dims, dtype, device, threads, flops, moved * DTYPE_BYTES[dtype], parts, math)

    def __len__(self) -> int:
        return len(self.flops)

    def as_linear(self) -> tuple[np.ndarray, KernelBatch] | None:
        """Return which kernels are one matrix product, [n], and all as the linear of theirs.

        A convolution without groups is its implicit GEMM; batched products are as much work as
        one of all their rows. None where the op is no matrix product.
        """
        matrix = OPS[self.op].matrix(self.dims)
        if matrix is None:
            return None
        groups, m, n, k = (np.broadcast_to(size, self.flops.shape) for size in matrix)
        one = np.full(len(self), True) if self.op == "bmm" else groups == 1
        dims = {"m": groups * m, "n": n, "k": k}
        return one, replace(self, op="linear", dims=dims)

    @property
    def peak_tflops(self) -> float:
        """The device's peak for these kernels, 1e12 FLOPs a second."""
        return peak_of(self.device, self.dtype, self.math)

    @cached_property
    def occupancy(self) -> tuple[np.ndarray, np.ndarray]:
        """Waves and utilisation, [n] each."""
        return occupancy(self.op, self.dims, self.device, self.dtype, self.threads)

    @cached_property
    def roofline(self) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds of arithmetic, rounded up to whole waves and vectors, and of memory; [n].

        Where no matrix product says how the arithmetic is cut up, nothing is rounded.
        """
        device = self.device
        share = slots_of(device, self.threads) / device.units
        compute = self.flops / (self.peak_tflops * share * 1e6)
        if OPS[self.op].matrix(self.dims) is not None:
            compute = compute / self.occupancy[1]
        return compute, self.bytes_moved / (device.bandwidth_gbps * 1e3)

    @cached_property
    def least_us(self) -> np.ndarray:
        """Microseconds below which no GPU gets, [n].

        Zero on CPUs, whose peaks are estimates, and on AMD's, whose matrix units double theirs.
        Arithmetic at the nominal peak, and what the L2 can't hold at the nominal bandwidth.
        Fast algorithms spare multiplications of windows of stride 1, the more the larger the
        tile: of 4 outputs a side, beyond which Winograd's lose their digits in fp32 (Lavin &
        Gray 2016, section 4.1), 4 in 3x3 windows.
        """
        device = self.device
        if device.kind != "gpu" or device.vendor != "NVIDIA":
            return np.zeros(len(self))
        compute = self.flops / (self.peak_tflops * 1e6) / self._spared
        moved = np.maximum(self.bytes_moved - device.l2_mb * 1e6, 0.0)
        return np.maximum(compute, moved / (device.bandwidth_gbps * 1e3))

    @property
    def _spared(self) -> np.ndarray | float:
        """How many times fewer multiplications the best algorithm needs, [n] or 1."""
        if not {"r", "s", "stride", "dilation"} <= set(self.dims):
            return 1.0
        spared: np.ndarray | float = 1.0
        for name in ("r", "s"):
            window = self.dims[name]
            spared = spared * _OUTPUTS * window / (window + _OUTPUTS - 1)
        plain = (self.dims["stride"] == 1) & (self.dims["dilation"] == 1)
        return np.where(plain, spared, 1.0)
