"""Attention of one new token to the keys and values of those before it."""

from __future__ import annotations

from dataclasses import dataclass

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.attention import Attention
from tadnn.nets.layers.base import Layer, Shape, TorchComposite, need_rank


@dataclass(frozen=True)
class CachedAttention(Layer):
    """One step of `Attention` with a cache, (n, 1, d) -> (n, 1, d).

    What causal `Attention` gives for the last of ``context + 1`` tokens, computed for that
    token alone: its key and value are appended to those of the ``context`` tokens before it,
    which a buffer keeps (Vaswani et al. 2017, section 3.2.3; Shazeer 2019, "Fast Transformer
    Decoding", section 2.4.1). Query heads that share a key-value head are the rows of one
    product, so a shared key is read once.

    The projections have the names and shapes of `Attention`'s, so its weights fit. The cache is
    stored once, ``keys`` and ``values`` of shape (1, kv_heads, context, head width); a batch of n
    sees it n times, and appending writes n caches anew, as a cache that grows by concatenation
    does (that of ONNX models with past and present keys, and of most libraries by default).

    Args:
        heads: query heads.
        context: tokens before the new one.
        head_width: values per head; None: the input's width over ``heads``.
        kv_heads: key and value heads, each shared by ``heads / kv_heads`` query heads; None: as
            many as ``heads``.
        qkv_bias: whether the first projection adds a bias; the second does.
    """

    heads: int
    context: int
    head_width: int | None = None
    kv_heads: int | None = None
    qkv_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self._kv_heads:
            raise ShapeError(
                f"kv_heads of CachedAttention divides heads; got {self.kv_heads} for {self.heads}"
            )

    @property
    def _kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def _whole(self) -> Attention:
        """The attention that this is a step of."""
        return Attention(self.heads, self.head_width, self.kv_heads, True, self.qkv_bias)

    def _sizes(self, width: int) -> tuple[int, int]:
        """Return the values per head and the outputs of the first projection."""
        head = width // self.heads if self.head_width is None else self.head_width
        return head, (self.heads + 2 * self._kv_heads) * head

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        (shape,) = shapes
        need_rank(shape, 3)
        if shape[1] != 1:
            raise ShapeError(f"takes one new token, (n, 1, d); got {list(shape)}")
        return self._whole.infer(shape)

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``CachedAttention``, which calls ``scaled_dot_product_attention``."""
        width = shapes[0][2]
        args = (width, self.heads, self._sizes(width)[0], self._kv_heads, self.context)
        return TorchComposite("CachedAttention", args, {"qkv_bias": self.qkv_bias})

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return projection, both caches' growth, scores, softmax, weighted sum, projection."""
        ((n, _, width),) = shapes
        head, projected = self._sizes(width)
        caches, shared, seen = n * self._kv_heads, self.heads // self._kv_heads, self.context + 1
        bias = ("bias",) if self.qkv_bias else ()
        grown = Kernel("concat", (caches, seen * head), dtype)
        return (
            Kernel("linear", (n, projected, width), dtype, bias),
            grown,
            grown,
            Kernel("bmm", (caches, shared, seen, head), dtype),
            Kernel("softmax", (n * self.heads, seen), dtype),
            Kernel("bmm", (caches, shared, head, seen), dtype),
            Kernel("linear", (n, width, self.heads * head), dtype, ("bias",)),
        )

    def parameters(self, *shapes: Shape) -> int:
        """Return both projections' weights and biases."""
        return self._whole.parameters(*shapes)

    def buffers(self, *shapes: Shape) -> int:
        """Return the cached keys and values."""
        return 2 * self._kv_heads * self.context * self._sizes(shapes[0][2])[0]
