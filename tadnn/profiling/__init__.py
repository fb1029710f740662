"""Clocks, measuring, what to measure next, and the database of what was measured."""

from tadnn.profiling.clock import Clock, Timed
from tadnn.profiling.cuda_clock import CudaClock
from tadnn.profiling.database import ProfileDatabase
from tadnn.profiling.fake_clock import FAKE_DEVICE, FakeClock
from tadnn.profiling.isolated_clock import IsolatedCpuClock
from tadnn.profiling.measuring import Measurement, measure
from tadnn.profiling.opening import FAKE, fake_device, open_clock
from tadnn.profiling.plan import kernel_pool, next_kernels
from tadnn.profiling.subject import NetRun, Subject
from tadnn.profiling.torch_clock import CpuClock

__all__ = [
    "FAKE",
    "FAKE_DEVICE",
    "Clock",
    "CpuClock",
    "CudaClock",
    "FakeClock",
    "IsolatedCpuClock",
    "Measurement",
    "NetRun",
    "ProfileDatabase",
    "Subject",
    "Timed",
    "fake_device",
    "kernel_pool",
    "measure",
    "next_kernels",
    "open_clock",
]
