"""What every runtime must do; subclasses name one, and where it runs."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import pytest
import torch

from tadnn.errors import RequestError
from tadnn.kernels import Kernel
from tadnn.nets import (
    Add,
    BatchNorm2d,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    Mul,
    Net,
    ReLU,
    Sigmoid,
    block,
)
from tadnn.runtimes import Runtime, Setting, find_runtime, lower_net
from tadnn.spaces import load_space

SPACES = ("resnet", "mbconv", "vit", "transformer", "nasbench201")


@block
def residual(b: BlockBuilder, out: int) -> None:
    norm = b.add(BatchNorm2d(), b.add(Conv2d(out, 3), b.input))
    short = b.add(Conv2d(out, 1, bias=True), b.input)
    b.add(ReLU(), b.add(Add(), norm, short))


@block
def gated(b: BlockBuilder, out: int) -> None:
    wide = b.add(ReLU(), b.add(BatchNorm2d(), b.add(Conv2d(out, 1), b.input)))
    gate = b.add(Sigmoid(), b.add(Conv2d(out, 1, bias=True), b.add(GlobalAvgPool(), wide)))
    b.add(Mul(), wide, gate)


@block
def head(b: BlockBuilder, classes: int) -> None:
    b.add(GlobalAvgPool(), b.input)
    b.add(Flatten())
    b.add(Linear(classes))


NET = Net((3, 8, 6), (("body", residual(8)), ("gate", gated(8)), ("head", head(4))))


@cache
def space_net(name: str, seed: int = 0) -> Net:
    """Return a network of a built-in space."""
    space = load_space(name)
    return space.build(space.sample(1, seed)[0])


class OfRuntime:
    name: ClassVar[str]

    @property
    def runtime(self) -> Runtime:
        return find_runtime(self.name)


class LoweringContract(OfRuntime):
    """Plain Python: no device needed."""

    @pytest.mark.parametrize("space", SPACES)
    def test_kernels_carry_the_nets_flops_and_dtype(self, space: str) -> None:
        net = space_net(space)
        kernels = lower_net(net, 2, "fp16", self.runtime)
        raw = lower_net(net, 2, "fp16", find_runtime("torch-eager"))
        assert sum(k.flops for k in kernels) == sum(k.flops for k in raw)
        assert {k.dtype for k in kernels} == {"fp16"}
        assert len(kernels) <= len(raw), "fusing makes no kernels"
        assert sum(k.bytes_moved for k in kernels) <= sum(k.bytes_moved for k in raw)

    @pytest.mark.parametrize("space", SPACES)
    def test_keys_parse_back(self, space: str) -> None:
        for kernel in lower_net(space_net(space), 1, "fp32", self.runtime):
            assert Kernel.parse(kernel.key) == kernel

    def test_lowering_again_gives_the_same(self) -> None:
        first = lower_net(NET, 1, "fp32", self.runtime)
        assert lower_net(NET, 1, "fp32", self.runtime) == first

    def test_another_runtimes_setting_is_refused(self) -> None:
        with pytest.raises(RequestError, match=f"{self.name} runs its own settings"):
            self.runtime.check(Setting(runtime="another"))

    def test_a_device_it_lacks_is_refused(self) -> None:
        kernel = lower_net(NET, 1, "fp32", self.runtime)[0]
        with pytest.raises(RequestError, match=self.name):
            self.runtime.prepare_kernel(kernel, Setting(runtime=self.name), "tpu:0")


class RunningContract(OfRuntime):
    """On a device."""

    device: ClassVar[str] = "cpu"
    dtype: ClassVar[str] = "fp32"
    math: ClassVar[str] = "ieee"
    layout: ClassVar[str] = "nchw"
    tolerance: ClassVar[float] = 1e-4

    @property
    def setting(self) -> Setting:
        return Setting(self.name, self.dtype, self.math, self.layout)

    def test_a_net_gives_what_eager_gives(self) -> None:
        setting = Setting(dtype="fp32")
        eager = find_runtime("torch-eager")
        with eager.session(setting):
            expected = eager.prepare_net(NET, 3, setting)()
        with self.runtime.session(self.setting, self.device):
            run = self.runtime.prepare_net(NET, 3, self.setting, self.device)
            first = torch.as_tensor(run()).float().cpu().clone()
            again = torch.as_tensor(run()).float().cpu()
        assert isinstance(expected, torch.Tensor)
        torch.testing.assert_close(first, expected, rtol=self.tolerance, atol=self.tolerance)
        assert torch.equal(first, again)

    def test_every_kernel_of_a_net_runs(self) -> None:
        with self.runtime.session(self.setting, self.device):
            for kernel in dict.fromkeys(lower_net(NET, 2, self.dtype, self.runtime)):
                run = self.runtime.prepare_kernel(kernel, self.setting, self.device)
                outputs = run(), run()
                for out in outputs:
                    for part in out if isinstance(out, (tuple, list)) else [out]:
                        assert torch.as_tensor(part).isfinite().all(), kernel.key

    def test_a_kernel_of_another_dtype_is_refused(self) -> None:
        kernel = Kernel.of("linear", m=1, n=1, k=1, dtype="fp64")
        with pytest.raises(RequestError, match=f"dtype is {self.dtype}"):
            self.runtime.prepare_kernel(kernel, self.setting, self.device)

    def test_a_session_restores_what_it_fixed(self) -> None:
        before = torch.get_num_threads(), torch.is_inference_mode_enabled()
        with self.runtime.session(self.setting, self.device):
            assert torch.is_inference_mode_enabled()
        assert (torch.get_num_threads(), torch.is_inference_mode_enabled()) == before
