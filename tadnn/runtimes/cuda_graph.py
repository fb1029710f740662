"""PyTorch on a CUDA device without launch overhead: captured once, replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.runtimes.base import Run
from tadnn.runtimes.setting import Setting
from tadnn.runtimes.torch_base import TorchRuntime

if TYPE_CHECKING:
    import torch

# Repetitions of a kernel in one graph: what a replay costs, some microseconds, vanishes among them.
_KERNEL_RUNS: Final = 32
# Before capturing, libraries choose their algorithms and get their workspaces.
_WARM_UPS: Final = 3


class CapturedRuntime(TorchRuntime):
    """Eager torch's kernels in a ``torch.cuda.CUDAGraph``: one launch replays them all.

    A kernel's callable replays several runs of it, with as many different operands as
    eager rotates through, so that neither Python nor launches count. Where the setting
    empties the second-level cache before every run, it replays one.
    """

    kinds: ClassVar[tuple[str, ...]] = ("cuda",)

    def kernel_runs(self, setting: Setting) -> int:
        """Return how many runs of a kernel one replay makes."""
        return 1 if setting.flush_l2 else _KERNEL_RUNS

    def prepare_kernel(self, kernel: Kernel, setting: Setting, device: str = "cuda:0") -> Run:
        """Return a callable that replays :meth:`kernel_runs` runs of the kernel."""
        run = self._aten_call(kernel, setting, device)
        return capture(run, device, self.kernel_runs(setting))

    def prepare_net(self, net: Net, batch: int, setting: Setting, device: str = "cuda:0") -> Run:
        """Return a callable that replays the whole module on one random batch."""
        module, x = self._module(net, batch, setting, device)
        return capture(lambda: module(x), device)


class CudaGraph(CapturedRuntime):
    """Networks captured whole and replayed; what remains between kernels is the device's own."""

    name: ClassVar[str] = "cuda-graph"


def capture(run: Run, device: str, runs: int = 1) -> Run:
    """Return a callable that replays ``runs`` runs and returns the last one's output.

    The output is the same tensor every time: each replay overwrites it.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.inference_mode():
        # On a stream of its own, as captured work must not touch the default one.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(runs):
                output = run()

    return _Replay(graph, run, output)


class _Replay:
    """Replays a graph; keeps what its kernels read alive."""

    def __init__(self, graph: torch.cuda.CUDAGraph, captured: Run, output: object) -> None:
        self._graph, self._captured, self._output = graph, captured, output

    def __call__(self) -> object:
        self._graph.replay()
        return self._output
