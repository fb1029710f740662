"""Products of activations: what attention written by hand is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from tadnn.errors import ShapeError
from tadnn.kernels import Kernel
from tadnn.nets.layers.base import Layer, Shape, TorchComposite, TorchFunction


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that shapes of any ranks broadcast to.

    Raises:
        ShapeError: sizes differ where neither is 1.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = tuple(max(column) for column in zip(*padded, strict=True))
    if any(size not in (1, whole) for shape in padded for size, whole in zip(shape, sizes)):  # noqa: B905
        raise ShapeError(f"sizes are equal or 1; got {' and '.join(str(list(s)) for s in shapes)}")
    return sizes


@dataclass(frozen=True)
class MatMul(Layer):
    """Matrix products of two tensors: (..., m, k) by (..., k, n); leading sizes broadcast.

    Args:
        transposed: whether the second is (..., n, k).
    """

    transposed: bool = False

    arity: ClassVar[int] = 2

    def _sizes(self, first: Shape, second: Shape) -> tuple[Shape, int, int, int]:
        """Return the leading sizes, m, n and k."""
        if min(len(first), len(second)) < 2:
            raise ShapeError(f"multiplies matrices; got {list(first)} and {list(second)}")
        (m, k), (rows, n) = first[-2:], second[-2:]
        if self.transposed:
            rows, n = n, rows
        if k != rows:
            how = " transposed" if self.transposed else ""
            raise ShapeError(
                f"multiplies rows by columns of one length; got {list(first)} and "
                f"{list(second)}{how}"
            )
        return broadcast(first[:-2] or (1,), second[:-2] or (1,)), m, n, k

    def infer(self, *shapes: Shape) -> Shape:
        """Return (..., m, n)."""
        leading, m, n, _ = self._sizes(*shapes)
        return (*leading, m, n) if max(map(len, shapes)) > 2 else (m, n)

    def torch(self, *shapes: Shape) -> TorchFunction | TorchComposite:
        """Return ``torch.matmul``, or ``MatMulTransposed``."""
        return TorchComposite("MatMulTransposed") if self.transposed else TorchFunction("matmul")

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return one bmm; rows that meet one and the same matrix are one product."""
        leading, m, n, k = self._sizes(*shapes)
        b = math.prod(leading)
        if math.prod(shapes[1][:-2]) == 1:
            b, m = 1, b * m
        return (Kernel("bmm", (b, m, n, k), dtype),)


@dataclass(frozen=True)
class ScaledDotProduct(Layer):
    """Attention's products: softmax(q k^T scale + mask) v (Vaswani et al. 2017, section 3.2.1).

    Takes queries (..., heads, t, d), keys (..., kv heads, s, d), values (..., kv heads, s, e)
    and maybe a mask, which is added to the scores, or where it holds truth values says which
    tokens are seen.

    Args:
        scale: of the scores; None: 1 / sqrt(d).
        causal: whether a token sees itself and earlier ones only.
        shared: whether several heads of queries may share one of keys and values.
    """

    scale: float | None = None
    causal: bool = False
    shared: bool = False

    arity: ClassVar[int] = 3
    variadic: ClassVar[bool] = True

    def infer(self, *shapes: Shape) -> Shape:
        """Return (..., heads, t, e)."""
        if len(shapes) > 4:
            raise ShapeError(f"takes queries, keys, values and a mask; got {len(shapes)} inputs")
        query, key, value = shapes[:3]
        ranks = {len(query), len(key), len(value)}
        if len(ranks) != 1 or min(ranks) < 3 + self.shared:
            raise ShapeError(f"takes inputs of one rank, 3 or more; got {shapes}")
        heads, kv_heads = query[-3], key[-3]
        fits = query[-1] == key[-1] and key[:-1] == value[:-1] and query[:-3] == key[:-3]
        if not fits or (heads % kv_heads if self.shared else heads != kv_heads):
            raise ShapeError(
                f"queries, keys and values fit each other; "
                f"got {list(query)}, {list(key)} and {list(value)}"
            )
        if len(shapes) == 4:
            scores = (*query[:-1], key[-2])
            if broadcast(scores, shapes[3]) != scores:
                raise ShapeError(f"a mask fits the scores, {list(scores)}; got {list(shapes[3])}")
        return (*query[:-1], value[-1])

    def torch(self, *shapes: Shape) -> TorchFunction:
        """Return ``torch.nn.functional.scaled_dot_product_attention``."""
        kwargs: dict[str, Any] = {}
        if self.causal:
            kwargs["is_causal"] = True
        if self.scale is not None:
            kwargs["scale"] = self.scale
        if self.shared:
            kwargs["enable_gqa"] = True
        return TorchFunction("nn.functional.scaled_dot_product_attention", kwargs)

    def kernels(self, dtype: str, *shapes: Shape) -> tuple[Kernel, ...]:
        """Return scores, the mask's sum, softmax and weighted sum; scores count whole."""
        (*leading, t, d), (*_, s, _), (*_, e) = shapes[:3]
        b = math.prod(leading)
        mask = (Kernel("add", (b * t, s), dtype),) if len(shapes) == 4 else ()
        return (
            Kernel("bmm", (b, t, s, d), dtype),
            *mask,
            Kernel("softmax", (b * t, s), dtype),
            Kernel("bmm", (b, t, e, s), dtype),
        )
