"""What a runtime is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.nets import Block, Net, Shape
from tadnn.runtimes.setting import MIXED, Setting

Run = Callable[[], object]
"""Does the work once. On a CUDA device it may return before the work is done."""

Observation = dict[Kernel, list[float]]
"""Microseconds of each kernel of a network, once per run; the mean where one is launched twice."""


class Runtime(ABC):
    """A way of executing networks. Subclasses are stateless; one instance serves all.

    A runtime answers two questions. *What is launched?* :meth:`lower` fuses a
    block's raw kernels into those that the runtime launches; it is plain Python,
    is asked for thousands of networks a second, and imports nothing that runs.
    *How is it run?* :meth:`prepare_kernel` and :meth:`prepare_net` return a
    callable that does the work once; everything that happens only once
    (weights, compilation) is done before they return.

    The callables belong inside :meth:`session`, which fixes what is global in a
    process, such as the thread count, so one session is open at a time; they
    hold their inputs and weights until they are dropped. Fusion never crosses
    from one block into the next, so kernels of blocks add up to those of the
    network.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    """What it runs on."""
    launch_gaps: ClassVar[bool] = True
    """Whether a network takes time beside its kernels."""
    observed: ClassVar[bool] = False
    """Whether kernels are timed inside whole networks, by :meth:`observe_net`, not alone."""

    def preload(self) -> None:
        """Import what running takes (torch, here): processes that measure are forked after it."""
        import torch  # noqa: F401

        import tadnn.nets.module  # noqa: F401

    def environment(self, setting: Setting) -> dict[str, str]:
        """Return what else it matters to know about how things are run, for the record."""
        return {}

    @abstractmethod
    def lower(self, block: Block, shape: Shape, dtype: str) -> tuple[Kernel, ...]:
        """Return what a block launches, in order, for an input shape (batch included).

        Raises:
            ShapeError: the input doesn't fit; the layer is named.
        """

    @abstractmethod
    def prepare_kernel(self, kernel: Kernel, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable that launches the kernel as a network would.

        ``device`` is ``"cpu"`` or ``"cuda:N"``.

        Raises:
            RequestError: the runtime never launches such a kernel, or has no such device.
        """

    def kernel_runs(self, setting: Setting) -> int:
        """Return how often one call of :meth:`prepare_kernel`'s callable runs the kernel."""
        return 1

    @abstractmethod
    def prepare_net(self, net: Net, batch: int, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable that runs the whole network on one batch.

        Raises:
            RequestError: no such device.
        """

    def observe_net(
        self, net: Net, batch: int, setting: Setting, device: str = "cpu"
    ) -> Observation:
        """Run a network several times and return its kernels' times.

        Only for runtimes that are ``observed``.

        Raises:
            RequestError: this runtime's kernels are timed alone.
            WorkFailed: what was observed isn't what the network launches.
        """
        raise RequestError(f"{self.name} times kernels alone; it can't observe them in a network")

    @abstractmethod
    def session(self, setting: Setting, device: str = "cpu") -> AbstractContextManager[None]:
        """Fix threads and math mode inside a ``with`` block and restore them after it.

        Raises:
            RequestError: the device cannot do what the setting asks for.
        """

    def require_kind(self, kind: str) -> None:
        """Check that the runtime runs on a kind of device, ``"cpu"`` or ``"cuda"``.

        Raises:
            RequestError: it doesn't.
        """
        if kind not in self.kinds:
            raise RequestError(
                f"{self.name} runs on {' and '.join(self.kinds)} devices; got {kind!r}"
            )

    def check(self, setting: Setting) -> None:
        """Check that a setting is one of this runtime's.

        Raises:
            RequestError: it belongs to another, or can only be predicted.
        """
        if setting.runtime != self.name:
            raise RequestError(f"{self.name} runs its own settings; got {setting.label!r}")
        if setting.dtype == MIXED:
            raise RequestError(
                f"networks in dtype {MIXED!r} are predicted from timings of others (tadnn "
                f"calibrate), not run here; what runs is fp32, fp16 or bf16"
            )


def lower_net(net: Net, batch: int, dtype: str, runtime: Runtime) -> list[Kernel]:
    """Return every kernel that a network launches, in order.

    Raises:
        ShapeError: shapes don't fit; block and layer are named.
    """
    return [kernel for kernels in lower_blocks(net, batch, dtype, runtime) for kernel in kernels]


def lower_blocks(net: Net, batch: int, dtype: str, runtime: Runtime) -> list[tuple[Kernel, ...]]:
    """Return what each block of a network launches, in order.

    Raises:
        ShapeError: shapes don't fit; block and layer are named.
        RequestError: the runtime has no mixed precision, and it was asked for.
    """
    if dtype == MIXED:
        from tadnn.runtimes.autocast import autocast_blocks

        runtime.require_kind("cuda")
        return autocast_blocks(net, batch)
    return [runtime.lower(block, shape, dtype) for _, block, shape, _ in net.chain(batch)]
