from __future__ import annotations

import gc
import math
from statistics import stdev

import pytest
import torch

from tadnn.errors import RequestError, UnknownName
from tadnn.hardware import detect_devices, find_device
from tadnn.kernels import Kernel
from tadnn.nets import BlockBuilder, Conv2d, Net, ReLU, block
from tadnn.profiling import CpuClock, CudaClock, FakeClock, NetRun, measure, open_clock
from tadnn.profiling.fake_clock import BASE_US, FAKE_DEVICE, GAP_US, LAUNCH_US
from tadnn.runtimes import Setting, find_runtime, lower_net


@block
def stem(b: BlockBuilder, out: int) -> None:
    b.add(ReLU(), b.add(Conv2d(out, 3), b.input))


NET = Net((3, 8, 8), (("stem", stem(8)), ("body", stem(16))))


def linear(n: int, m: int = 16) -> Kernel:
    return Kernel.of("linear", m=m, n=n, k=1000)


def test_fake_latency_by_hand() -> None:
    # One tile of 16 rows and 16 lanes, k = 1000: 512,000 FLOPs; a unit does 0.128e12 / 4 a second.
    # Memory: (16 * 1000 + 1000 * 8 + 16 * 8) * 4 bytes at 20e9 a second.
    clock = FakeClock(Setting(), noise=0.0)
    assert clock.prepare(linear(8))(1) == pytest.approx(2 + 16.0 + 24128 * 4 / 20e3)


def test_the_fake_device_has_stairs_of_vectors_and_threads() -> None:
    def waves(n: int, threads: int) -> int:
        clock = FakeClock(Setting(threads=threads), noise=0.0)
        kernel = linear(n)
        return round((clock.kernel_us(kernel) - 2 - kernel.bytes_moved / 20e3) / 16.0)

    widths = (1, 16, 17, 32, 33, 48, 49, 64, 65)
    assert [waves(n, 1) for n in widths] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert [waves(n, 2) for n in widths] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert waves(65, 64) == 2, "the device has 4 units, however many threads are asked for"


def test_a_fake_networks_time_is_that_of_its_kernels_and_gaps() -> None:
    clock = FakeClock(Setting(), noise=0.0)
    kernels = lower_net(NET, 2, "fp32", find_runtime("torch-eager"))
    expected = BASE_US + sum(clock.kernel_us(kernel) + GAP_US for kernel in kernels)
    assert clock.prepare(NetRun(NET, 2))(1) == pytest.approx(expected)
    assert len(kernels) == 4


def test_fake_noise_is_reproducible_and_as_large_as_asked() -> None:
    def samples(seed: int, kernel: Kernel, count: int) -> list[float]:
        timed = FakeClock(Setting(), seed=seed, noise=0.05).prepare(kernel)
        return [timed(1) for _ in range(count)]

    first = samples(0, linear(8), 400)
    assert first == samples(0, linear(8), 400)
    assert first[:5] != samples(1, linear(8), 5)
    assert len(set(first)) == 400
    logs = [math.log(sample) for sample in first]
    assert stdev(logs) == pytest.approx(0.05, rel=0.15)


def test_the_fake_clock_takes_any_device() -> None:
    gpu = FakeClock(Setting(), find_device("v100"), noise=0.0)
    assert gpu.kernel_us(linear(64 * 81)) > gpu.kernel_us(linear(64 * 80)) + 1, "80 SMs"
    assert gpu.kernel_us(linear(64 * 80)) < gpu.kernel_us(linear(64 * 79)) + 1
    assert "fake" in gpu.environment().values()
    assert FAKE_DEVICE.slug == "cpu-fake"


def test_the_cpu_clock_measures_kernels_and_networks() -> None:
    clock = CpuClock(Setting())
    subjects = [
        Kernel.of("relu", rows=8, cols=64),
        Kernel.of("linear", m=4, n=32, k=64, epilogue=("bias",)),
        NetRun(NET, 1),
    ]
    measured = measure(clock, subjects, min_repeats=3, max_repeats=3)
    assert [m.repeats for m in measured] == [3, 3, 3]
    assert all(m.latency_us > 0 and m.spread_us >= 0 for m in measured)


def test_the_cpu_clocks_session_restores_what_it_fixed() -> None:
    threads = torch.get_num_threads()
    with CpuClock(Setting(threads=threads + 1)).session():
        assert torch.get_num_threads() == threads + 1
        assert not gc.isenabled()
    assert torch.get_num_threads() == threads
    assert gc.isenabled()


def test_a_clock_counts_a_kernels_runs_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CpuClock(Setting())
    runs: list[str] = []
    runtime = find_runtime("torch-eager")
    monkeypatch.setattr(runtime, "prepare_kernel", lambda *_: lambda: runs.append("kernel"))
    assert clock.prepare(linear(8))(5) > 0
    assert runs == ["kernel"] * 5


@pytest.mark.parametrize(
    ("run_us", "warm_up", "sample"),
    # Twenty milliseconds unmeasured and five measured, or one run of each.
    [(100, 200, 50), (800, 25, 7), (50_000, 1, 1)],
)
def test_a_network_is_settled_before_it_is_measured(
    run_us: int, warm_up: int, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    runs = 0

    def run() -> None:
        nonlocal now_ns, runs
        now_ns += 1000 * run_us
        runs += 1

    monkeypatch.setattr("tadnn.profiling.torch_clock.time.perf_counter_ns", lambda: now_ns)
    monkeypatch.setattr(find_runtime("torch-eager"), "prepare_net", lambda *_: run)
    (measured,) = measure(CpuClock(Setting()), [NetRun(NET)])
    assert measured.latency_us == run_us
    # Three times to see how many runs make a sample, then the samples.
    sizes = [1, 1, sample] if sample > 1 else [1, 1]
    assert runs == len(sizes) * warm_up + sum(sizes) + measured.repeats * (warm_up + sample)


def test_a_network_that_takes_a_second_is_not_run_unmeasured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0
    runs = 0

    def run() -> None:
        nonlocal now_ns, runs
        now_ns += 2_000_000_000
        runs += 1

    monkeypatch.setattr("tadnn.profiling.torch_clock.time.perf_counter_ns", lambda: now_ns)
    monkeypatch.setattr(find_runtime("torch-eager"), "prepare_net", lambda *_: run)
    timed = CpuClock(Setting()).prepare(NetRun(NET))
    assert timed(1) == 2e6
    assert runs == 2
    assert timed(1) == 2e6
    assert runs == 3


def test_the_cpu_clocks_environment_says_where_and_how() -> None:
    environment = CpuClock(Setting(threads=2)).environment()
    assert environment["device"] == detect_devices()["cpu"].name
    assert environment["setting"] == "torch-eager fp32 ieee nchw, 2 threads"
    assert environment["torch"] == torch.__version__
    assert environment["governor"]
    assert all(isinstance(value, str) for value in environment.values())


def test_clocks_refuse_what_they_lack() -> None:
    with pytest.raises(UnknownName, match="unknown runtime"):
        CpuClock(Setting(runtime="tensorrt"))
    with pytest.raises(RequestError, match="unknown device 'cuda:99'"):
        CudaClock(Setting(), 99)


def test_the_fake_clock_pretends_to_be_any_device() -> None:
    clock = open_clock("fake:a100-40gb", Setting(runtime="cuda-graph"))
    assert clock.device.slug == "a100-40gb-fake", "what is computed never mixes with measurements"
    assert (clock.device.units, clock.device.kind) == (108, "gpu")
    assert open_clock("fake", Setting()).device is FAKE_DEVICE
    with pytest.raises(UnknownName, match="a100"):
        open_clock("fake:a100-40", Setting())


def test_a_pretended_gpu_knows_tf32() -> None:
    kernel = Kernel.of("linear", m=4096, n=4096, k=4096)
    exact, rounded = (
        FakeClock(Setting(math=math), find_device("a100"), noise=0.0).kernel_us(kernel)
        for math in ("ieee", "tf32")
    )
    peaks = find_device("a100").peak_tflops
    memory = LAUNCH_US + kernel.bytes_moved / (find_device("a100").bandwidth_gbps * 1e3)
    ratio = (exact - memory) / (rounded - memory)
    assert ratio == pytest.approx(peaks["tf32"] / peaks["fp32"])


def test_kernels_alone_have_no_gaps() -> None:
    clock = FakeClock(Setting(runtime="cuda-kernels"), find_device("v100"), noise=0.0)
    kernels = lower_net(NET, 2, "fp32", find_runtime("cuda-kernels"))
    alone = sum(clock.kernel_us(kernel) for kernel in kernels)
    assert clock.true_us(NetRun(NET, 2)) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(runtime="cuda-graph"), "cuda-graph runs on cuda devices; got 'cpu'"),
        (Setting(runtime="cuda-kernels"), "cuda-kernels runs on cuda devices; got 'cpu'"),
        (Setting(flush_l2=True), "CUDA devices only"),
    ],
)
def test_what_a_cpu_cannot_run_is_refused(setting: Setting, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        open_clock("cpu", setting)


def test_a_call_that_makes_several_runs_is_counted_as_such() -> None:
    calls: list[None] = []
    timed = CpuClock(Setting())._timed(lambda: calls.append(None), 32)
    one = timed(1)
    assert len(calls) == 1
    assert one > 0
    timed(33)
    assert len(calls) == 3, "two calls make 64 runs, at least 33"
