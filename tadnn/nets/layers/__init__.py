"""The layer vocabulary."""

from __future__ import annotations

from typing import Final

from tadnn.nets.layers.base import Layer, Shape, TorchFunction, TorchModule
from tadnn.nets.layers.convolution import Conv2d
from tadnn.nets.layers.elementwise import Add, ReLU
from tadnn.nets.layers.linear import Flatten, Linear
from tadnn.nets.layers.normalization import BatchNorm2d
from tadnn.nets.layers.pooling import GlobalAvgPool, MaxPool2d

LAYERS: Final[dict[str, type[Layer]]] = {
    layer.__name__: layer
    for layer in (Add, BatchNorm2d, Conv2d, Flatten, GlobalAvgPool, Linear, MaxPool2d, ReLU)
}
"""Every layer class by the name it has in JSON."""

__all__ = [
    "LAYERS",
    "Add",
    "BatchNorm2d",
    "Conv2d",
    "Flatten",
    "GlobalAvgPool",
    "Layer",
    "Linear",
    "MaxPool2d",
    "ReLU",
    "Shape",
    "TorchFunction",
    "TorchModule",
]
