"""PyTorch without a compiler: one ATen call per layer, nothing fused."""

from __future__ import annotations

import functools
from typing import ClassVar

from tadnn.kernels import Kernel
from tadnn.nets import Net
from tadnn.runtimes.base import Run
from tadnn.runtimes.setting import Setting
from tadnn.runtimes.torch_base import TorchRuntime


class TorchEager(TorchRuntime):
    """``module(x)`` under ``torch.inference_mode``, as people write it."""

    name: ClassVar[str] = "torch-eager"

    def prepare_kernel(self, kernel: Kernel, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable of the ATen call that eager makes for the kernel."""
        return self._aten_call(kernel, setting, device)

    def prepare_net(self, net: Net, batch: int, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable of the whole module on one random batch."""
        module, x = self._module(net, batch, setting, device)
        return functools.partial(module, x)
