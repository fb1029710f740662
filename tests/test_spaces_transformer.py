from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spaces_contract import SpaceContract
from torch import Tensor

from tadnn.errors import ShapeError, UnknownName
from tadnn.nets import Net, to_onnx
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


SMALL = {
    "sequence": 16, "layers": 3, "width": 64, "kv_heads": 2, "queries": 2, "head_width": 32,
    "feed_forward": 128,
}  # fmt: skip


@pytest.mark.parametrize(("kv_heads", "queries"), [(4, 1), (2, 2), (1, 4)])
def test_decoding_gives_what_the_prefill_gives(
    transformer: Space, kv_heads: int, queries: int
) -> None:
    """The last token of a prefill, from the keys and values that the prefill had before it."""
    arch = {**SMALL, "kv_heads": kv_heads, "queries": queries}
    prefill = transformer.build(arch, (16,), 50).to_module(seed=0).eval()
    net = transformer.build(arch, (16,), 50, phase="decode")
    decode = net.to_module(seed=1).eval()
    weights = dict(prefill.state_dict())
    weights["embedding.positions.weight"] = weights["embedding.positions.weight"][:, -1:]
    projected: dict[str, Tensor] = {}
    for i in (1, 2, 3):
        projection = prefill.get_submodule(f"layer{i}_attention.attention.qkv")
        projection.register_forward_hook(
            lambda _, __, output, i=i: projected.update({f"layer{i}_attention.attention": output})
        )
    tokens = torch.randint(50, (1, 16), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = prefill(tokens)
        for name, output in projected.items():
            split = output.unflatten(-1, (-1, 32)).transpose(1, 2)[:, :, :-1]
            _, weights[f"{name}.keys"], weights[f"{name}.values"] = split.split(
                (kv_heads * queries, kv_heads, kv_heads), dim=1
            )
        decode.load_state_dict(weights)
        torch.testing.assert_close(decode(tokens[:, -1:]), expected)
        # Every sequence of a batch continues the one that is cached.
        both = torch.tensor([[7], [int(tokens[0, -1])]])
        torch.testing.assert_close(decode(both)[1:], expected)
    assert net.input_shape == (1,)
    assert sum(buffer.numel() for buffer in decode.buffers()) == 3 * 2 * kv_heads * 15 * 32


def test_a_decoded_token_meets_every_key_once(transformer: Space) -> None:
    """GPT-2 after 1023 tokens: FLOPs of the weights, and of 1024 keys and values per layer."""
    net = transformer.build(GPT2, (1024,), 50257, phase="decode")
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 50257
    assert net.flops() == 2 * (weights + 12 * 2 * 1024 * 768)
    # What a batch has in common is computed for each of it.
    assert net.flops(batch=4) == 4 * net.flops()


def test_the_decode_network_leaves_torch(transformer: Space, tmp_path: Path) -> None:
    import onnxruntime

    net = transformer.build(SMALL, (16,), 50, phase="decode")
    module = net.to_module(seed=0).eval()
    for buffer in module.buffers():
        buffer.normal_(generator=torch.Generator().manual_seed(0))
    scope: dict[str, Any] = {"__name__": "written"}
    exec(compile(net.to_source(), "written.py", "exec"), scope)
    written = scope["Model"]().eval()
    written.load_state_dict(module.state_dict())
    path = tmp_path / "decode.onnx"
    to_onnx(module, net.input_shape, path, input_dtype=net.input_dtype)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = net.example(batch)
        with torch.inference_mode():
            expected = module(x)
            torch.testing.assert_close(written(x), expected)
        (output,) = session.run(["output"], {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-5)


def test_decoding_checks_the_sequence_too(transformer: Space) -> None:
    with pytest.raises(ShapeError, match=r"sequence 1024. Valid sequences: 16, 32, 64"):
        transformer.build(GPT2, (64,), 50, phase="decode")
    with pytest.raises(
        UnknownName, match=r"phase of space transformer .decod.; did you mean .decode"
    ):
        transformer.build(GPT2, phase="decod")
