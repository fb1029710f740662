from __future__ import annotations

import pytest
import torch
from spaces_contract import SpaceContract
from torch import Tensor

from tadnn.errors import ShapeError
from tadnn.nets import Net
from tadnn.spaces import Space, load_space

GPT2 = {
    "sequence": 1024, "layers": 12, "width": 768, "kv_heads": 12, "queries": 1, "head_width": 64,
    "feed_forward": 3072,
}  # fmt: skip


@pytest.fixture(scope="module")
def transformer() -> Space:
    return load_space("transformer")


class TestContract(SpaceContract):
    name = "transformer"
    shape = (64,)
    output = (50,)
    small = {  # noqa: RUF012
        "sequence": {"high": 64},
        "layers": {"high": 3},
        "width": {"high": 128},
        "kv_heads": {"high": 3},
        "queries": {"high": 2},
        "head_width": 32,
        "feed_forward": {"high": 256},
    }
    few = {  # noqa: RUF012
        "sequence": [16, 32], "layers": {"high": 2}, "width": [64, 96], "kv_heads": [1, 2],
        "queries": [1, 2], "head_width": [32, 64], "feed_forward": [64, 128],
    }  # fmt: skip
    count = 2**7

    def example(self, net: Net, batch: int) -> Tensor:
        generator = torch.Generator().manual_seed(batch)
        return torch.randint(self.output[-1], (batch, *net.input_shape), generator=generator)


def test_gpt2(transformer: Space) -> None:
    """124,439,808 parameters as published, and the output layer, which is its own here."""
    net = transformer.build(GPT2, (1024,), classes=50257)
    assert net.parameters == 124_439_808 + 50257 * 768
    assert net.input_shape == (1024,)
    assert net.output_shape() == (1, 50257)


def test_shared_keys_and_values(transformer: Space) -> None:
    """12 query heads on 3 key-value heads: 9 heads of keys and 9 of values fewer, biases too."""
    shared = {**GPT2, "kv_heads": 3, "queries": 4}
    fewer = 12 * 2 * 9 * 64 * (768 + 1)
    whole, less = transformer.build(GPT2), transformer.build(shared)
    assert whole.parameters - less.parameters == fewer
    # The attention itself computes as much: every query still meets every key.
    assert whole.flops() - less.flops() == 2 * 1024 * 12 * 2 * 9 * 64 * 768


def test_later_tokens_do_not_reach_earlier_ones(transformer: Space) -> None:
    small = {**GPT2, "sequence": 16, "layers": 2, "width": 64, "head_width": 32, "feed_forward": 64}
    net = transformer.build(small, (16,), 50)
    module = net.to_module(seed=0).eval()
    body = torch.nn.Sequential(*list(module.children())[:-1])
    x = torch.randint(50, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[0, 8] = (x[0, 8] + 1) % 50
    with torch.inference_mode():
        before, after = body(x), body(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert ((before[:, 8:] - after[:, 8:]).abs().amax(-1) > 0).all()


@pytest.mark.parametrize(
    ("shape", "valid"), [((512,), "16, 32, 64, 128, 256, 512"), ((8,), "none"), ((3, 8, 8), "none")]
)
def test_sequences_longer_than_the_input(
    transformer: Space, shape: tuple[int, ...], valid: str
) -> None:
    with pytest.raises(ShapeError, match=rf"sequence 1024. Valid sequences: {valid}\."):
        transformer.build(GPT2, shape, 50)
