"""Small networks with every kind of tie, and a model of a device with flat stairs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import torch
from latency_fakes import SETTING, rows
from nets_examples import head, randomised, small_net
from torch import Tensor, nn

from tadnn.latency import LatencyModel, fit_kernels
from tadnn.nets import (
    Add,
    BatchNorm2d,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    Net,
    NetBuilder,
    ReLU,
    block,
)
from tadnn.nets.layers import Attention, Concat, LayerNorm, Mul, Permute, Reshape, Sigmoid, Stored
from tadnn.profiling import FAKE_DEVICE, FakeClock, kernel_pool
from tadnn.runtimes import find_runtime
from tadnn.tail import Flow, follow, variants

#: Memory costs next to nothing: time is launches and waves.
DEVICE = replace(FAKE_DEVICE, bandwidth_gbps=1e5)


@block
def conv(b: BlockBuilder, width: int, groups: int = 1) -> None:
    b.add(Conv2d(width, 3, groups=groups, bias=True), name="conv")
    b.add(BatchNorm2d(), name="norm")
    b.add(ReLU(), name="relu")


@block
def depthwise(b: BlockBuilder, width: int) -> None:
    b.add(Conv2d(width, 3, groups=width), name="conv")
    b.add(ReLU(), name="relu")


@block
def gate(b: BlockBuilder, width: int, reduced: int) -> None:
    b.add(GlobalAvgPool(), b.input, name="pool")
    b.add(Conv2d(reduced, 1, bias=True), name="reduce")
    b.add(ReLU(), name="relu")
    b.add(Conv2d(width, 1, bias=True), name="expand")
    scale = b.add(Sigmoid(), name="sigmoid")
    b.add(Mul(), b.input, scale, name="scale")


@block
def beside(b: BlockBuilder, one: int, other: int) -> None:
    left = b.add(Conv2d(one, 1), b.input, name="left")
    right = b.add(Conv2d(other, 3), b.input, name="right")
    b.add(Concat(), left, right, name="concat")
    b.add(BatchNorm2d(), name="norm")


@block
def flat(b: BlockBuilder, classes: int) -> None:
    b.add(Flatten(), b.input, name="flatten")
    b.add(Linear(classes), name="classifier")


@block
def tokens(b: BlockBuilder, width: int, side: int) -> None:
    b.add(Conv2d(width, 2, stride=2, padding=0, bias=True), name="patches")
    b.add(Reshape((width, side * side)), name="flatten")
    b.add(Permute((0, 2, 1)), name="tokens")


@block
def attention(b: BlockBuilder, heads: int, head_width: int | None, mlp: int, width: int) -> None:
    b.add(LayerNorm(), b.input, name="norm1")
    seen = b.add(Attention(heads, head_width), name="attention")
    first = b.add(Add(), b.input, seen, name="add1")
    b.add(LayerNorm(), name="norm2")
    b.add(Linear(mlp), name="fc1")
    b.add(ReLU(), name="relu")
    second = b.add(Linear(width), name="fc2")
    b.add(Add(), first, second, name="add2")


@block
def classify(b: BlockBuilder, classes: int) -> None:
    b.add(Linear(classes), name="classifier")
    b.add(Flatten(), name="flatten")


@block
def scaled(b: BlockBuilder, width: int) -> None:
    scale = b.add(Stored((1, width, 1, 1)), b.input, name="gamma")
    b.add(Mul(), b.input, scale, name="scale")


def _net(shape: tuple[int, ...], *blocks: object) -> Net:
    builder = NetBuilder(shape)
    for i, made in enumerate(blocks):
        builder.add(f"b{i}", made)
    return builder.build()


def nets() -> dict[str, Net]:
    """Return networks by the tie that they show."""
    return {
        "chain": _net((3, 8, 8), conv(12), conv(20), head(10)),
        "residual": small_net(8),
        "depthwise": _net((3, 8, 8), conv(12), depthwise(12), conv(16), head(10)),
        "grouped": _net((3, 8, 8), conv(16), conv(24, 4), conv(12), head(10)),
        "gate": _net((3, 8, 8), conv(16), gate(16, 4), conv(12), head(10)),
        "concat": _net((3, 8, 8), conv(8), beside(8, 12), conv(16), head(10)),
        "flatten": _net((3, 4, 4), conv(6), flat(10)),
        "attention": _net(
            (3, 8, 8), tokens(24, 4), attention(3, 8, 40, 24), attention(2, 8, 32, 24), classify(5)
        ),
    }


@functools.cache
def plain_nets() -> Mapping[str, Net]:
    return nets()


def module_of(net: Net) -> nn.Module:
    return randomised(net.to_module(0))


def output(module: nn.Module, net: Net) -> Tensor:
    with torch.inference_mode():
        found = module(net.example(3, 1))
    assert isinstance(found, Tensor)
    return found


def names(flow: Flow) -> dict[str, int]:
    return {group.name: i for i, group in enumerate(flow.groups)}


def clock(noise: float = 0.002) -> FakeClock:
    return FakeClock(SETTING, DEVICE, noise=noise)


def model_of_net(net: Net, count: int = 24, noise: float = 0.002) -> LatencyModel:
    """Return a model of the kernels of a network with other widths."""
    pool = list(kernel_pool(variants(follow(net), count), 1, "fp32", find_runtime("torch-eager")))
    made = clock(noise)
    return fit_kernels("own", [(made.device, rows(made, pool))], SETTING)


@functools.cache
def residual_net() -> Net:
    return small_net(24)


@functools.cache
def residual_model() -> LatencyModel:
    return model_of_net(residual_net())
