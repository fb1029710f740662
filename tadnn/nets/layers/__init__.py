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
from tadnn.nets.layers.convolution import Conv1d, Conv2d, DepthwiseConv2d
from tadnn.nets.layers.convolution_other import Conv3d, ConvTranspose2d
from tadnn.nets.layers.decoding import CachedAttention
from tadnn.nets.layers.elementwise import Add, Concat, LogSoftmax, Mul, Softmax
from tadnn.nets.layers.linear import Linear
from tadnn.nets.layers.normalization import BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from tadnn.nets.layers.opaque import Opaque
from tadnn.nets.layers.pointwise import Binary, Pointwise, PReLU, Reduce, Where
from tadnn.nets.layers.pooling import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    GlobalAvgPool,
    MaxPool2d,
    Resize,
    TokenMean,
    Upsample,
)
from tadnn.nets.layers.products import MatMul, ScaledDotProduct
from tadnn.nets.layers.reshaping import Dropout, Flatten, Identity, Permute, Reshape, Select
from tadnn.nets.layers.stored import Gather, Stored
from tadnn.nets.layers.tokens import ClassToken, Embedding, PositionEmbedding
from tadnn.nets.layers.views import Expand, Pad, Roll, Slice, View

_CLASSES: Final[tuple[type[Layer], ...]] = (
    AdaptiveAvgPool2d,
    Add,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    Binary,
    CachedAttention,
    ClassToken,
    Concat,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    DepthwiseConv2d,
    Dropout,
    Embedding,
    Expand,
    Flatten,
    GELU,
    Gather,
    GlobalAvgPool,
    GroupNorm,
    HardSigmoid,
    HardSwish,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogSoftmax,
    MatMul,
    MaxPool2d,
    Mul,
    Opaque,
    PReLU,
    Pad,
    Permute,
    Pointwise,
    PositionEmbedding,
    RMSNorm,
    ReLU,
    ReLU6,
    Reduce,
    Reshape,
    Resize,
    Roll,
    ScaledDotProduct,
    Select,
    SiLU,
    Sigmoid,
    Slice,
    Softmax,
    Stored,
    Tanh,
    TokenMean,
    Upsample,
    View,
    Where,
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
    "Binary",
    "CachedAttention",
    "ClassToken",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "DepthwiseConv2d",
    "Dropout",
    "Embedding",
    "Expand",
    "Flatten",
    "Gather",
    "GlobalAvgPool",
    "GroupNorm",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MatMul",
    "MaxPool2d",
    "Mul",
    "Opaque",
    "PReLU",
    "Pad",
    "Permute",
    "Pointwise",
    "PositionEmbedding",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Recipe",
    "Reduce",
    "Reshape",
    "Resize",
    "Roll",
    "ScaledDotProduct",
    "Select",
    "Shape",
    "SiLU",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Stored",
    "Tanh",
    "TokenMean",
    "TorchComposite",
    "TorchFunction",
    "TorchModule",
    "Upsample",
    "View",
    "Where",
]
