"""Hand-made data and modules for tests of accuracy."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from tadnn.accuracy import Dataset, Preprocessing, Split


def dataset(images: torch.Tensor, labels: torch.Tensor | None = None) -> Dataset:
    """Return a data set of these images in every split; of one class where no labels are given."""
    shape = tuple(images.shape[1:])
    if labels is None:
        labels = torch.zeros(len(images), dtype=torch.int64)
    split = Split(images, labels)
    return Dataset(
        name="hand-made",
        class_names=tuple(str(label) for label in range(int(labels.max()) + 1)),
        licence="none",
        preprocessing=Preprocessing(shape, shape, (0.0, 1.0), (0.0,), (1.0,)),
        splits=dict.fromkeys(("train", "validation", "test"), split),
    )


def linear(*rows: list[float], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def small_cnn() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(1, 8, 3, padding=1, bias=False),
                norm=nn.BatchNorm2d(8),
                relu=nn.ReLU(inplace=True),
                drop=nn.Dropout(0.5),
                conv2=nn.Conv2d(8, 8, 3, padding=1),
                relu2=nn.ReLU(),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(8, 10),
            )
        )


def unusual_cnn() -> nn.Module:
    """Return a module in a state that is easily lost, and that no proxy would put it in."""
    module = small_cnn()
    module.eval()
    module.drop.train()
    module.conv2.weight.requires_grad_(False)
    module.head.weight.grad = torch.full_like(module.head.weight, 7.0)
    module.norm.running_mean.fill_(0.3)
    module.relu.register_forward_hook(lambda *_: None)
    return module


def state(module: nn.Module) -> list[object]:
    """Return everything about a module that a proxy must leave alone."""
    found: list[object] = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        grad = None if tensor.grad is None else tensor.grad.tolist()
        found.append((name, id(tensor), tensor.dtype, tensor.tolist(), tensor.requires_grad, grad))
    for name, part in module.named_modules():
        hooks = [len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks)]
        found.append((name, part.training, hooks))
    return found
