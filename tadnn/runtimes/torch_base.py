"""What the runtimes that run torch modules share: devices, sessions, modules, eager lowering."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.nets import Block, Net, Shape, block_facts
from tadnn.nets.layers.base import layer_kernels
from tadnn.runtimes.base import Run, Runtime
from tadnn.runtimes.setting import Setting

if TYPE_CHECKING:
    from torch import Tensor, nn


class TorchRuntime(Runtime):
    """A runtime whose networks are torch modules under ``torch.inference_mode``.

    It lowers as eager torch launches: each layer's raw kernels, one after the other.
    Subclasses that fuse override :meth:`lower`.
    """

    def preload(self) -> None:
        """Import torch and what makes calls of it."""
        super().preload()
        import tadnn.runtimes.torch_calls  # noqa: F401

    def lower(self, block: Block, shape: Shape, dtype: str) -> tuple[Kernel, ...]:
        """Return each layer's raw kernels, one after the other."""
        return _lower(block, shape, dtype)

    @contextmanager
    def session(self, setting: Setting, device: str = "cpu") -> Iterator[None]:
        """Fix torch's threads and float32 precision; inference mode is on inside."""
        import torch

        self.check(setting)
        self._check_device(device)
        if setting.math == "tf32" and device == "cpu":
            raise RequestError("math 'tf32' needs an NVIDIA GPU; got device 'cpu'. Valid: ieee.")
        convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        threads = torch.get_num_threads()
        before = torch.backends.cuda.matmul.fp32_precision, convolutions.fp32_precision
        try:
            torch.set_num_threads(setting.threads)
            _set_matmul_precision(setting.math)
            convolutions.fp32_precision = setting.math
            with torch.inference_mode():
                yield
        finally:
            torch.set_num_threads(threads)
            _set_matmul_precision(before[0])
            convolutions.fp32_precision = before[1]

    def _aten_call(self, kernel: Kernel, setting: Setting, device: str) -> Run:
        """Return a callable of the ATen call that eager makes for the kernel."""
        from tadnn.runtimes.torch_calls import aten_call

        self._check_kernel(kernel, setting, device)
        return aten_call(kernel, device, channels_last=setting.layout == "nhwc")

    def _check_kernel(self, kernel: Kernel, setting: Setting, device: str) -> None:
        self.check(setting)
        if kernel.dtype != setting.dtype:
            raise RequestError(f"the setting's dtype is {setting.dtype}; got {kernel.key}")
        self._check_device(device)

    def _module(
        self, net: Net, batch: int, setting: Setting, device: str
    ) -> tuple[nn.Module, Tensor]:
        """Return the network's module and one random batch, both where the setting wants them."""
        import torch

        from tadnn.runtimes.torch_operands import TORCH_DTYPES

        self.check(setting)
        self._check_device(device)
        layout = torch.channels_last if setting.layout == "nhwc" else torch.contiguous_format
        dtype = TORCH_DTYPES[setting.dtype]
        module = net.to_module(seed=0).eval().requires_grad_(False)
        _keep_activations_normal(module)
        module.to(device, dtype)
        x = net.example(batch).to(device)
        if x.is_floating_point():
            x = x.to(dtype)
        if x.dim() == 4:
            module.to(memory_format=layout)  # type: ignore[call-overload]
            x = x.contiguous(memory_format=layout)
        return module, x

    def _check_device(self, device: str) -> None:
        import torch

        kind, _, index = device.partition(":")
        self.require_kind(kind)
        count = torch.cuda.device_count() if "cuda" in self.kinds else 0
        valid = [*(["cpu"] if "cpu" in self.kinds else []), *(f"cuda:{i}" for i in range(count))]
        if device != "cpu" and not (index.isdigit() and int(index) < count):
            raise RequestError(f"{self.name} has no device {device!r}. Valid: {', '.join(valid)}.")


def _set_matmul_precision(precision: str) -> None:
    """Set the precision of fp32 matrix products, in torch's old way and in its new one.

    TorchInductor reads the old one, which fails where only the new one was set.
    """
    import torch

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cuda.matmul.fp32_precision = precision


@functools.lru_cache(maxsize=16384)
def _lower(block: Block, shape: Shape, dtype: str) -> tuple[Kernel, ...]:
    kernels: list[Kernel] = []
    for node, shapes in zip(block.nodes, block_facts(block, shape).inputs, strict=True):
        kernels += layer_kernels(node.layer, dtype, shapes)
    return tuple(kernels)


def _keep_activations_normal(module: nn.Module) -> None:
    """Give weights the variance that activations survive any depth with.

    Torch's default shrinks them at every layer, and numbers that end up denormal
    (early, in fp16) are slow on CPUs, which no trained network shows.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
