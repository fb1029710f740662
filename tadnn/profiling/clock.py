"""What measures time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from tadnn.errors import RequestError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel
from tadnn.profiling.measurement import Measurement
from tadnn.profiling.subject import NetRun, Subject
from tadnn.runtimes import Setting

Timed = Callable[[int], float]
"""Runs its subject that many times in a row; returns microseconds per run."""


class Clock(ABC):
    """Runs subjects on one device in one setting and says how long they took.

    A clock belongs to one thread, and its callables are called inside
    :meth:`session`, of which a process has one open at a time. A callable owns
    its weights and inputs: drop it to free them. It reports each run as it was;
    repeating, medians and spreads are the business of
    :func:`tadnn.profiling.measure`.
    """

    min_sample_us: float = 0.0
    """One sample runs a kernel as often as it takes to last this long."""
    min_net_sample_us: float = 0.0
    """The same of a network."""

    def __init__(self, device: DeviceSpec, setting: Setting) -> None:
        self.device, self.setting = device, setting

    @abstractmethod
    def prepare(self, subject: Subject) -> Timed:
        """Make a subject ready to run.

        Raises:
            RequestError: the setting's runtime never launches such a kernel.
        """

    def observe(self, subject: NetRun) -> dict[Kernel, Measurement]:
        """Run a whole network and return how long each of its kernels took inside.

        Only for runtimes whose kernels are ``observed``.

        Raises:
            RequestError: this clock's runtime times kernels alone.
            WorkFailed: running failed.
        """
        raise RequestError(f"{self.setting.runtime} times kernels alone; got {subject.key}")

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """Fix what the setting fixes inside a ``with`` block; restore it after."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Return what was installed and set on the machine, for the record."""
