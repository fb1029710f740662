"""The ops of the kernel vocabulary, as a plain table."""

from __future__ import annotations

from typing import Final

from tadnn.kernels.matrix_ops import (
    AttentionOp,
    BatchedMatmulOp,
    Conv2dOp,
    ConvTranspose2dOp,
    LinearOp,
)
from tadnn.kernels.memory_ops import (
    AdaptiveAvgPool2dOp,
    BatchNormOp,
    EmbeddingOp,
    GlobalAvgPoolOp,
    GroupNormOp,
    OpaqueOp,
    PermuteOp,
    Pool2dOp,
    RowwiseOp,
    TokenMeanOp,
    UpsampleOp,
)
from tadnn.kernels.op import Op

DTYPE_BYTES: Final = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}

MAX_SIZE: Final = 2**31 - 1
"""The greatest size of one dimension; products of two still fit integer arrays."""

OPAQUE: Final = "opaque"
"""The op of a kernel of which nothing is known but its work."""

OPS: Final[dict[str, Op]] = {
    "conv2d": Conv2dOp(),
    "conv_transpose2d": ConvTranspose2dOp(),
    "linear": LinearOp(),
    "bmm": BatchedMatmulOp(),
    "attention": AttentionOp(),  # in one kernel
    "relu": RowwiseOp(),
    "relu6": RowwiseOp(),
    "leaky_relu": RowwiseOp(),
    "gelu": RowwiseOp(),
    "gelu_tanh": RowwiseOp(),
    "silu": RowwiseOp(),
    "sigmoid": RowwiseOp(),
    "hard_sigmoid": RowwiseOp(),
    "hard_swish": RowwiseOp(),
    "tanh": RowwiseOp(),
    "scalar": RowwiseOp(),  # arithmetic with a number
    "cast": RowwiseOp(inputs=2),  # between the kernel's dtype and one twice as wide
    "pointwise": RowwiseOp(),  # any other function of one value
    "add": RowwiseOp(inputs=2),
    "add_cols": RowwiseOp(per_col=1),  # one row added to every row
    "mul": RowwiseOp(inputs=2),
    "mul_rows": RowwiseOp(per_row=1),  # every row times a number of its own
    "softmax": RowwiseOp(),
    "layer_norm": RowwiseOp(),
    "rms_norm": RowwiseOp(),
    "concat": RowwiseOp(),  # of the output's size
    "batch_norm": BatchNormOp(),
    "group_norm": GroupNormOp(),
    "max_pool2d": Pool2dOp(),
    "avg_pool2d": Pool2dOp(),
    "global_avg_pool": GlobalAvgPoolOp(),
    "adaptive_avg_pool2d": AdaptiveAvgPool2dOp(),
    "token_mean": TokenMeanOp(),
    "upsample_nearest": UpsampleOp(),
    "upsample_bilinear": UpsampleOp(),
    "embedding": EmbeddingOp(),
    "permute": PermuteOp(),
    OPAQUE: OpaqueOp(),
}

# What a fused epilogue reads beside the kernel's own output: elements per output element.
EPILOGUES: Final[dict[str, int]] = {
    "bias": 0,
    "relu": 0,
    "batch_norm": 0,
    "add": 1,
    "relu6": 0,
    "leaky_relu": 0,
    "sigmoid": 0,
    "hard_sigmoid": 0,
    "hard_swish": 0,
    "tanh": 0,
    "gelu": 0,
    "gelu_tanh": 0,
    "silu": 0,
    "mul": 1,
    "mul_rows": 0,
    "add_cols": 0,
    "softmax": 0,
    "layer_norm": 0,
    "rms_norm": 0,
    "group_norm": 0,
    "global_avg_pool": 0,
    "token_mean": 0,
}
