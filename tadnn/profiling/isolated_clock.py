"""The clock of this machine's CPU: measures in clean processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tadnn.errors import RequestError, WorkFailed
from tadnn.hardware import detect_cpu
from tadnn.kernels import Kernel
from tadnn.profiling.clock import Clock, Timed
from tadnn.profiling.measurement import Measurement
from tadnn.profiling.subject import NetRun, Subject
from tadnn.profiling.torch_clock import CpuClock, machine_environment
from tadnn.runtimes import Setting, find_runtime


class IsolatedCpuClock(Clock):
    """Times every network in a process of its own, new and clean, as it would be deployed.

    Kernels share one process whose allocator keeps its memory. See
    :mod:`tadnn.profiling.bench` for why. This process imports no torch for it.
    """

    min_sample_us = CpuClock.min_sample_us
    min_net_sample_us = CpuClock.min_net_sample_us

    def __init__(self, setting: Setting) -> None:
        super().__init__(detect_cpu(), setting)
        find_runtime(setting.runtime).check(setting)
        self._socket: socket.socket | None = None
        self._kernels: _Child | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Start the server if it isn't running; it stays for further sessions of this clock."""
        if self._socket is None:
            self._socket = self._start()
        yield

    def prepare(self, subject: Subject) -> Timed:
        """Make a subject ready to run in its process.

        Raises:
            RequestError: the setting's runtime never launches such a kernel.
            WorkFailed: the runtime failed, or the process died.
        """
        if isinstance(subject, Kernel):
            if find_runtime(self.setting.runtime).observed:
                raise RequestError(
                    f"{self.setting.runtime} kernels are observed in networks; got {subject.key}"
                )
            if self._kernels is None:
                self._kernels = self._child(steady_heap=True)
            return _Remote(self._kernels, {"kernel": subject.key})
        child = self._child(steady_heap=False)
        return _Remote(child, {"net": subject.net.to_json(), "batch": subject.batch})

    def observe(self, subject: NetRun) -> dict[Kernel, Measurement]:
        """Run a network under its runtime's profiler, in a process of its own.

        Raises:
            RequestError: this runtime times kernels alone.
            WorkFailed: running failed, or the process died.
        """
        request = {"observe": subject.net.to_json(), "batch": subject.batch}
        answer = self._child(steady_heap=False).ask(request)
        return {
            Kernel.parse(key): Measurement(latency_us, spread_us, repeats)
            for key, latency_us, spread_us, repeats in answer["observed"]
        }

    def environment(self) -> dict[str, str]:
        """Return versions, the device, and how its clock is governed."""
        machine = machine_environment(self.device, self.setting)
        return {**machine, "process": "clean, one per network"}

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), self.setting.runtime]
            server = subprocess.Popen(
                [sys.executable, "-m", "tadnn.profiling.bench", *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        # It ends when its socket is closed: with this clock, or with this process.
        weakref.finalize(self, _end, ours, server)
        return ours

    def _child(self, *, steady_heap: bool) -> _Child:
        if self._socket is None:
            raise WorkFailed("a clock prepares subjects inside its session only")
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
        first = {"setting": self.setting.to_dict(), "steady_heap": steady_heap}
        return _Child(ours, first)


def _end(ours: socket.socket, server: subprocess.Popen[bytes]) -> None:
    ours.close()
    server.wait()


_DIED: Final = "the process that measures died (out of memory?)"


class _Child:
    """The other end of one process; it ends when this is dropped."""

    def __init__(self, end: socket.socket, first: dict[str, Any]) -> None:
        self._socket = end
        self._lines = end.makefile("rw", encoding="utf-8")
        self._count = 0
        self.unneeded: list[int] = []
        self._lines.write(json.dumps(first) + "\n")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            RequestError: it was refused.
            WorkFailed: it failed, or the process died.
        """
        if self.unneeded:
            request = {**request, "drop": self.unneeded}
            self.unneeded = []
        line = self._exchange(request)
        if not line:
            raise WorkFailed(_DIED)
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise RequestError(answer["refused"])
        if "failed" in answer:
            raise WorkFailed(answer["failed"])
        return answer

    def number(self) -> int:
        """Return a number that no other subject of this process has."""
        self._count += 1
        return self._count

    def _exchange(self, message: dict[str, Any]) -> str:
        try:
            self._lines.write(json.dumps(message) + "\n")
            self._lines.flush()
            return self._lines.readline()
        except ConnectionError:
            raise WorkFailed(_DIED) from None

    def __del__(self) -> None:
        self._socket.close()
        # What a dead process didn't take any more is of no use to anyone.
        with contextlib.suppress(OSError):
            self._lines.close()


class _Remote:
    """Runs a subject in its process; returns microseconds per run."""

    def __init__(self, child: _Child, subject: dict[str, Any]) -> None:
        self._child, self._number = child, child.number()
        child.ask({**subject, "as": self._number})

    def __call__(self, inner: int) -> float:
        return float(self._child.ask({"id": self._number, "inner": inner})["us"])

    def __del__(self) -> None:
        self._child.unneeded.append(self._number)
