"""The kernels of a CUDA device alone, without whatever launches them."""

from __future__ import annotations

from typing import ClassVar

from tadnn.runtimes.cuda_graph import CapturedRuntime


class CudaKernels(CapturedRuntime):
    """Eager torch's kernels back to back, as profilers and public tables report them.

    A network is the sum of its kernels, with nothing between them. The nearest to it that
    can be measured whole is a graph's replay, which is what :meth:`prepare_net` gives.
    """

    name: ClassVar[str] = "cuda-kernels"
    launch_gaps: ClassVar[bool] = False
