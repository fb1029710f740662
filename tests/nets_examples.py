"""Networks that tests of nets share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tadnn.nets import (
    Add,
    BatchNorm2d,
    Block,
    BlockBuilder,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    Net,
    NetBuilder,
    Node,
    ReLU,
    block,
)


@block
def stem(b: BlockBuilder, width: int) -> None:
    b.add(Conv2d(width, 3), name="conv")
    b.add(BatchNorm2d(), name="norm")
    b.add(ReLU(), name="relu")
    b.add(MaxPool2d(3, stride=2, padding=1), name="pool")


@block
def residual(b: BlockBuilder, width: int, project: bool) -> None:
    b.add(Conv2d(width, 3, stride=2 if project else 1), b.input, name="conv1")
    b.add(ReLU(), name="relu1")
    main = b.add(Conv2d(width, 3), name="conv2")
    shortcut = b.input
    if project:
        shortcut = b.add(Conv2d(width, 1, stride=2), b.input, name="shortcut")
    b.add(Add(), main, shortcut, name="add")


@block
def head(b: BlockBuilder, classes: int) -> None:
    b.add(GlobalAvgPool(), name="pool")
    b.add(Flatten(), name="flatten")
    b.add(Linear(classes), name="classifier")


def small_net(width: int = 4) -> Net:
    """A residual network."""
    net = NetBuilder((3, 16, 16))
    net.add("stem", stem(width))
    net.add("stage1_1", residual(width, False))
    net.add("stage1_2", residual(width, False))
    net.add("stage2_1", residual(2 * width, True))
    net.add("stage2_2", residual(2 * width, False))
    net.add("head", head(10))
    return net.build()


def randomised(module: nn.Module) -> nn.Module:
    """Give every parameter and statistic a value that would be noticed; evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data = torch.rand(tensor.shape, generator=generator) * 0.5 + 0.1
    return module.eval()


def model_of(source: str) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(source, "<source>", "exec"), names)
    model = names["Model"]()
    assert isinstance(model, nn.Module)
    return model.eval()


def run(module: nn.Module, net: Net, batch: int = 2) -> Tensor:
    x = torch.randn((batch, *net.input_shape), generator=torch.Generator().manual_seed(batch))
    with torch.inference_mode():
        output = module(x)
    assert isinstance(output, Tensor)
    return output


def single(*nodes: Node, input_shape: tuple[int, ...] = (4, 8, 8)) -> Net:
    return Net.checked(input_shape, (("only", Block("one", nodes)),))


def built(input_shape: tuple[int, ...], blocks: tuple[tuple[str, Block], ...]) -> Net:
    builder = NetBuilder(input_shape)
    for name, made in blocks:
        builder.add(name, made)
    return builder.build()
