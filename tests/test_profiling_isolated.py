"""The CPU clock that measures in clean processes."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tadnn.errors import RequestError, UnknownName, WorkFailed
from tadnn.kernels import Kernel
from tadnn.nets import Conv2d, NetBuilder, block
from tadnn.profiling import IsolatedCpuClock, NetRun, measure, open_clock
from tadnn.runtimes import Setting


@block
def only(b, width):  # type: ignore[no-untyped-def]
    b.add(Conv2d(width, 3), b.input, name="conv")


def net(width: int = 4) -> NetRun:
    builder = NetBuilder((1, 8, 8))
    builder.add("only", only(width))
    return NetRun(builder.build(), 2)


def children() -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if "tadnn.profiling.bench" in process.cmdline() and process.status() != "zombie"
    ]


@pytest.fixture(scope="module")
def clock() -> IsolatedCpuClock:
    return IsolatedCpuClock(Setting())


def test_it_is_the_clock_of_the_cpu() -> None:
    opened = open_clock("cpu", Setting(threads=2))
    assert isinstance(opened, IsolatedCpuClock)
    assert opened.environment()["process"] == "clean, one per network"
    assert opened.environment()["setting"] == "torch-eager fp32 ieee nchw, 2 threads"
    with pytest.raises(UnknownName, match="unknown runtime"):
        open_clock("cpu", Setting(runtime="tensorrt"))


def test_kernels_share_a_process_and_networks_have_their_own(clock: IsolatedCpuClock) -> None:
    kernels = [Kernel.of("relu", rows=8, cols=n) for n in (16, 32)]
    with clock.session():
        timed = [clock.prepare(subject) for subject in (*kernels, net(4), net(5))]
        assert all(call(2) > 0 for call in timed)
        assert len(children()) == 4, "a server, one for kernels, one for each network"
        del timed
        gc.collect()
        deadline = time.monotonic() + 20
        while len(children()) > 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(children()) == 2, "networks' processes end when they are dropped"


def test_measuring_works_in_several_sessions(clock: IsolatedCpuClock) -> None:
    for _ in range(2):
        found = measure(
            clock, [Kernel.of("linear", m=1, n=8, k=8), net()], min_repeats=3, max_repeats=3
        )
        assert [m.repeats for m in found] == [3, 3]
        assert all(m.latency_us > 0 for m in found)


def test_what_cannot_run_is_refused_and_the_process_lives_on(clock: IsolatedCpuClock) -> None:
    with clock.session():
        with pytest.raises(RequestError, match="no single call with the epilogue relu"):
            clock.prepare(Kernel.of("linear", m=1, n=8, k=8, epilogue=("relu",)))
        assert clock.prepare(Kernel.of("linear", m=1, n=8, k=8))(1) > 0


def test_networks_of_onnxruntime_run_and_are_observed_in_clean_processes() -> None:
    clock = IsolatedCpuClock(Setting("onnxruntime"))
    assert "spin within a run" in clock.environment()["session"]
    with clock.session():
        timed = clock.prepare(net())
        assert timed(2) > 0
        seen = clock.observe(net())
        assert {kernel.op for kernel in seen} == {"conv2d", "permute"}
        assert all(m.latency_us > 0 and m.repeats >= 8 for m in seen.values())
        with pytest.raises(RequestError, match="observed in networks"):
            clock.prepare(Kernel.of("relu", rows=8, cols=8))
        server = next(p for p in children() if p.cmdline()[-1] == "onnxruntime" and p.children())
        for process in (server, server.children()[0]):
            loaded = {Path(m.path).name for m in process.memory_maps()}
            assert any(name.startswith("onnxruntime") for name in loaded)
            assert not any("torch" in name for name in loaded)


def test_torch_times_kernels_alone(clock: IsolatedCpuClock) -> None:
    with clock.session(), pytest.raises(RequestError, match="can't observe them"):
        clock.observe(net())


def test_a_process_that_dies_is_an_error() -> None:
    clock = IsolatedCpuClock(Setting())
    with clock.session():
        timed = clock.prepare(net())
        for process in children():
            process.kill()
        with pytest.raises(WorkFailed, match="died"):
            timed(1)


def test_outside_of_a_session_nothing_is_prepared() -> None:
    with pytest.raises(WorkFailed, match="session"):
        IsolatedCpuClock(Setting()).prepare(net())


def test_the_server_ends_with_its_starter() -> None:
    program = (
        "import json, os, psutil, time\n"
        "from tadnn.kernels import Kernel\n"
        "from tadnn.profiling import IsolatedCpuClock\n"
        "from tadnn.runtimes import Setting\n"
        "clock = IsolatedCpuClock(Setting())\n"
        "with clock.session():\n"
        "    timed = clock.prepare(Kernel.of('relu', rows=8, cols=8))\n"
        "    timed(1)\n"
        "    found = psutil.Process().children(recursive=True)\n"
        "    print(json.dumps([p.pid for p in found]), flush=True)\n"
        "    time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pids = json.loads(starter.stdout.readline())
    assert len(pids) == 2
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    gone, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 20)
    assert not alive, f"{alive} outlived their starter; {gone} ended"


def test_the_heap_can_be_kept() -> None:
    # In a process of its own: it can't be taken back.
    code = "from tadnn.profiling.bench import keep_heap; print(keep_heap())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(sys.platform == "linux")
