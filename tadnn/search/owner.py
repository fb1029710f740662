"""Which process evaluates a trial, and whether it is still there."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

#: Trial user attribute: who evaluates the trial.
WORKER_ATTR = "tadnn:worker"

# The kernel counts a process's start in ticks since boot; when the clock is set right, the same
# start reads a little different. No process id comes round again within that time.
_START_TOLERANCE_S = 2.0


@dataclass(frozen=True)
class Owner:
    """A process, told apart from a later one that got the same number.

    ``started`` is in seconds since the epoch. ``taken`` counts how often the trial was taken up
    by a worker; it rises when one died with the trial on its hands.
    """

    host: str
    pid: int
    started: float
    taken: int = 1

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        process = psutil.Process()
        return cls(platform.node(), process.pid, process.create_time())

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Owner | None:
        """Read the owner from a trial's user attributes; None where there is none."""
        record = attributes.get(WORKER_ATTR)
        if not isinstance(record, Mapping):
            return None
        return cls(
            str(record["host"]),
            int(record["pid"]),
            float(record["started"]),
            int(record.get("taken", 1)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-able form that `of` reads."""
        record = {"host": self.host, "pid": self.pid, "started": self.started}
        return record if self.taken == 1 else {**record, "taken": self.taken}

    def is_same(self, other: Owner) -> bool:
        """Tell whether both are one process."""
        close = abs(self.started - other.started) <= _START_TOLERANCE_S
        return self.host == other.host and self.pid == other.pid and close

    def is_here(self) -> bool:
        """Tell whether the process ran on this machine, where its end can be noticed."""
        return self.host == platform.node()

    def is_alive(self) -> bool:
        """Tell whether the process still runs; only true or false of one that `is_here`."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(process.create_time() - self.started) <= _START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            # Somebody's process has this number; whether it is the one cannot be asked.
            return True
