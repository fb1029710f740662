"""Modules for layers that torch has no one class or function for.

Written source carries the text of these classes, so each needs torch alone, and nothing
else of this file.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention of (n, t, width)."""

    def __init__(
        self, width: int, heads: int, head: int, kv_heads: int, causal: bool, qkv_bias: bool
    ) -> None:
        super().__init__()
        self.split, self.head, self.causal = (heads, kv_heads, kv_heads), head, causal
        self.shared = heads // kv_heads
        self.qkv = nn.Linear(width, sum(self.split) * head, bias=qkv_bias)
        self.out = nn.Linear(heads * head, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        heads = self.qkv(x).unflatten(-1, (sum(self.split), self.head)).transpose(1, 2)
        query, key, value = heads.split(self.split, dim=1)
        if self.shared > 1:
            key, value = (part.repeat_interleave(self.shared, dim=1) for part in (key, value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class CachedAttention(nn.Module):
    """Multi-head attention of (n, 1, width) to the tokens before, whose keys and values it keeps.

    ``keys`` and ``values`` are (1, kv_heads, context, head): every sequence of a batch has them.
    """

    def __init__(
        self, width: int, heads: int, head: int, kv_heads: int, context: int, qkv_bias: bool
    ) -> None:
        super().__init__()
        self.split, self.head = (heads, kv_heads, kv_heads), head
        self.qkv = nn.Linear(width, sum(self.split) * head, bias=qkv_bias)
        self.out = nn.Linear(heads * head, width)
        self.keys: Tensor
        self.values: Tensor
        self.register_buffer("keys", torch.zeros(1, kv_heads, context, head))
        self.register_buffer("values", torch.zeros(1, kv_heads, context, head))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the cached tokens and the new one."""
        heads = self.qkv(x).unflatten(-1, (sum(self.split), self.head)).transpose(1, 2)
        query, key, value = heads.split(self.split, dim=1)
        n = x.shape[0]
        key = torch.cat((self.keys.expand(n, -1, -1, -1), key), dim=2)
        value = torch.cat((self.values.expand(n, -1, -1, -1), value), dim=2)
        # The query heads that share a key are rows of one product.
        rows = query.reshape(n, self.split[1], -1, self.head)
        mixed = nn.functional.scaled_dot_product_attention(rows, key, value)
        return self.out(mixed.reshape(n, 1, -1))  # type: ignore[no-any-return]


class ClassToken(nn.Module):
    """A learned token before the others of (n, t, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Prepend the token."""
        return torch.cat((self.weight.expand(x.shape[0], -1, -1), x), dim=1)


class Concat(nn.Module):
    """``torch.cat`` along one dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        """Concatenate."""
        return torch.cat(parts, dim=self.dim)


class Expand(nn.Module):
    """Dimensions of size 1 repeated, memory too."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Repeat."""
        return x.expand(self.shape).contiguous()


class Gather(nn.Module):
    """Values at stored indices of one dimension."""

    indices: Tensor

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("indices", torch.zeros(count, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Look them up."""
        return x.index_select(self.dim, self.indices)


class MatMulTransposed(nn.Module):
    """(..., m, k) by (..., n, k)."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply."""
        return x @ y.transpose(-2, -1)


class Operator(nn.Module):
    """An operator of torch by its name; only functional ones of torch's own are run."""

    def __init__(
        self, op: str, arguments: str, batch: tuple[int, int, int], part: int | None
    ) -> None:
        super().__init__()
        space, name, overload = op.split(".")
        if space not in ("aten", "prims", "torchvision"):
            raise ValueError(f"no operator of torch: {op}")
        self.run = getattr(getattr(getattr(torch.ops, space), name), overload)
        kinds = [str(argument.type) for argument in self.run._schema.arguments]
        if self.run._schema.is_mutable or "Tensor" not in "".join(kinds):
            raise ValueError(f"no function of tensors: {op}")
        self.arguments, self.batch, self.part = json.loads(arguments), batch, part

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the operator."""
        index, dim, share = self.batch
        batch = inputs[index].shape[dim] // share

        def read(value: Any) -> Any:
            if isinstance(value, list):
                return [read(each) for each in value]
            if not isinstance(value, dict):
                return value
            ((kind, what),) = value.items()
            if kind == "input":
                return inputs[what]
            if kind == "float":
                return float(what)
            return what * batch if kind == "batch" else getattr(torch, what)

        output = self.run(**{name: read(value) for name, value in self.arguments.items()})
        return output if self.part is None else output[self.part]  # type: ignore[no-any-return]


class Permute(nn.Module):
    """The dimensions in another order, memory too."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        """Permute."""
        return x.permute(self.dims).contiguous()


class PositionEmbedding(nn.Module):
    """A learned vector added at every position of (n, tokens, width)."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(1, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add the vectors."""
        return x + self.weight


class Stored(nn.Module):
    """A stored tensor, whatever the input's values are."""

    value: Tensor

    def __init__(self, shape: tuple[int, ...], per_input: bool, trained: bool, kind: str) -> None:
        super().__init__()
        self.per_input = per_input
        if trained:
            self.value = nn.Parameter(0.02 * torch.randn(shape))
        else:
            dtypes = {"float": torch.float32, "int64": torch.int64, "bool": torch.bool}
            self.register_buffer("value", torch.zeros(shape, dtype=dtypes[kind]))

    def forward(self, x: Tensor) -> Tensor:
        """Return it."""
        if not self.per_input:
            return self.value
        lead, *rest = self.value.shape
        spread = self.value.unsqueeze(0).expand(x.shape[0], *self.value.shape)
        return spread.squeeze(1) if lead == 1 else spread.reshape(-1, *rest)


class Strided(nn.Module):
    """Every ``step``-th index of one dimension."""

    def __init__(self, dim: int, start: int, end: int, step: int) -> None:
        super().__init__()
        self.dim, self.indices = dim, slice(start, end, step)

    def forward(self, x: Tensor) -> Tensor:
        """Take them."""
        return x[(slice(None),) * self.dim + (self.indices,)]


class Where(nn.Module):
    """One of two tensors, value by value: the first where the condition isn't 0 or false."""

    def forward(self, condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Choose."""
        return torch.where(condition.bool(), first, second)
