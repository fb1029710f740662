"""Kernels as data: keys, FLOPs, bytes moved, and the tables that hold their latencies."""

from tadnn.kernels.kernel import Kernel
from tadnn.kernels.op import Op, conv_out, pool_out, transposed_out
from tadnn.kernels.ops import DTYPE_BYTES, EPILOGUES, MAX_SIZE, OPAQUE, OPS
from tadnn.kernels.tables import (
    KernelRow,
    TimingRow,
    is_timing_table,
    read_kernel_table,
    read_timing_table,
    write_kernel_table,
    write_timing_table,
)

__all__ = [
    "DTYPE_BYTES",
    "EPILOGUES",
    "MAX_SIZE",
    "OPAQUE",
    "OPS",
    "Kernel",
    "KernelRow",
    "Op",
    "TimingRow",
    "conv_out",
    "is_timing_table",
    "pool_out",
    "read_kernel_table",
    "read_timing_table",
    "transposed_out",
    "write_kernel_table",
    "write_timing_table",
]
