"""PyTorch compiled by TorchInductor: static shapes, default mode."""

from __future__ import annotations

import functools
import os
import shutil
import types
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Final

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.nets import Block, Net, Shape
from tadnn.runtimes.base import Run
from tadnn.runtimes.inductor_fusion import LIBRARY_OPS, lower_fused
from tadnn.runtimes.setting import Setting
from tadnn.runtimes.torch_base import TorchRuntime

if TYPE_CHECKING:
    from torch import Tensor

_COMPILERS: Final = ("g++", "clang++", "c++")


class TorchCompile(TorchRuntime):
    """``torch.compile(module, dynamic=False)`` as people call it, nothing tuned or frozen.

    Library calls (convolutions, matrix products) are those of eager torch, and are measured
    as such; on a CPU, where Inductor keeps images channels-last and weights as they came, a
    convolution's weights are reordered in every run, and so they are here. Fused kernels are
    compiled one by one and called without Dynamo's guards, which a network pays once.
    """

    name: ClassVar[str] = "torch-compile"

    def lower(self, block: Block, shape: Shape, dtype: str) -> tuple[Kernel, ...]:
        """Return library calls, and one fused kernel per chain of all else."""
        return lower_fused(block, shape, dtype)

    def prepare_kernel(self, kernel: Kernel, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable of the library call, or of the compiled fused kernel.

        Raises:
            RequestError: Inductor never launches such a kernel, there is no such device, or no
                compiler.
        """
        from tadnn.runtimes.torch_calls import aten_call

        self._check_kernel(kernel, setting, device)
        on_cpu = device == "cpu"
        nhwc = on_cpu or setting.layout == "nhwc"
        if kernel.op in LIBRARY_OPS:
            plain = on_cpu and setting.layout == "nchw"
            return aten_call(kernel, device, channels_last=nhwc, plain_weights=plain)
        from tadnn.runtimes.torch_fused import compiled_call

        require_compiler(device)
        return compiled_call(kernel, device, channels_last=nhwc)

    def prepare_net(self, net: Net, batch: int, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable of the compiled module on one random batch.

        Raises:
            RequestError: there is no such device, or no compiler.
        """
        import torch

        module, x = self._module(net, batch, setting, device)
        require_compiler(device)

        def forward(x: Tensor) -> object:
            return module(x)

        # Dynamo remembers few graphs per code object and tries one after the other: each
        # network has a code object of its own.
        code = forward.__code__.replace()
        own = types.FunctionType(code, forward.__globals__, closure=forward.__closure__)
        compiled = torch.compile(own, dynamic=False)
        with torch.inference_mode():
            compiled(x)
        return functools.partial(compiled, x)


def require_compiler(device: str) -> None:
    """Check that Inductor finds what it generates code for.

    Raises:
        RequestError: it doesn't; the message says what to install.
    """
    if device == "cpu":
        if not any(map(shutil.which, filter(None, (os.environ.get("CXX"), *_COMPILERS)))):
            raise RequestError(
                f"torch-compile on a CPU needs a C++ compiler; found none of "
                f"{', '.join(_COMPILERS)}, and CXX names none. Install one (Debian and Ubuntu: "
                f"apt install g++), or take the runtime torch-eager or onnxruntime."
            )
        return
    if find_spec("triton") is None:
        raise RequestError(
            "torch-compile on a CUDA device needs Triton, which torch's CUDA builds bring along; "
            "found none. Install torch for CUDA, or take the runtime cuda-graph."
        )
