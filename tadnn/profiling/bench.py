"""Clean processes to measure in: ``python -m tadnn.profiling.bench FD RUNTIME``.

The process that runs a search is no place to measure: what its heap has been
through decides whether a tensor's memory is fresh from the system (and faulted
in page by page) or used before. The same ResNet took 3.4 ms in a new process and
2.6 ms in one that had trained; people deploy in the former.

This server imports what its runtime takes (torch, or ONNX Runtime without torch) and does
nothing else; for every socket handed to it, it forks a child that serves one clock over that
socket, a JSON line per request:

    {"setting": {...}, "steady_heap": false}        first
    {"kernel": "conv2d(...)"} or {"net": {...}, "batch": 1}   -> {"id": 0}
    {"id": 0, "inner": 3}                            -> {"us": 12.3}
    {"observe": {...}, "batch": 1}                   -> {"observed": [["conv2d(...)", us, ...]]}
    {"drop": [0]}

Server and children end when the other side of their socket is closed, so they
never outlive whoever started them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any, Final

from tadnn.errors import TadnnError, WorkFailed
from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.profiling.clock import Timed
from tadnn.profiling.subject import NetRun
from tadnn.profiling.torch_clock import CpuClock
from tadnn.runtimes import Setting, find_runtime

# glibc's names for them (malloc.h), and the largest threshold that it takes.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_MMAP_THRESHOLD: Final = 32 << 20


def serve(descriptor: int, runtime: str) -> None:
    """Fork a child for every socket that arrives, until the starter is gone."""
    # The point of this process: children find it imported.
    find_runtime(runtime).preload()
    # Ctrl-C is for the starter; it closes the sockets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as starter:
        while True:
            message, descriptors, _, _ = socket.recv_fds(starter, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                starter.close()
                _child(descriptors[0])
            os.close(descriptors[0])


def _child(descriptor: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _answer(descriptor)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the starter has gone: nobody to tell
    finally:
        # Never back into the server's loop, whatever happened.
        os._exit(code)


def _answer(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as other, other.makefile("rw", encoding="utf-8") as lines:
        first = json.loads(lines.readline() or "null")
        if first is None:
            return
        if first["steady_heap"]:
            keep_heap()
        clock = CpuClock(Setting.from_dict(first["setting"]))
        prepared: dict[int, Timed] = {}
        with clock.session():
            for line in lines:
                lines.write(json.dumps(_reply(clock, prepared, json.loads(line))) + "\n")
                lines.flush()


def _reply(clock: CpuClock, prepared: dict[int, Timed], request: Any) -> dict[str, Any]:
    for number in request.get("drop", ()):
        prepared.pop(number, None)
    try:
        if "inner" in request:
            return {"us": prepared[request["id"]](request["inner"])}
        if "observe" in request:
            seen = clock.observe(NetRun(Net.from_json(request["observe"]), request["batch"]))
            return {
                "observed": [[k.key, m.latency_us, m.spread_us, m.repeats] for k, m in seen.items()]
            }
        if "kernel" in request:
            timed = _awake(clock.prepare(Kernel.parse(request["kernel"])))
        else:
            timed = clock.prepare(NetRun(Net.from_json(request["net"]), request["batch"]))
    except WorkFailed as error:
        return {"failed": str(error)}
    except TadnnError as error:
        return {"refused": str(error)}
    except (RuntimeError, MemoryError) as error:  # what torch and ONNX Runtime raise
        return {"failed": f"{type(error).__name__}: {error}"}
    number = request["as"]
    prepared[number] = timed
    return {"id": number}


def _awake(timed: Timed) -> Timed:
    """Run a kernel unmeasured first: while the process waited, its worker threads went to sleep.

    The clock itself does as much for networks.
    """

    def after_itself(inner: int) -> float:
        timed(inner)
        return timed(inner)

    return after_itself


def keep_heap() -> bool:
    """Have this process's allocator keep what it got; False where it can't be told (no glibc).

    Kernels measured one after the other then don't pay for pages by the accident of
    what ran before; what a network pays for its large tensors is fitted on networks.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        and libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
