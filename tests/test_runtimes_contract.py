"""The contract of runtimes, on every one of torch's; those of CUDA devices run there only."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from runtimes_contract import LoweringContract, RunningContract

from tadnn.runtimes import RUNTIMES

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


class TestTorchEager(LoweringContract, RunningContract):
    name = "torch-eager"


@pytest.mark.slow
@compiler
class TestTorchCompile(RunningContract):
    name = "torch-compile"


@pytest.mark.slow
@compiler
class TestTorchCompileNhwc(RunningContract):
    name = "torch-compile"
    layout = "nhwc"


class TestTorchCompileLowers(LoweringContract):
    name = "torch-compile"


class TestCudaGraphLowers(LoweringContract):
    name = "cuda-graph"


class TestCudaKernelsLowers(LoweringContract):
    name = "cuda-kernels"


class OnCuda(RunningContract):
    device = "cuda:0"


@pytest.mark.gpu
class TestTorchEagerOnCuda(OnCuda):
    name = "torch-eager"


@pytest.mark.gpu
class TestTorchEagerOnCudaFp16(OnCuda):
    name = "torch-eager"
    dtype = "fp16"
    tolerance = 0.05


@pytest.mark.gpu
class TestTorchEagerOnCudaTf32(OnCuda):
    name = "torch-eager"
    math = "tf32"
    tolerance = 0.02


@pytest.mark.gpu
class TestCudaGraph(OnCuda):
    name = "cuda-graph"


@pytest.mark.gpu
class TestCudaGraphBf16Nhwc(OnCuda):
    name = "cuda-graph"
    dtype = "bf16"
    layout = "nhwc"
    tolerance = 0.2


@pytest.mark.gpu
class TestCudaKernels(OnCuda):
    name = "cuda-kernels"


@pytest.mark.gpu
class TestTorchCompileOnCuda(OnCuda):
    name = "torch-compile"


def test_every_runtime_lowers_without_torch() -> None:
    code = """
import sys
from tadnn.runtimes import RUNTIMES, lower_net
from tadnn.spaces import load_space

space = load_space("mbconv")
net = space.build(space.sample(1, 0)[0])
for runtime in RUNTIMES.values():
    assert lower_net(net, 1, "fp32", runtime)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"torch-eager", "torch-compile", "cuda-graph", "cuda-kernels"} <= set(RUNTIMES)
