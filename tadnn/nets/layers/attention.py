"""Attention."""

from __future__ import annotations

from dataclasses import dataclass

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchComposite, need_rank


@dataclass(frozen=True)
class Attention(Layer):
    """Multi-head self-attention, (n, t, d) -> (n, t, d): Vaswani et al. 2017, section 3.2.

    One projection gives queries, keys and values, another one takes the heads' outputs
    back to the input's width.

    Args:
        heads: query heads.
        head_width: values per head; None: the input's width over ``heads``.
        kv_heads: key and value heads, each shared by ``heads / kv_heads`` query heads
            (Ainslie et al. 2023); None: as many as ``heads``.
        causal: whether a token sees itself and earlier ones only.
        qkv_bias: whether the first projection adds a bias; the second does.
    """

    heads: int
    head_width: int | None = None
    kv_heads: int | None = None
    causal: bool = False
    qkv_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self._kv_heads:
            raise ShapeError(
                f"kv_heads of Attention divides heads; got {self.kv_heads} for {self.heads}"
            )

    @property
    def _kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def _sizes(self, width: int) -> tuple[int, int]:
        """Return the values per head and the outputs of the first projection."""
        head = width // self.heads if self.head_width is None else self.head_width
        return head, (self.heads + 2 * self._kv_heads) * head

    def infer(self, *shapes: Shape) -> Shape:
        """Return the input's shape."""
        (shape,) = shapes
        need_rank(shape, 3)
        if self.head_width is None and shape[2] % self.heads:
            raise ShapeError(
                f"heads divide the width where head_width is absent; "
                f"got a width of {shape[2]} for {self.heads} heads"
            )
        return shape

    def torch(self, *shapes: Shape) -> TorchComposite:
        """Return ``Attention``, which calls ``scaled_dot_product_attention``."""
        width = shapes[0][2]
        kwargs = {"causal": self.causal, "qkv_bias": self.qkv_bias}
        args = (width, self.heads, self._sizes(width)[0], self._kv_heads)
        return TorchComposite("Attention", args, kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return projection, scores, softmax, weighted sum and projection.

        The scores are counted whole where ``causal`` hides half of them, as torch's own
        counter does.
        """
        ((n, t, width),) = shapes
        head, projected = self._sizes(width)
        batch = n * self.heads
        bias = ("bias",) if self.qkv_bias else ()
        return (
            Kernel("linear", (n * t, projected, width), dtype, bias),
            Kernel("bmm", (batch, t, t, head), dtype),
            Kernel("softmax", (batch * t, t), dtype),
            Kernel("bmm", (batch, t, head, t), dtype),
            Kernel("linear", (n * t, width, self.heads * head), dtype, ("bias",)),
        )

    def parameters(self, *shapes: Shape) -> int:
        """Return both projections' weights and biases."""
        width = shapes[0][2]
        head, projected = self._sizes(width)
        return projected * (width + self.qkv_bias) + width * (self.heads * head + 1)
