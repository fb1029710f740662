"""Every layer of the vocabulary, walked over a table of examples with counts by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tadnn.errors import ShapeError
from tadnn.kernels import DTYPE_BYTES, MAX_SIZE, Kernel
from tadnn.nets import (
    GELU,
    LAYERS,
    AdaptiveAvgPool2d,
    Add,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    Binary,
    BlockBuilder,
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
    Gather,
    GlobalAvgPool,
    GroupNorm,
    HardSigmoid,
    HardSwish,
    Identity,
    Layer,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogSoftmax,
    MatMul,
    MaxPool2d,
    Mul,
    Net,
    Opaque,
    Pad,
    Permute,
    Pointwise,
    PositionEmbedding,
    PReLU,
    Reduce,
    ReLU,
    ReLU6,
    Reshape,
    Resize,
    RMSNorm,
    Roll,
    ScaledDotProduct,
    Select,
    Shape,
    Sigmoid,
    SiLU,
    Slice,
    Softmax,
    Stored,
    Tanh,
    TokenMean,
    Upsample,
    View,
    Where,
    block_facts,
    layers,
    to_onnx,
)
from tadnn.runtimes import Setting, find_runtime


@dataclass(frozen=True)
class Example:
    """A layer with the shapes it takes, and what follows by hand (batch 2)."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    multiply_adds: int = 0
    parameters: int = 0
    buffers: int = 0
    kernels: tuple[str, ...] = ()
    moved: int | None = None
    """Elements that the kernels read and write: the inputs, output and weights when None."""
    uncounted: int = 0
    """Multiply-adds that torch's counter misses."""

    def __str__(self) -> str:
        """Name the test."""
        return f"{self.layer}"


EXAMPLES = [
    Example(
        Conv2d(8, 3),
        ((2, 4, 6, 5),),
        (2, 8, 6, 5),
        multiply_adds=2 * 8 * 30 * 36,
        parameters=8 * 36,
        kernels=("conv2d(n=2,c=4,h=6,w=5,k=8,r=3,s=3,stride=1,pad=1,dilation=1,groups=1)",),
    ),
    Example(
        Conv2d(6, 7, stride=2, padding=3, bias=True),
        ((2, 3, 9, 9),),
        (2, 6, 5, 5),
        multiply_adds=2 * 6 * 25 * 147,
        parameters=6 * 147 + 6,
        kernels=(
            "conv2d(n=2,c=3,h=9,w=9,k=6,r=7,s=7,stride=2,pad=3,dilation=1,groups=1,epilogue=bias)",
        ),
    ),
    Example(  # depthwise
        Conv2d(6, 5, groups=6),
        ((2, 6, 7, 7),),
        (2, 6, 7, 7),
        multiply_adds=2 * 6 * 49 * 25,
        parameters=6 * 25,
        kernels=("conv2d(n=2,c=6,h=7,w=7,k=6,r=5,s=5,stride=1,pad=2,dilation=1,groups=6)",),
    ),
    Example(  # grouped and dilated: the window of 3 reaches over 7
        Conv2d(4, 3, dilation=3, groups=2),
        ((2, 8, 8, 8),),
        (2, 4, 8, 8),
        multiply_adds=2 * 4 * 64 * 36,
        parameters=4 * 36,
        kernels=("conv2d(n=2,c=8,h=8,w=8,k=4,r=3,s=3,stride=1,pad=3,dilation=3,groups=2)",),
    ),
    Example(  # an even window loses a row and a column
        Conv2d(2, 4),
        ((2, 3, 8, 8),),
        (2, 2, 7, 7),
        multiply_adds=2 * 2 * 49 * 48,
        parameters=2 * 48,
        kernels=("conv2d(n=2,c=3,h=8,w=8,k=2,r=4,s=4,stride=1,pad=1,dilation=1,groups=1)",),
    ),
    Example(  # projection shortcut
        Conv2d(16, 1, stride=2, padding=0),
        ((2, 8, 5, 5),),
        (2, 16, 3, 3),
        multiply_adds=2 * 16 * 9 * 8,
        parameters=128,
        kernels=("conv2d(n=2,c=8,h=5,w=5,k=16,r=1,s=1,stride=2,pad=0,dilation=1,groups=1)",),
    ),
    Example(
        BatchNorm2d(),
        ((2, 5, 4, 3),),
        (2, 5, 4, 3),
        parameters=10,
        buffers=11,
        kernels=("batch_norm(n=2,c=5,h=4,w=3)",),
    ),
    Example(ReLU(), ((2, 5, 4, 3),), (2, 5, 4, 3), kernels=("relu(rows=10,cols=12)",)),
    Example(ReLU(), ((2, 7),), (2, 7), kernels=("relu(rows=2,cols=7)",)),
    Example(Add(), ((2, 5, 4, 3),) * 2, (2, 5, 4, 3), kernels=("add(rows=10,cols=12)",)),
    Example(Add(), ((2, 3, 7),) * 2, (2, 3, 7), kernels=("add(rows=6,cols=7)",)),
    Example(
        MaxPool2d(3, stride=2, padding=1),
        ((2, 5, 8, 7),),
        (2, 5, 4, 4),
        kernels=("max_pool2d(n=2,c=5,h=8,w=7,r=3,s=3,stride=2,pad=1)",),
    ),
    Example(
        MaxPool2d(2, 2),
        ((2, 5, 7, 7),),
        (2, 5, 3, 3),
        kernels=("max_pool2d(n=2,c=5,h=7,w=7,r=2,s=2,stride=2,pad=0)",),
    ),
    Example(
        GlobalAvgPool(),
        ((2, 5, 8, 7),),
        (2, 5, 1, 1),
        kernels=("global_avg_pool(n=2,c=5,h=8,w=7)",),
    ),
    Example(Flatten(), ((2, 5, 4, 3),), (2, 60)),
    Example(
        Linear(10),
        ((2, 7),),
        (2, 10),
        multiply_adds=2 * 70,
        parameters=80,
        kernels=("linear(m=2,n=10,k=7,epilogue=bias)",),
    ),
    Example(  # over the last dimension
        Linear(4, bias=False),
        ((2, 6, 3),),
        (2, 6, 4),
        multiply_adds=2 * 6 * 12,
        parameters=12,
        kernels=("linear(m=12,n=4,k=3)",),
    ),
    Example(  # 3x7 over 6x9, strides 1 and 2: 6 rows of (9 + 6 - 7) // 2 + 1 = 5
        Conv2d(8, (3, 7), stride=(1, 2)),
        ((2, 4, 6, 9),),
        (2, 8, 6, 5),
        multiply_adds=2 * 8 * 30 * 84,
        parameters=8 * 84,
        kernels=(
            "conv2d(n=2,c=4,h=6,w=9,k=8,r=3,s=7,stride=1,pad=1,dilation=1,groups=1,"
            "stride_w=2,pad_w=3)",
        ),
    ),
    Example(  # dilated downwards only: the window of 3 reaches over 5 rows
        Conv2d(8, 3, padding=(0, 1), dilation=(2, 1), bias=True),
        ((2, 4, 6, 9),),
        (2, 8, 2, 9),
        multiply_adds=2 * 8 * 18 * 36,
        parameters=8 * 37,
        kernels=(
            "conv2d(n=2,c=4,h=6,w=9,k=8,r=3,s=3,stride=1,pad=0,dilation=2,groups=1,"
            "pad_w=1,dilation_w=1,epilogue=bias)",
        ),
    ),
    Example(
        DepthwiseConv2d(5, stride=2, bias=True),
        ((2, 6, 7, 7),),
        (2, 6, 4, 4),
        multiply_adds=2 * 6 * 16 * 25,
        parameters=6 * 26,
        kernels=(
            "conv2d(n=2,c=6,h=7,w=7,k=6,r=5,s=5,stride=2,pad=2,dilation=1,groups=6,epilogue=bias)",
        ),
    ),
    Example(  # (9 + 2 - 3) // 2 + 1 = 5
        Conv1d(8, 3, stride=2, groups=2),
        ((2, 4, 9),),
        (2, 8, 5),
        multiply_adds=2 * 8 * 5 * 6,
        parameters=8 * 6,
        kernels=("conv2d(n=2,c=4,h=1,w=9,k=8,r=1,s=3,stride=2,pad=0,dilation=1,groups=2,pad_w=1)",),
    ),
    Example(
        Conv1d(3, 3, padding=0, dilation=2, bias=True),
        ((2, 4, 9),),
        (2, 3, 5),
        multiply_adds=2 * 3 * 5 * 12,
        parameters=3 * 13,
        kernels=(
            "conv2d(n=2,c=4,h=1,w=9,k=3,r=1,s=3,stride=1,pad=0,dilation=2,groups=1,epilogue=bias)",
        ),
    ),
    Example(  # 2 x 2 slices of 3 x 5 pixels, each of 4 channels x 2 x 3 x 1
        Conv3d(6, (2, 3, 1), (1, 1, 1), (0, 1, 0), groups=2, bias=True),
        ((2, 4, 3, 3, 5),),
        (2, 6, 2, 3, 5),
        multiply_adds=2 * 2 * 6 * 15 * 2 * 6,
        parameters=6 * 12 + 6,
        kernels=(
            "conv2d(n=4,c=8,h=3,w=5,k=6,r=3,s=1,stride=1,pad=1,dilation=1,groups=2,"
            "epilogue=bias,pad_w=0)",
        ),
        moved=4 * 8 * 15 + 6 * 12 + 4 * 6 * 15,
    ),
    Example(  # 40 pixels spread 6 products over 3 channels x 1x4, whose taps are 2 apart
        ConvTranspose2d(3, (1, 4), (1, 2), (0, 1), (0, 1), dilation=(1, 2)),
        ((2, 6, 4, 5),),
        (2, 3, 4, 14),
        multiply_adds=2 * 20 * 6 * 12,
        parameters=6 * 12,
        kernels=(
            "conv_transpose2d(n=2,c=6,h=4,w=5,k=3,r=1,s=4,stride=1,pad=0,out_pad=0,groups=1,"
            "stride_w=2,pad_w=1,out_pad_w=1,dilation_w=2)",
        ),
    ),
    Example(  # a window of 3 values, 2 apart, reaches over 5: as many as 3 in a line 2 shorter
        MaxPool2d(3, 1, 1, dilation=2),
        ((2, 5, 8, 7),),
        (2, 5, 6, 5),
        kernels=("max_pool2d(n=2,c=5,h=6,w=5,r=3,s=3,stride=1,pad=1)",),
        moved=10 * 30 + 10 * 30,
    ),
    Example(LogSoftmax(1), ((2, 3, 7),), (2, 3, 7), kernels=("softmax(rows=14,cols=3)",)),
    Example(Where(), ((2, 3, 7),) * 3, (2, 3, 7), kernels=("add(rows=6,cols=7)",), moved=3 * 42),
    Example(
        Resize((6, 7), scale_h=1.6, scale_w=1.5),
        ((2, 3, 4, 5),),
        (2, 3, 6, 7),
        kernels=("adaptive_avg_pool2d(n=2,c=3,h=4,w=5,p=6,q=7)",),
    ),
    Example(  # each of 2 x 20 pixels spreads 3 products over 2 channels x 3x3 per group
        ConvTranspose2d(4, 3, stride=2, padding=1, output_padding=1, groups=2, bias=True),
        ((2, 6, 4, 5),),
        (2, 4, 8, 10),
        multiply_adds=2 * 20 * 6 * 18,
        parameters=6 * 18 + 4,
        kernels=(
            "conv_transpose2d(n=2,c=6,h=4,w=5,k=4,r=3,s=3,stride=2,pad=1,out_pad=1,groups=2,"
            "epilogue=bias)",
        ),
    ),
    *(
        Example(layer, ((2, 5, 4, 3),), (2, 5, 4, 3), kernels=(f"{op}(rows=10,cols=12)",))
        for layer, op in [
            (GELU(), "gelu"),
            (GELU("tanh"), "gelu_tanh"),
            (HardSigmoid(), "hard_sigmoid"),
            (HardSwish(), "hard_swish"),
            (LeakyReLU(0.2), "leaky_relu"),
            (ReLU6(), "relu6"),
            (SiLU(), "silu"),
            (Sigmoid(), "sigmoid"),
            (Tanh(), "tanh"),
        ]
    ),
    Example(Softmax(), ((2, 3, 7),), (2, 3, 7), kernels=("softmax(rows=6,cols=7)",)),
    Example(Softmax(1), ((2, 3, 7),), (2, 3, 7), kernels=("softmax(rows=14,cols=3)",)),
    Example(Mul(), ((2, 3, 7),) * 2, (2, 3, 7), kernels=("mul(rows=6,cols=7)",)),
    Example(
        Mul(),
        ((2, 5, 4, 3), (2, 5, 1, 1)),
        (2, 5, 4, 3),
        kernels=("mul_rows(rows=10,cols=12)",),
    ),
    Example(
        Concat(),
        ((2, 5, 4, 3), (2, 5, 4, 3), (2, 5, 4, 3)),
        (2, 15, 4, 3),
        kernels=("concat(rows=2,cols=180)",),
    ),
    Example(Concat(-1), ((2, 3, 7),) * 2, (2, 3, 14), kernels=("concat(rows=6,cols=14)",)),
    Example(
        AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        ((2, 5, 9, 8),),
        (2, 5, 5, 4),
        kernels=("avg_pool2d(n=2,c=5,h=9,w=8,r=3,s=3,stride=2,pad=1)",),
    ),
    Example(  # windows start at 0, 2, 4 and 6
        AvgPool2d((3, 2), stride=2, ceil_mode=True),
        ((2, 5, 8, 8),),
        (2, 5, 4, 4),
        kernels=("avg_pool2d(n=2,c=5,h=8,w=8,r=3,s=2,stride=2,pad=0,ceil=1)",),
    ),
    Example(
        MaxPool2d(3, stride=(2, 1), padding=(0, 1), ceil_mode=True),
        ((2, 5, 8, 8),),
        (2, 5, 4, 8),
        kernels=("max_pool2d(n=2,c=5,h=8,w=8,r=3,s=3,stride=2,pad=0,stride_w=1,pad_w=1,ceil=1)",),
    ),
    Example(
        AdaptiveAvgPool2d((2, 3)),
        ((2, 5, 4, 9),),
        (2, 5, 2, 3),
        kernels=("adaptive_avg_pool2d(n=2,c=5,h=4,w=9,p=2,q=3)",),
    ),
    Example(
        AdaptiveAvgPool2d(1),
        ((2, 5, 4, 9),),
        (2, 5, 1, 1),
        kernels=("global_avg_pool(n=2,c=5,h=4,w=9)",),
    ),
    Example(TokenMean(), ((2, 5, 8),), (2, 8), kernels=("token_mean(n=2,t=5,cols=8)",)),
    Example(
        Upsample(2),
        ((2, 3, 4, 5),),
        (2, 3, 8, 10),
        kernels=("upsample_nearest(n=2,c=3,h=4,w=5,scale=2)",),
    ),
    Example(
        Upsample(3, "bilinear"),
        ((2, 3, 4, 5),),
        (2, 3, 12, 15),
        kernels=("upsample_bilinear(n=2,c=3,h=4,w=5,scale=3)",),
    ),
    # Scale and shift of layers that normalise rows are small beside the rows, and not counted.
    Example(
        LayerNorm(),
        ((2, 3, 7),),
        (2, 3, 7),
        parameters=14,
        kernels=("layer_norm(rows=6,cols=7)",),
        moved=84,
    ),
    Example(
        LayerNorm(),
        ((2, 4, 5, 3),),
        (2, 4, 5, 3),
        parameters=6,
        kernels=("layer_norm(rows=40,cols=3)",),
        moved=240,
    ),
    Example(
        RMSNorm(),
        ((2, 3, 7),),
        (2, 3, 7),
        parameters=7,
        kernels=("rms_norm(rows=6,cols=7)",),
        moved=84,
    ),
    Example(
        GroupNorm(3),
        ((2, 6, 4, 5),),
        (2, 6, 4, 5),
        parameters=12,
        kernels=("group_norm(n=2,c=6,h=4,w=5,groups=3)",),
    ),
    Example(
        GroupNorm(2),
        ((2, 6, 5),),
        (2, 6, 5),
        parameters=12,
        kernels=("group_norm(n=2,c=6,h=1,w=5,groups=2)",),
    ),
    Example(Identity(), ((2, 5, 4),), (2, 5, 4)),
    Example(Dropout(0.3), ((2, 5, 4),), (2, 5, 4)),
    Example(Reshape((3, -1, 2)), ((2, 5, 12),), (2, 3, 10, 2)),
    Example(Reshape((60,)), ((2, 5, 12),), (2, 60)),
    Example(Select(1, 0), ((2, 5, 4),), (2, 4)),
    Example(Select(-1, -2), ((2, 5, 4),), (2, 5)),
    Example(
        Permute((0, 2, 1)),
        ((2, 5, 4),),
        (2, 4, 5),
        kernels=("permute(b=2,rows=5,cols=4,inner=1)",),
    ),
    Example(
        Permute((0, 2, 3, 1)),
        ((2, 5, 4, 3),),
        (2, 4, 3, 5),
        kernels=("permute(b=2,rows=5,cols=12,inner=1)",),
    ),
    Example(
        Permute((0, 3, 1, 2)),
        ((2, 5, 4, 3),),
        (2, 3, 5, 4),
        kernels=("permute(b=2,rows=20,cols=3,inner=1)",),
    ),
    Example(
        Permute((0, 2, 1, 3)),
        ((2, 5, 4, 3),),
        (2, 4, 5, 3),
        kernels=("permute(b=2,rows=5,cols=4,inner=3)",),
    ),
    Example(
        Embedding(11, 6),
        ((2, 5),),
        (2, 5, 6),
        parameters=66,
        kernels=("embedding(rows=10,cols=6,count=11)",),
        moved=120,
    ),
    Example(
        PositionEmbedding(),
        ((2, 5, 6),),
        (2, 5, 6),
        parameters=30,
        kernels=("add_cols(rows=2,cols=30)",),
    ),
    Example(
        ClassToken(),
        ((2, 5, 6),),
        (2, 6, 6),
        parameters=6,
        kernels=("concat(rows=2,cols=36)",),
        moved=2 * 72,
    ),
    Example(  # 2 x 3 heads: scores and weighted sums are 5 x 5 x 4 multiply-adds each
        Attention(3),
        ((2, 5, 12),),
        (2, 5, 12),
        multiply_adds=10 * 12 * 36 + 2 * 6 * 100 + 10 * 12 * 12,
        parameters=36 * 13 + 12 * 13,
        kernels=(
            "linear(m=10,n=36,k=12,epilogue=bias)",
            "bmm(b=6,m=5,n=5,k=4)",
            "softmax(rows=30,cols=5)",
            "bmm(b=6,m=5,n=4,k=5)",
            "linear(m=10,n=12,k=12,epilogue=bias)",
        ),
        moved=(120 + 432 + 360) + 6 * (40 + 25) + 2 * 150 + 6 * (25 + 20 + 20) + (120 + 144 + 120),
        uncounted=2 * 6 * 100,
    ),
    Example(  # 4 query heads of 6 share 2 of keys and values: 8 x 6 outputs of the projection
        Attention(4, head_width=6, kv_heads=2, causal=True, qkv_bias=False),
        ((2, 5, 12),),
        (2, 5, 12),
        multiply_adds=10 * 12 * 48 + 2 * 8 * 150 + 10 * 24 * 12,
        parameters=48 * 12 + 12 * 25,
        kernels=(
            "linear(m=10,n=48,k=12)",
            "bmm(b=8,m=5,n=5,k=6)",
            "softmax(rows=40,cols=5)",
            "bmm(b=8,m=5,n=6,k=5)",
            "linear(m=10,n=12,k=24,epilogue=bias)",
        ),
        moved=(120 + 576 + 480) + 8 * (60 + 25) + 2 * 200 + 8 * (25 + 30 + 30) + (240 + 288 + 120),
        uncounted=2 * 8 * 150,
    ),
    Example(  # 2 x 2 caches of 5 tokens and the new one; their query heads are 2 rows each
        CachedAttention(4, 5, head_width=6, kv_heads=2, qkv_bias=False),
        ((2, 1, 12),),
        (2, 1, 12),
        multiply_adds=2 * 12 * 48 + 2 * 4 * 2 * 36 + 2 * 24 * 12,
        parameters=48 * 12 + 12 * 25,
        buffers=2 * 2 * 5 * 6,
        kernels=(
            "linear(m=2,n=48,k=12)",
            "concat(rows=4,cols=36)",
            "concat(rows=4,cols=36)",
            "bmm(b=4,m=2,n=6,k=6)",
            "softmax(rows=8,cols=6)",
            "bmm(b=4,m=2,n=6,k=6)",
            "linear(m=2,n=12,k=24,epilogue=bias)",
        ),
        moved=(24 + 576 + 96) + 4 * 144 + 2 * 4 * (12 + 36 + 12) + 2 * 48 + (48 + 288 + 24),
        uncounted=2 * 4 * 2 * 36,
    ),
    Example(  # the factors' inner sizes are equal: 2 x 3 products of 4 x 5 and 5 x 4
        MatMul(transposed=True),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        (2, 3, 4, 4),
        multiply_adds=6 * 80,
        kernels=("bmm(b=6,m=4,n=4,k=5)",),
    ),
    Example(
        MatMul(),
        ((2, 4, 4), (2, 4, 4)),
        (2, 4, 4),
        multiply_adds=2 * 64,
        kernels=("bmm(b=2,m=4,n=4,k=4)",),
    ),
    Example(
        ScaledDotProduct(scale=0.3),
        ((2, 3, 4, 5),) * 3,
        (2, 3, 4, 5),
        multiply_adds=2 * 6 * 80,
        kernels=(
            "bmm(b=6,m=4,n=4,k=5)",
            "softmax(rows=24,cols=4)",
            "bmm(b=6,m=4,n=5,k=4)",
        ),
        moved=6 * (20 + 20 + 16) + 2 * 96 + 6 * (16 + 20 + 20),
        uncounted=2 * 6 * 80,
    ),
    Example(  # with a mask, which is added to the scores
        ScaledDotProduct(),
        ((2, 3, 4, 4),) * 4,
        (2, 3, 4, 4),
        multiply_adds=2 * 6 * 64,
        kernels=(
            "bmm(b=6,m=4,n=4,k=4)",
            "add(rows=24,cols=4)",
            "softmax(rows=24,cols=4)",
            "bmm(b=6,m=4,n=4,k=4)",
        ),
        moved=2 * 6 * 48 + 3 * 96 + 2 * 96,
        uncounted=2 * 6 * 64,
    ),
    Example(
        Binary("sub"),
        ((2, 4, 3, 5),) * 2,
        (2, 4, 3, 5),
        kernels=("add(rows=8,cols=15)",),
    ),
    Example(
        Binary("maximum"),
        ((2, 4, 3, 5), (2, 4, 1, 1)),
        (2, 4, 3, 5),
        kernels=("mul_rows(rows=8,cols=15)",),
    ),
    Example(Pointwise("mul", 0.3), ((2, 4, 5),), (2, 4, 5), kernels=("scalar(rows=8,cols=5)",)),
    Example(
        Pointwise("clamp", -0.5, 0.7), ((2, 4, 5),), (2, 4, 5), kernels=("scalar(rows=8,cols=5)",)
    ),
    Example(Pointwise("elu", 0.7), ((2, 4, 5),), (2, 4, 5), kernels=("pointwise(rows=8,cols=5)",)),
    Example(
        Pointwise("mish"), ((2, 4, 3, 5),), (2, 4, 3, 5), kernels=("pointwise(rows=8,cols=15)",)
    ),
    Example(
        PReLU(),
        ((2, 4, 3, 5),),
        (2, 4, 3, 5),
        parameters=1,
        kernels=("leaky_relu(rows=8,cols=15)",),
        moved=240,
    ),
    Example(
        PReLU(per_channel=True),
        ((2, 4, 3, 5),),
        (2, 4, 3, 5),
        parameters=4,
        kernels=("leaky_relu(rows=8,cols=15)",),
        moved=240,
    ),
    Example(
        Reduce("mean", (2,)), ((2, 4, 3, 5),), (2, 4, 5), kernels=("token_mean(n=8,t=3,cols=5)",)
    ),
    Example(
        Reduce("std", (1, 2), keepdim=True, correction=1),
        ((2, 4, 3, 5),),
        (2, 1, 1, 5),
        kernels=("token_mean(n=2,t=12,cols=5)",),
    ),
    Example(Reduce("norm", (2,)), ((2, 4, 3),), (2, 4), kernels=("token_mean(n=8,t=3,cols=1)",)),
    Example(Reduce("amax", (2,)), ((2, 4, 3),), (2, 4), kernels=("token_mean(n=8,t=3,cols=1)",)),
    Example(View((-1, 3, 8)), ((2, 4, 6),), (2, 3, 8)),
    Example(Slice(1, 1, 2), ((2, 4, 6),), (2, 2, 6)),
    Example(Slice(2, 1, 3, step=2), ((2, 4, 6),), (2, 4, 3)),
    Example(
        Expand((-1, 3, -1)), ((2, 1, 5),), (2, 3, 5), kernels=("concat(rows=6,cols=5)",), moved=60
    ),
    Example(Roll((1, -2), (1, 2)), ((2, 4, 5),), (2, 4, 5), kernels=("concat(rows=8,cols=5)",)),
    Example(  # one column left, two right; one row cut above
        Pad((1, 2, -1, 0), value=0.5),
        ((2, 3, 4, 5),),
        (2, 3, 3, 8),
        kernels=("concat(rows=18,cols=8)",),
        moved=2 * 144,
    ),
    Example(
        Pad((1, 1, 1, 1), mode="reflect"),
        ((2, 3, 4, 5),),
        (2, 3, 6, 7),
        kernels=("concat(rows=36,cols=7)",),
        moved=2 * 252,
    ),
    Example(
        Resize((7, 3), "bicubic"),
        ((2, 3, 4, 5),),
        (2, 3, 7, 3),
        kernels=("adaptive_avg_pool2d(n=2,c=3,h=4,w=5,p=7,q=3)",),
    ),
    Example(
        Resize((7, 3), "bilinear", align_corners=True),
        ((2, 3, 4, 5),),
        (2, 3, 7, 3),
        kernels=("adaptive_avg_pool2d(n=2,c=3,h=4,w=5,p=7,q=3)",),
    ),
    Example(
        Gather(1, 3),
        ((2, 4, 5),),
        (2, 3, 5),
        buffers=3,
        kernels=("embedding(rows=6,cols=5,count=8)",),
        moved=60,
    ),
    Example(Stored((1, 3, 4), per_input=True), ((2, 5),), (2, 3, 4), parameters=12),
    Example(  # a product of 4 x 3 by 3 x 5 for each of a batch, and what is added to it
        Opaque(
            "aten.baddbmm.default",
            '{"self": {"input": 2}, "batch1": {"input": 0}, "batch2": {"input": 1}}',
            "[[-1, 4, 4], [-1, 4, 4], [-1, 4, 4]]",
            "[-1, 4, 4]",
            flops_each=128.0,
        ),
        ((2, 4, 4),) * 3,
        (2, 4, 4),
        multiply_adds=2 * 64,
        kernels=("opaque(n=2,flops=128,read=48,written=16)",),
    ),
    Example(
        Opaque("aten.cumsum.default", '{"self": {"input": 0}, "dim": 1}', "[[-1, 6]]", "[-1, 6]"),
        ((2, 6),),
        (2, 6),
        kernels=("opaque(n=2,flops=0,read=6,written=6)",),
    ),
    Example(
        BatchNorm2d(eps=1e-3, affine=False),
        ((2, 4, 3, 5),),
        (2, 4, 3, 5),
        buffers=9,
        kernels=("batch_norm(n=2,c=4,h=3,w=5)",),
        moved=2 * 120 + 16,
    ),
    Example(
        LayerNorm(eps=1e-6, bias=False, dims=2),
        ((2, 4, 5),),
        (2, 4, 5),
        parameters=20,
        kernels=("layer_norm(rows=2,cols=20)",),
        moved=80,
    ),
    Example(
        LayerNorm(affine=False),
        ((2, 4, 5),),
        (2, 4, 5),
        kernels=("layer_norm(rows=8,cols=5)",),
    ),
    Example(
        RMSNorm(eps=1e-3, affine=False),
        ((2, 4, 5),),
        (2, 4, 5),
        kernels=("rms_norm(rows=8,cols=5)",),
    ),
    Example(
        GroupNorm(2, eps=1e-3, affine=False),
        ((2, 4, 3, 5),),
        (2, 4, 3, 5),
        kernels=("group_norm(n=2,c=4,h=3,w=5,groups=2)",),
        moved=240 + 8,
    ),
]

each = pytest.mark.parametrize("example", EXAMPLES, ids=str)


def alone(example: Example) -> Net:
    """A network of one layer; inputs beside the first are ReLU of it, or its channels' means."""
    builder = BlockBuilder()
    inputs = [builder.input]
    for shape in example.inputs[1:]:
        derived = ReLU() if shape == example.inputs[0] else GlobalAvgPool()
        inputs.append(builder.add(derived, builder.input))
    builder.add(example.layer, *inputs, name="layer")
    return Net.checked(example.inputs[0][1:], (("only", builder.build("one")),))


def randomised(module: nn.Module) -> nn.Module:
    """Give every parameter and statistic a value that would be noticed."""
    generator = torch.Generator().manual_seed(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5
    return module


def batch_for(net: Net, batch: int = 2) -> Tensor:
    return net.example(batch)


def from_source(net: Net) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(net.to_source(), "<source>", "exec"), names)
    model = names["Model"]()
    assert isinstance(model, nn.Module)
    return model


def test_every_layer_has_an_example() -> None:
    assert {type(example.layer) for example in EXAMPLES} == set(LAYERS.values())


def test_layers_by_name() -> None:
    assert list(LAYERS) == sorted(LAYERS)
    assert all(name == layer.__name__ for name, layer in LAYERS.items())
    assert set(layers.__all__) == {
        "LAYERS",
        "Layer",
        "Shape",
        "Recipe",
        "TorchComposite",
        "TorchFunction",
        "TorchModule",
        *LAYERS,
    }


@each
class TestEveryLayer:
    def test_shape(self, example: Example) -> None:
        net = alone(example)
        assert example.layer.infer(*example.inputs) == example.output
        with torch.inference_mode():
            assert net.to_module(seed=0).eval()(batch_for(net)).shape == example.output

    def test_source(self, example: Example) -> None:
        net = alone(example)
        module, written = randomised(net.to_module()).eval(), from_source(net).eval()
        written.load_state_dict(module.state_dict())
        with torch.inference_mode():
            assert torch.equal(written(batch_for(net)), module(batch_for(net)))

    def test_flops(self, example: Example) -> None:
        flops = 2 * example.multiply_adds
        assert example.layer.flops(*example.inputs) == flops
        assert alone(example).flops(batch=2) == flops
        module = alone(example).to_module(seed=0).eval().requires_grad_(False)
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            module(batch_for(alone(example)))
        assert counter.get_total_flops() == flops - 2 * example.uncounted

    def test_parameters_and_buffers(self, example: Example) -> None:
        layer, module = example.layer, alone(example).to_module()
        assert layer.parameters(*example.inputs) == example.parameters
        assert layer.buffers(*example.inputs) == example.buffers
        assert sum(p.numel() for p in module.parameters()) == example.parameters
        assert sum(b.numel() for b in module.buffers()) == example.buffers

    def test_kernels(self, example: Example) -> None:
        for dtype in DTYPE_BYTES:
            kernels = example.layer.kernels(dtype, *example.inputs)
            for kernel, key in zip(kernels, example.kernels, strict=True):
                assert kernel == Kernel.parse(key.replace(")", f",dtype={dtype})"))
                assert Kernel.parse(kernel.key) == kernel
            assert sum(kernel.flops for kernel in kernels) == 2 * example.multiply_adds

    def test_kernels_write_what_the_layer_gives(self, example: Example) -> None:
        layer, kernels = example.layer, example.layer.kernels("fp32", *example.inputs)
        if not kernels:
            return
        moved = example.moved
        if moved is None:
            moved = sum(map(math.prod, example.inputs)) + math.prod(example.output)
            moved += example.parameters
            moved += 2 * example.inputs[0][1] if isinstance(layer, BatchNorm2d) else 0
            # A bias is a rounding error beside the tensors, and isn't counted.
            outputs = example.output[-1 if isinstance(layer, Linear) else 1]
            moved -= sum(outputs for kernel in kernels if "bias" in kernel.epilogue)
        assert sum(kernel.bytes_moved for kernel in kernels) == 4 * moved

    def test_kernels_run(self, example: Example) -> None:
        eager = find_runtime("torch-eager")
        for kernel in example.layer.kernels("fp32", *example.inputs):
            output = eager.prepare_kernel(kernel, Setting())()
            assert isinstance(output, Tensor)
            assert 4 * output.numel() == kernel.output_bytes
            assert output.isfinite().all()

    def test_views_launch_nothing(self, example: Example) -> None:
        assert example.layer.is_view == (not example.kernels)
        if example.layer.is_view and not isinstance(example.layer, Stored):
            x = batch_for(alone(example))
            y = alone(example).to_module().eval()(x)
            assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()

    def test_json(self, example: Example) -> None:
        net = alone(example)
        assert Net.from_json(json.loads(json.dumps(net.to_json()))) == net

    def test_plain_frozen_values(self, example: Example) -> None:
        assert example.layer == type(example.layer)(
            **{f.name: getattr(example.layer, f.name) for f in fields(example.layer)}  # type: ignore[arg-type]
        )
        with pytest.raises(FrozenInstanceError):
            example.layer.out = 1  # type: ignore[attr-defined]

    def test_arity(self, example: Example) -> None:
        variadic = example.layer.variadic and example.layer.arity <= len(example.inputs)
        assert variadic or example.layer.arity == len(example.inputs)


def whole(part: nn.Module, x: Tensor) -> Tensor:
    """Whole numbers below 10 where a part looks them up."""
    looks_up = any(isinstance(module, nn.Embedding) for module in part.modules())
    return (2 * x).abs().long().clamp(max=9) if looks_up else x


class Together(nn.Module):
    """All examples in one module, since an export costs seconds: one input and one output row."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(randomised(alone(e).to_module()) for e in EXAMPLES)
        self.shapes = [e.inputs[0][1:] for e in EXAMPLES]

    def forward(self, x: Tensor) -> Tensor:
        taken = x.split([math.prod(shape) for shape in self.shapes], dim=1)
        return torch.cat(
            [
                part(whole(part, piece.unflatten(1, shape))).flatten(1)
                for part, piece, shape in zip(self.parts, taken, self.shapes, strict=True)
            ],
            dim=1,
        )


@dataclass(frozen=True)
class Exported:
    outputs: dict[int, np.ndarray]
    expected: dict[int, np.ndarray]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import onnxruntime

    module = Together().eval()
    width = sum(math.prod(shape) for shape in module.shapes)
    path: Path = tmp_path_factory.mktemp("onnx") / "together.onnx"
    to_onnx(module, (width,), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs, expected = {}, {}
    for batch in (1, 2, 5):
        x = torch.randn((batch, width), generator=torch.Generator().manual_seed(batch))
        (outputs[batch],) = session.run(["output"], {"input": x.numpy()})
        with torch.inference_mode():
            expected[batch] = module(x).numpy()
    return Exported(outputs, expected)


def slices() -> Iterator[tuple[Example, slice]]:
    start = 0
    for example in EXAMPLES:
        end = start + math.prod(example.output[1:])
        yield example, slice(start, end)
        start = end


@pytest.mark.parametrize(("example", "columns"), list(slices()), ids=str)
def test_onnx(exported: Exported, example: Example, columns: slice) -> None:
    for batch, output in exported.outputs.items():
        expected = exported.expected[batch]
        assert output.shape == expected.shape
        assert output[:, columns].std() > 0
        np.testing.assert_allclose(
            output[:, columns], expected[:, columns], rtol=1e-4, atol=1e-5, err_msg=str(example)
        )


NEVER_SIZES = [-1, -(10**30), MAX_SIZE + 1, "64", 1.0, 1.5, float("nan"), True, [1], {}]


@pytest.mark.parametrize(
    ("layer", "valid", "name", "also_valid"),
    [
        (Conv2d, {"out": 4, "kernel": 3}, "out", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "kernel", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "stride", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "padding", (0, None)),
        (Conv2d, {"out": 4, "kernel": 3}, "dilation", ()),
        (Conv2d, {"out": 4, "kernel": 3}, "groups", ()),
        (MaxPool2d, {"kernel": 3, "stride": 2}, "kernel", ()),
        (MaxPool2d, {"kernel": 3, "stride": 2}, "stride", ()),
        (MaxPool2d, {"kernel": 3, "stride": 2}, "padding", (0,)),
        (Linear, {}, "out", ()),
        (DepthwiseConv2d, {}, "kernel", ()),
        (Conv1d, {"out": 4, "kernel": 3}, "padding", (0, None)),
        (ConvTranspose2d, {"out": 4, "kernel": 3}, "output_padding", (0,)),
        (AvgPool2d, {"kernel": 3, "stride": 2}, "padding", (0,)),
        (AdaptiveAvgPool2d, {}, "out", ()),
        (Upsample, {}, "scale", ()),
        (GroupNorm, {}, "groups", ()),
        (Embedding, {"width": 3}, "count", ()),
        (Attention, {"heads": MAX_SIZE}, "head_width", (None,)),
        (CachedAttention, {"heads": 4}, "context", ()),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(
    layer: type[Layer], valid: dict[str, int], name: str, also_valid: tuple[Any, ...]
) -> None:
    for value in (1, MAX_SIZE, *also_valid):
        assert getattr(layer(**{**valid, name: value}), name) == value
    for value in [*NEVER_SIZES, *({0, None} - set(also_valid))]:
        with pytest.raises(ShapeError, match=f"{name} of {layer.__name__} is a whole number"):
            layer(**{**valid, name: value})


def test_the_rule_the_value_and_the_bounds_are_said() -> None:
    with pytest.raises(ShapeError) as caught:
        Conv2d(4, 3, stride=0)
    assert str(caught.value) == (
        "stride of Conv2d is a whole number from 1 to 2147483647 or a pair of them; got 0"
    )
    with pytest.raises(
        ShapeError, match=r"padding of Conv2d is a whole number from 0 to \d+ or a pair .* or abs"
    ):
        Conv2d(4, 3, padding=-1)


@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_switches_are_true_or_false(value: Any) -> None:
    for layer in (lambda: Conv2d(4, 3, bias=value), lambda: Linear(4, bias=value)):
        with pytest.raises(ShapeError, match="is true or false; got"):
            layer()


def test_numpy_integers_become_python_ones() -> None:
    layer = Conv2d(np.int64(4), np.int32(3))  # type: ignore[arg-type]
    assert (type(layer.out), type(layer.kernel)) == (int, int)
    assert layer == Conv2d(4, 3)


def test_pairs() -> None:
    lists, tuples = Conv2d(4, [3, 5], padding=[0, 2]), Conv2d(4, (3, 5), padding=(0, 2))  # type: ignore[arg-type]
    assert lists == tuples
    assert hash(lists) == hash(tuples)
    assert Conv2d(4, (3, 3), stride=(2, 2)) == Conv2d(4, 3, stride=2), "one spelling, one key"
    assert Conv2d(4, np.array([3, 5]).tolist()).kernel == (3, 5)
    for wrong in [(3,), (3, 5, 7), (0, 3), (3, "5"), (3, True), (3, 1.5), (3, (5, 5))]:
        with pytest.raises(ShapeError, match=r"kernel of Conv2d is .* or a pair of them; got"):
            Conv2d(4, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Reshape(()), "shape of Reshape is a list of whole numbers"),
        (lambda: Reshape((-1, 2, -1)), "one of which may be -1"),
        (lambda: Reshape((0, 2)), "positive sizes"),
        (lambda: Reshape((-2,)), "positive sizes"),
        (lambda: Permute((1, 2)), "each of 0 to 1 once"),
        (lambda: Permute((0, 2)), "each of 0 to 1 once"),
        (lambda: Permute((0, 1, 1)), "each of 0 to 2 once"),
        (lambda: Upsample(2, "cubic"), "mode of Upsample is 'nearest' or 'bilinear'; got 'cubic'"),
        (lambda: GELU("erf"), "approximate of GELU is 'none' or 'tanh'; got 'erf'"),
        (lambda: Dropout(1.5), "a probability, 0 to 1; got 1.5"),
        (lambda: Dropout(math.nan), "p of Dropout is a finite number"),
        (lambda: LeakyReLU("steep"), "slope of LeakyReLU is a finite number"),
        (lambda: Attention(4, kv_heads=3), "kv_heads of Attention divides heads; got 3 for 4"),
        (
            lambda: CachedAttention(4, 7, kv_heads=3),
            "kv_heads of CachedAttention divides heads; got 3 for 4",
        ),
    ],
)
def test_rules_of_fields(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()


def test_moving_axes_of_one_copies_nothing() -> None:
    layer = Permute((0, 2, 3, 1))
    for shape in ((2, 1, 4, 3), (2, 5, 1, 1)):
        assert layer.kernels("fp32", shape) == ()
        x = torch.randn(shape)
        y = alone(Example(layer, (shape,), ())).to_module()(x)
        assert (y.shape, y.data_ptr()) == (layer.infer(shape), x.data_ptr())
    assert [k.key for k in layer.kernels("fp32", (2, 5, 1, 3))] == [
        "permute(b=2,rows=5,cols=3,inner=1,dtype=fp32)"
    ]
    # One image: the batch's axis is one of them.
    assert layer.kernels("fp32", (1, 5, 4, 3))[0].sizes == (1, 5, 12, 1)


class TestShapesThatDoNotFit:
    @pytest.mark.parametrize(
        ("layer", "shapes", "message"),
        [
            (Conv2d(4, 3), ((1, 8),), r"4 dimensions; got \[1, 8\]"),
            (Conv2d(4, 3, groups=3), ((1, 6, 8, 8),), "6 -> 4 channels in 3 groups"),
            (Conv2d(6, 3, groups=3), ((1, 4, 8, 8),), "4 -> 6 channels in 3 groups"),
            (Conv2d(4, 9, padding=0), ((1, 3, 8, 9),), "must fit the image padded by 0; got 8x9"),
            (Conv2d(4, 3, padding=0, dilation=4), ((1, 3, 9, 8),), "dilation 4"),
            (BatchNorm2d(), ((1, 8),), "4 dimensions"),
            (GlobalAvgPool(), ((1, 8, 3),), "4 dimensions"),
            (MaxPool2d(2, 2), ((1, 8, 3),), "4 dimensions"),
            (MaxPool2d(4, 2), ((1, 8, 3, 9),), r"the window \(4\) must fit the image; got 3x9"),
            (MaxPool2d(3, 2, 2), ((1, 8, 9, 9),), "at most half the window; got 2 for 3"),
            (Flatten(), ((8,),), "at least 2 dimensions"),
            (Linear(4), ((8,),), "at least 2 dimensions"),
            (Add(), ((1, 8, 4, 4), (1, 8, 4, 5)), r"got \[1, 8, 4, 4\] and \[1, 8, 4, 5\]"),
            (Add(), ((1, 8), (8,)), "one shape"),
            (Mul(), ((1, 8, 4, 4), (1, 4, 1, 1)), r"\[n, c, h, w\] by \[n, c, 1, 1\]; got \[1, 8"),
            (Mul(), ((1, 8, 1, 1), (1, 8, 4, 4)), "multiplies two inputs"),
            (Concat(), ((1, 8, 4, 4), (1, 8, 4, 5)), "differ in dimension 1 only"),
            (Concat(), ((1, 8, 4), (1, 8, 4, 5)), "differ in dimension 1 only"),
            (Concat(0), ((1, 8), (1, 8)), r"dim is one after the batch's, of \[1, 8\]; got 0"),
            (Softmax(2), ((1, 8),), "got 2"),
            (Softmax(-2), ((1, 8),), "got -2"),
            (Select(1, 8), ((1, 8),), r"index is within dimension 1 of \[1, 8\]; got 8"),
            (Select(1, -9), ((1, 8),), "got -9"),
            (Conv2d(4, (1, 9), padding=0), ((1, 3, 8, 8),), r"window \(\(1, 9\), dilation 1\)"),
            (DepthwiseConv2d(3), ((1, 3, 8),), "4 dimensions"),
            (Conv1d(4, 3), ((1, 3, 8, 8),), "3 dimensions"),
            (Conv1d(4, 9, padding=0), ((1, 3, 8),), "must fit the sequence padded by 0; got 8"),
            (Conv1d(4, 3, groups=2), ((1, 3, 8),), "3 -> 4 channels in 2 groups"),
            (ConvTranspose2d(4, 2, 2, 2), ((1, 3, 2, 2),), "must leave some output; got 2x2"),
            (ConvTranspose2d(4, 2, 2, 0, 2), ((1, 3, 2, 2),), "less than the stride; got 2 for 2"),
            (ConvTranspose2d(4, 2, groups=2), ((1, 3, 2, 2),), "in 2 groups"),
            (AvgPool2d((2, 3), 2), ((1, 8, 2, 2),), r"window \(\(2, 3\)\) must fit"),
            (MaxPool2d(3, 4, ceil_mode=True), ((1, 8, 2, 2),), "must fit the image; got 2x2"),
            (AdaptiveAvgPool2d(2), ((1, 8, 2),), "4 dimensions"),
            (Upsample(2), ((1, 8, 2),), "4 dimensions"),
            (TokenMean(), ((1, 8),), "3 dimensions"),
            (LayerNorm(), ((8,),), "at least 2 dimensions"),
            (RMSNorm(), ((8,),), "at least 2 dimensions"),
            (GroupNorm(3), ((1, 8, 4),), "8 channels in 3 groups"),
            (Reshape((3, 3)), ((1, 8),), r"number of values; got \[8\] to \[3, 3\]"),
            (Reshape((3, -1)), ((1, 8),), "number of values"),
            (Permute((0, 2, 1)), ((1, 8),), "3 dimensions"),
            (Embedding(10, 4), ((1, 8, 4),), "2 dimensions"),
            (PositionEmbedding(), ((1, 8),), "3 dimensions"),
            (ClassToken(), ((1, 8),), "3 dimensions"),
            (Attention(3), ((1, 5, 8),), "a width of 8 for 3 heads"),
            (Attention(2), ((1, 8),), "3 dimensions"),
            (
                CachedAttention(2, 7),
                ((1, 5, 8),),
                r"takes one new token, \(n, 1, d\); got .1, 5, 8",
            ),
            (CachedAttention(3, 7), ((1, 1, 8),), "a width of 8 for 3 heads"),
        ],
    )
    def test_refused(self, layer: Layer, shapes: tuple[Shape, ...], message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            layer.infer(*shapes)

    def test_windows_that_just_fit(self) -> None:
        assert Conv2d(4, 9, padding=0).infer((1, 3, 9, 9)) == (1, 4, 1, 1)
        assert MaxPool2d(4, 2).infer((1, 8, 4, 5)) == (1, 8, 1, 1)
        assert MaxPool2d(3, 2, 1).infer((1, 8, 1, 1)) == (1, 8, 1, 1)

    def test_a_layer_too_large_to_count_is_named(self) -> None:
        builder = BlockBuilder()
        builder.add(Flatten(), name="flat")
        builder.add(Linear(10), name="classifier")
        with pytest.raises(ShapeError, match=r"layer classifier \(Linear\): sizes are from 1"):
            block_facts(builder.build("head"), (1, 2**16, 2**16))
