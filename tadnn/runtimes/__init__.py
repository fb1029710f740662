"""Ways of executing a network: what each launches, and how it makes it run."""

from __future__ import annotations

from typing import Final

from tadnn.errors import UnknownName
from tadnn.runtimes.base import Observation, Run, Runtime, lower_blocks, lower_net
from tadnn.runtimes.cuda_graph import CudaGraph
from tadnn.runtimes.cuda_kernels import CudaKernels
from tadnn.runtimes.onnxruntime import OnnxRuntime
from tadnn.runtimes.setting import MIXED, Setting
from tadnn.runtimes.torch_compile import TorchCompile
from tadnn.runtimes.torch_eager import TorchEager

RUNTIMES: Final[dict[str, Runtime]] = {
    runtime.name: runtime
    for runtime in (TorchEager(), TorchCompile(), OnnxRuntime(), CudaGraph(), CudaKernels())
}
"""Every runtime by name."""


def find_runtime(name: str) -> Runtime:
    """Return a runtime by name.

    Raises:
        UnknownName: there is none of that name.
    """
    if name not in RUNTIMES:
        raise UnknownName("runtime", name, RUNTIMES)
    return RUNTIMES[name]


__all__ = [
    "MIXED",
    "RUNTIMES",
    "CudaGraph",
    "CudaKernels",
    "Observation",
    "OnnxRuntime",
    "Run",
    "Runtime",
    "Setting",
    "TorchCompile",
    "TorchEager",
    "find_runtime",
    "lower_blocks",
    "lower_net",
]
