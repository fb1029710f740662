"""The layer vocabulary."""

from __future__ import annotations

from typing import Final

from tadnn.nets.layers.activation import (
    GELU,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
)
from tadnn.nets.layers.attention import Attention
from tadnn.nets.layers.base import (
    Layer,
    Recipe,
    Shape,
    TorchComposite,
    TorchFunction,
    TorchModule,
)
from tadnn.nets.layers.convolution import Conv1d, Conv2d, ConvTranspose2d, DepthwiseConv2d
from tadnn.nets.layers.decoding import CachedAttention
from tadnn.nets.layers.elementwise import Add, Concat, Mul, Softmax
from tadnn.nets.layers.linear import Linear
from tadnn.nets.layers.normalization import BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from tadnn.nets.layers.pooling import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    GlobalAvgPool,
    MaxPool2d,
    TokenMean,
    Upsample,
)
from tadnn.nets.layers.reshaping import Dropout, Flatten, Identity, Permute, Reshape, Select
from tadnn.nets.layers.tokens import ClassToken, Embedding, PositionEmbedding

_CLASSES: Final[tuple[type[Layer], ...]] = (
    AdaptiveAvgPool2d,
    Add,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    CachedAttention,
    ClassToken,
    Concat,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    DepthwiseConv2d,
    Dropout,
    Embedding,
    Flatten,
    GELU,
    GlobalAvgPool,
    GroupNorm,
    HardSigmoid,
    HardSwish,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool2d,
    Mul,
    Permute,
    PositionEmbedding,
    RMSNorm,
    ReLU,
    ReLU6,
    Reshape,
    Select,
    SiLU,
    Sigmoid,
    Softmax,
    Tanh,
    TokenMean,
    Upsample,
)

LAYERS: Final[dict[str, type[Layer]]] = {layer.__name__: layer for layer in _CLASSES}
"""Every layer class by the name it has in JSON."""

__all__ = [
    "GELU",
    "LAYERS",
    "AdaptiveAvgPool2d",
    "Add",
    "Attention",
    "AvgPool2d",
    "BatchNorm2d",
    "CachedAttention",
    "ClassToken",
    "Concat",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "DepthwiseConv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool",
    "GroupNorm",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "Mul",
    "Permute",
    "PositionEmbedding",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Recipe",
    "Reshape",
    "Select",
    "Shape",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "TokenMean",
    "TorchComposite",
    "TorchFunction",
    "TorchModule",
    "Upsample",
]
