"""Sizes of the transformers that NeuSight timed end to end.

Those of the published configurations, with the exception of gpt3_xl, whose 24 heads of 128 make a
width of 3,072 (Brown et al. 2020, table 2.1, prints 2,048, which 24 heads of 128 don't give; the
timed one took the heads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Config:
    """A transformer: its family, and layers, width, heads, feed-forward width and vocabulary."""

    family: str
    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int


CONFIGS: Final = {
    "bert_large": Config("bert", 24, 1024, 16, 4096, 30522),
    "gpt2_large": Config("gpt2", 36, 1280, 20, 5120, 50257),
    "gpt3_xl": Config("gpt2", 24, 3072, 24, 12288, 50257),
    "gpt3_27": Config("gpt2", 32, 2560, 32, 10240, 50257),
    "opt_13": Config("opt", 24, 2048, 32, 8192, 50272),
}
