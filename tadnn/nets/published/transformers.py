"""The transformers that NeuSight timed end to end, as networks of tadnn.

Layers run attention eagerly, as the timed library did: scores are written out, scaled, masked and
normalised by kernels of their own, and GPT-2's GELU is eight operators (Hendrycks & Gimpel 2016,
the tanh form).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from tadnn.nets import (
    BlockBuilder,
    Embedding,
    LayerNorm,
    Linear,
    Net,
    NetBuilder,
    PositionEmbedding,
    block,
    trace,
)
from tadnn.nets.published.configurations import CONFIGS, Config


class _Layer(nn.Module):
    """One layer of a family, on (n, tokens, width)."""

    def __init__(self, config: Config, tokens: int) -> None:
        super().__init__()
        width, self.config = config.width, config
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.expand, self.project = nn.Linear(width, config.hidden), nn.Linear(config.hidden, width)
        self.register_buffer("mask", torch.zeros(1, 1, tokens, tokens))
        self.register_buffer("padding", torch.zeros(1, 1, 1, tokens))

    def forward(self, x: Tensor) -> Tensor:
        if self.config.family == "bert":  # norms after the sums (Devlin et al. 2019)
            x = self.first(x + self.attend(x))
            normed: Tensor = self.second(x + self.project(nn.functional.gelu(self.expand(x))))
            return normed
        x = x + self.attend(self.first(x))
        hidden = self.expand(self.second(x))
        active = torch.relu(hidden) if self.config.family == "opt" else _gelu(hidden)
        projected: Tensor = self.project(active)
        return x + projected

    def attend(self, x: Tensor) -> Tensor:
        heads, head = self.config.heads, self.config.width // self.config.heads
        if self.config.family == "gpt2":
            parts = self.joined(x).split(self.config.width, dim=2)
        else:
            parts = self.query(x), self.key(x), self.value(x)
        query, key, value = (p.unflatten(2, (heads, head)).transpose(1, 2) for p in parts)
        if self.config.family == "opt":  # scales the queries, not the scores (Zhang et al. 2022)
            scores = (query * head**-0.5) @ key.transpose(2, 3) + self.mask
            scores = torch.clamp(scores, min=-1e30)
        else:
            scores = (query @ key.transpose(2, 3)) / math.sqrt(head)
            scores = scores + (self.padding if self.config.family == "bert" else self.mask)
        mixed = torch.softmax(scores, dim=3) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def _gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


@block
def plain_embedding(b: BlockBuilder, vocabulary: int, width: int) -> None:
    """Look tokens up and add their positions."""
    b.add(Embedding(vocabulary, width), b.input, name="embedding")
    b.add(PositionEmbedding(), name="positions")


@block
def normed_embedding(b: BlockBuilder, vocabulary: int, width: int) -> None:
    """Look tokens up, add their positions and normalise, as BERT does."""
    b.add(Embedding(vocabulary, width), b.input, name="embedding")
    b.add(PositionEmbedding(), name="positions")
    b.add(LayerNorm(), name="norm")


@block
def scores_head(b: BlockBuilder, vocabulary: int) -> None:
    """Normalise and score every token of the vocabulary."""
    b.add(LayerNorm(), b.input, name="norm")
    b.add(Linear(vocabulary, bias=False), name="classifier")


@lru_cache(maxsize=64)
def network(model: str, tokens: int) -> Net:
    """Return a transformer for so many tokens; bert has no head on its tokens, decoders have.

    Raises:
        KeyError: there is no such transformer here.
    """
    config = CONFIGS[model]
    layer = trace(_Layer(config, tokens).eval(), (tokens, config.width)).net
    net = NetBuilder((tokens,))
    embed = normed_embedding if config.family == "bert" else plain_embedding
    net.add("embedding", embed(config.vocabulary, config.width))
    for i in range(1, config.layers + 1):
        for name, part in layer.blocks:
            net.add(f"layer{i}_{name}", part)
    if config.family != "bert":
        net.add("head", scores_head(config.vocabulary))
    return net.build()
