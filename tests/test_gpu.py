"""On a CUDA device: clocks, graphs, precision, and learning through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runtimes_contract import NET

from tadnn.hardware import detect_devices
from tadnn.kernels import Kernel
from tadnn.latency import load_latency_model
from tadnn.profiling import CudaClock, NetRun, measure
from tadnn.runtimes import Setting, find_runtime

pytestmark = pytest.mark.gpu
SQUARE = Kernel.of("linear", m=4096, n=4096, k=4096)
RUNTIMES_THERE = ["torch-eager", "cuda-graph", "cuda-kernels"]


@pytest.mark.parametrize("runtime", RUNTIMES_THERE)
@pytest.mark.parametrize("flush", [False, True])
def test_the_clock_measures_kernels_and_networks(runtime: str, flush: bool) -> None:
    clock = CudaClock(Setting(runtime=runtime, flush_l2=flush))
    found = measure(clock, [SQUARE, NetRun(NET)], min_repeats=3, max_repeats=5)
    assert all(m.latency_us > 0 for m in found)
    environment = clock.environment()
    assert environment["cuda"]
    assert environment["l2_flush"] == str(flush)


def test_no_kernel_beats_the_peak() -> None:
    device = detect_devices()["cuda:0"]
    for runtime in RUNTIMES_THERE:
        clock = CudaClock(Setting(runtime=runtime))
        (found,) = measure(clock, [SQUARE], min_repeats=3, max_repeats=9)
        assert found.latency_us > SQUARE.flops / (1.1 * device.peak_tflops["fp32"] * 1e6)


def test_a_kernels_repetitions_are_counted() -> None:
    eager, graph = (CudaClock(Setting(runtime=r)) for r in ("torch-eager", "cuda-graph"))
    (alone,), (among_others,) = (
        measure(clock, [SQUARE], min_repeats=5, max_repeats=9) for clock in (eager, graph)
    )
    # A kernel this large hides its launch, so both say what it takes; 32 of them would not.
    assert among_others.latency_us == pytest.approx(alone.latency_us, rel=0.3)


def test_a_graph_replays_into_the_same_output() -> None:
    runtime, setting = find_runtime("cuda-graph"), Setting(runtime="cuda-graph")
    with runtime.session(setting, "cuda:0"):
        run = runtime.prepare_net(NET, 2, setting, "cuda:0")
        first = run()
        assert isinstance(first, torch.Tensor)
        expected = first.clone()
        first.zero_()
        assert run() is first
        torch.testing.assert_close(first, expected)


def test_tf32_rounds_and_ieee_does_not() -> None:
    if "tf32" not in detect_devices()["cuda:0"].peak_tflops:
        pytest.skip("this GPU has no TF32")
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).cuda()
    exact = x.double() @ x.double()
    eager = find_runtime("torch-eager")
    errors = {}
    for math in ("ieee", "tf32"):
        with eager.session(Setting(math=math), "cuda:0"):
            errors[math] = float((x @ x - exact).abs().max())
    assert errors["tf32"] > 10 * errors["ieee"]


def test_a_device_is_learned_through_the_command_line(
    in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tadnn.cli.main import run

    arguments = "profile --name tiny --space resnet --input 3,32,32 --device cuda:0"
    arguments += " --runtime cuda-graph --dtype bf16 --threads 1 --kernels 40 --minutes 0.2 --json"
    assert run(arguments.split()) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["setting"]["runtime"] == "cuda-graph"
    assert load_latency_model("tiny").device.kind == "gpu"
