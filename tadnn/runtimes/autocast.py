"""What a network launches under torch's automatic mixed precision on a GPU.

Weights are fp32 and so is the input. Matrix products and convolutions take and give fp16,
normalisations over features, softmax, powers and sums fp32, and what is of another dtype is copied
before; everything else runs in the widest dtype of its inputs. So a convolutional network is fp16
nearly throughout, and a transformer's residual stream fp32 from its first normalisation or position
embedding on. (torch, "Automatic Mixed Precision: CUDA Ops that Autocast to float16 / float32",
and that batch norm is in neither list.) Scaled products of attention are one kernel, which keeps
the scores on chip (Dao et al. 2022).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from tadnn.kernels import Kernel
from tadnn.nets import Block, Layer, Net, Shape, block_facts
from tadnn.nets import layers as vocabulary
from tadnn.nets.layers.base import layer_kernels, rows_cols

HALF, SINGLE = "fp16", "fp32"

_HALF: Final = (
    vocabulary.Attention,
    vocabulary.Conv1d,
    vocabulary.Conv2d,
    vocabulary.Conv3d,
    vocabulary.ConvTranspose2d,
    vocabulary.DepthwiseConv2d,
    vocabulary.Linear,
    vocabulary.MatMul,
    vocabulary.ScaledDotProduct,
)
_SINGLE: Final = (
    vocabulary.GroupNorm,
    vocabulary.LayerNorm,
    vocabulary.RMSNorm,
    vocabulary.Softmax,
)
_SINGLE_FUNCTIONS: Final = frozenset(
    {"exp", "expm1", "log", "log1p", "norm", "pow", "reciprocal", "rsqrt", "softplus", "sum", "tan"}
)


def autocast_blocks(net: Net, batch: int) -> list[tuple[Kernel, ...]]:
    """Return what each block of a network launches, in order; kernels of two dtypes.

    Raises:
        ShapeError: shapes don't fit; block and layer are named.
    """
    blocks: list[tuple[Kernel, ...]] = []
    dtype = SINGLE
    for _, block, shape, _ in net.chain(batch):
        launched, dtype = _lowered(block, shape, dtype)
        blocks.append(launched)
    return blocks


@functools.lru_cache(maxsize=16384)
def _lowered(block: Block, shape: Shape, dtype: str) -> tuple[tuple[Kernel, ...], str]:
    """Return a block's kernels and its output's dtype."""
    facts = block_facts(block, shape)
    kernels: list[Kernel] = []
    dtypes: list[str] = []
    for node, shapes in zip(block.nodes, facts.inputs, strict=True):
        taken = [dtypes[ref] if ref >= 0 else dtype for ref in node.inputs]
        given = _dtype(node.layer, taken)
        launched = _launched(node.layer, shapes, given)
        if launched:
            kernels += _copies(node.layer, shapes, taken, given)
        kernels += launched
        dtypes.append(given)
    return tuple(kernels), dtypes[-1]


def _dtype(layer: Layer, taken: Sequence[str]) -> str:
    """Return what a layer runs in and gives."""
    if isinstance(layer, vocabulary.Stored):
        # One number widens nothing; whole numbers and truth values don't either.
        return SINGLE if layer.kind == "float" and math.prod(layer.shape) > 1 else HALF
    if isinstance(layer, _HALF):
        return HALF
    if isinstance(layer, (vocabulary.Embedding, vocabulary.PositionEmbedding, *_SINGLE)):
        return SINGLE
    if isinstance(layer, vocabulary.ClassToken):
        return SINGLE
    if getattr(layer, "function", None) in _SINGLE_FUNCTIONS:
        return SINGLE
    return SINGLE if SINGLE in taken else HALF


def _launched(layer: Layer, shapes: tuple[Shape, ...], dtype: str) -> list[Kernel]:
    kernels = list(layer_kernels(layer, dtype, shapes))
    if isinstance(layer, (vocabulary.Attention, vocabulary.ScaledDotProduct)):
        at = next(i for i, kernel in enumerate(kernels) if kernel.op == "bmm")
        end = next(i for i, kernel in enumerate(kernels) if i > at and kernel.op == "bmm") + 1
        scores, values = kernels[at], kernels[end - 1]
        b, t, s, d = scores.sizes
        fused = Kernel("attention", (b, t, s, d, values.dim("n")), dtype)
        kernels[at:end] = [fused]
    return kernels


def _copies(
    layer: Layer, shapes: Sequence[Shape], taken: Sequence[str], dtype: str
) -> Iterator[Kernel]:
    """Yield what copies inputs, and weights, to the dtype that the layer runs in."""
    half = isinstance(layer, _HALF)
    if half and (weights := layer.parameters(*shapes)):
        yield Kernel("cast", (1, weights), HALF)
    lists = isinstance(layer, (vocabulary.Concat, *_SINGLE))
    if half or lists or getattr(layer, "function", None) in _SINGLE_FUNCTIONS:
        for shape, have in zip(shapes, taken, strict=True):
            if have != dtype and math.prod(shape) > 0:
                yield Kernel("cast", rows_cols(shape), HALF)
