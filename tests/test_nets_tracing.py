"""Modules written by hand, each with one pattern: the same output, and the layers it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets_examples import model_of, randomised, small_net
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tadnn.errors import ShapeError
from tadnn.nets import (
    Attention,
    BatchNorm2d,
    Conv2d,
    Net,
    Opaque,
    Shape,
    Stored,
    Traced,
    load_weights,
    save_weights,
    to_onnx,
    trace,
)


class Of(nn.Module):
    """A forward from a function of the module and its input; parts are its children."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def values(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))))


def holding(forward: Callable[[Any, Tensor], Tensor], *shape: int) -> nn.Module:
    """A module with a parameter ``w``."""
    module = Of(forward)
    module.w = values(*shape)
    return module


def same(module: nn.Module, shape: Shape, **kwargs: Any) -> Traced:
    """Trace a module and check that its outputs stay what they were, for several batches."""
    module = randomised(module)
    traced = trace(module, shape, **kwargs)
    rebuilt = traced.to_module()
    assert set(traced.weights) == set(rebuilt.state_dict())
    for batch in (1, 4):
        x = traced.net.example(batch, seed=batch)
        with torch.no_grad():
            expected = module(x)
            torch.testing.assert_close(rebuilt(x), expected, rtol=1e-4, atol=1e-5)
        assert traced.net.output_shape(batch) == expected.shape
    assert Net.from_json(json.loads(json.dumps(traced.net.to_json()))) == traced.net
    return traced


def kinds(traced: Traced) -> list[str]:
    return [type(layer.layer).__name__ for layer in traced.net.layers()]


def attend(m: Any, x: Tensor) -> Tensor:
    n, t, c = x.shape
    q, k, v = m.qkv(x).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v)
    return m.out(y.transpose(1, 2).reshape(n, t, c))  # type: ignore[no-any-return]


def attend_by_hand(m: Any, x: Tensor) -> Tensor:
    n, t, c = x.shape
    q, k, v = m.qkv(x).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
    scores = (q * (c // 2) ** -0.5) @ k.transpose(-2, -1)
    return m.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c))  # type: ignore[no-any-return]


def windows(m: Any, x: Tensor) -> Tensor:
    """Swin's: windows of 2x2 become part of the batch, and come back."""
    n, c, h, w = x.shape
    x = torch.roll(x.permute(0, 2, 3, 1), (-1, -1), (1, 2))
    x = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
    x = m.part(x).view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h, w, c).permute(0, 3, 1, 2)


def masked(m: Any, x: Tensor) -> Tensor:
    t = x.shape[1]
    hidden = torch.ones(t, t).tril() == 0
    return (x @ x.transpose(1, 2)).masked_fill(hidden, float("-inf")).softmax(-1) @ x


def indices(m: Any, x: Tensor) -> Tensor:
    bias = m.w[torch.arange(9).flip(0)].view(3, 3)  # a table looked up by constants: folded
    return x[:, [2, 0, 1]] + bias[:, :1]


def shared(m: Any, x: Tensor) -> Tensor:
    return m.part(m.part(x))  # type: ignore[no-any-return]


def two(width: int = 8, bias: bool = True) -> dict[str, nn.Module]:
    return {"qkv": nn.Linear(width, 3 * width, bias), "out": nn.Linear(width, width)}


IMAGE, TOKENS = (4, 6, 6), (5, 8)
PATTERNS: dict[str, tuple[Callable[[], nn.Module], Shape, str]] = {
    "conv": (lambda: nn.Conv2d(4, 6, 3, padding=1), IMAGE, "Conv2d"),
    "even": (lambda: nn.Conv2d(4, 6, 4, padding=2, padding_mode="reflect"), IMAGE, "Pad Conv2d"),
    "same": (lambda: nn.Conv2d(4, 6, 4, padding="same"), IMAGE, "Pad Conv2d"),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, 2, 1, groups=4), IMAGE, "DepthwiseConv2d"),
    "conv1d": (lambda: nn.Conv1d(5, 4, 3, dilation=2, bias=False), TOKENS, "Conv1d"),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), IMAGE, "ConvTranspose2d"),
    "batch_norm": (lambda: nn.BatchNorm2d(4, eps=1e-2), IMAGE, "BatchNorm2d"),
    "batch_norm1d": (lambda: nn.BatchNorm1d(5), TOKENS, "Reshape BatchNorm2d Reshape"),
    "plain_norm": (lambda: nn.BatchNorm2d(4, affine=False), IMAGE, "BatchNorm2d"),
    "layer_norm": (lambda: nn.LayerNorm(8, eps=1e-2, bias=False), TOKENS, "LayerNorm"),
    "image_norm": (lambda: nn.LayerNorm([4, 6, 6]), IMAGE, "LayerNorm"),
    "group_norm": (lambda: nn.GroupNorm(2, 4, eps=1e-2), IMAGE, "GroupNorm"),
    "instance_norm": (lambda: nn.InstanceNorm2d(4), IMAGE, "GroupNorm"),
    "rms_norm": (lambda: nn.RMSNorm(8, eps=1e-2), TOKENS, "RMSNorm"),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.5), nn.ReLU()), TOKENS, "ReLU"),
    "nothing": (nn.Identity, TOKENS, "Identity"),
    "relu6": (lambda: nn.ReLU6(inplace=True), TOKENS, "ReLU6"),
    "gelu": (lambda: nn.GELU("tanh"), TOKENS, "GELU"),
    "elu": (lambda: nn.ELU(0.7), TOKENS, "Pointwise"),
    "softplus": (lambda: nn.Softplus(2.0), TOKENS, "Pointwise"),
    "hardtanh": (lambda: nn.Hardtanh(-0.5, 0.5), TOKENS, "Pointwise"),
    "prelu": (lambda: nn.PReLU(5), TOKENS, "PReLU"),
    "glu": (lambda: nn.GLU(), TOKENS, "Slice Sigmoid Slice Mul"),
    "numbers": (lambda: Of(lambda m, x: 2 / (1 - x * 3 + 4).exp()), TOKENS, "Pointwise " * 6),
    "powers": (lambda: Of(lambda m, x: x**2 + x.abs() ** 1.5), TOKENS, "Pointwise " * 3 + "Add"),
    "scale": (lambda: holding(lambda m, x: x + x * m.w, 8), TOKENS, "Stored Binary Add"),
    "positions": (lambda: holding(lambda m, x: x + m.w, 1, 5, 8), TOKENS, "PositionEmbedding"),
    "token": (
        lambda: holding(lambda m, x: torch.cat((m.w.expand(len(x), -1, -1), x), 1), 1, 1, 8),
        TOKENS,
        "ClassToken",
    ),
    "tokens": (
        lambda: holding(lambda m, x: torch.cat((x, m.w.expand(len(x), -1, -1)), 1), 1, 2, 8),
        TOKENS,
        "Stored Concat",
    ),
    "gate": (
        lambda: Of(lambda m, x: x.mean((2, 3), keepdim=True).sigmoid() * x),
        IMAGE,
        "GlobalAvgPool Sigmoid Mul",
    ),
    "product": (lambda: holding(lambda m, x: x @ m.w, 8, 3), TOKENS, "Linear"),
    "products": (lambda: Of(lambda m, x: x @ x.mT), TOKENS, "MatMul"),
    "mixing": (lambda: holding(lambda m, x: m.w @ x, 3, 5), TOKENS, "Stored MatMul"),
    "einsum": (
        lambda: Of(lambda m, x: torch.einsum("nchw,ndhw->ncd", x, x * 2)),
        IMAGE,
        "Reshape Pointwise Reshape MatMul",
    ),
    "attention": (lambda: Of(attend, **two()), TOKENS, "LayerNorm Attention"),
    "by_hand": (
        lambda: Of(attend_by_hand, **two()),
        TOKENS,
        "Linear Reshape Select Permute Pointwise Select Permute MatMul Softmax Select Permute "
        "MatMul Permute Reshape Linear",
    ),
    "mask": (masked, TOKENS, "MatMul Stored Binary Softmax MatMul"),  # type: ignore[dict-item]
    "windows": (
        lambda: Of(windows, part=nn.Linear(4, 4)),
        IMAGE,
        "Permute Roll Reshape Permute View Linear View Permute Reshape Permute",
    ),
    "lookup": (lambda: holding(indices, 9), (3, 4), "Gather Stored Binary"),
    "shared": (lambda: Of(shared, part=nn.Linear(8, 8)), TOKENS, "Linear Linear"),
    "pools": (
        lambda: nn.Sequential(
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.AvgPool2d(2, 1, 1, count_include_pad=False),
            nn.AdaptiveAvgPool2d((2, 3)),
        ),
        (4, 8, 9),
        "MaxPool2d AvgPool2d AdaptiveAvgPool2d",
    ),
    "largest": (
        lambda: nn.Sequential(nn.AdaptiveMaxPool2d((4, 3)), nn.AdaptiveMaxPool2d(1)),
        (4, 8, 9),
        "MaxPool2d Reduce",
    ),
    "pools1d": (lambda: nn.MaxPool1d(2), TOKENS, "Reshape MaxPool2d Reshape"),
    "resize": (
        lambda: Of(
            lambda m, x: F.interpolate(F.interpolate(x, scale_factor=2), (5, 7), mode="bicubic")
        ),
        IMAGE,
        "Upsample Resize",
    ),
    "shuffle": (lambda: nn.PixelShuffle(2), IMAGE, "Reshape Permute Reshape"),
    "split": (
        lambda: Of(lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1) + x[:, ::2].sum(1, True)),
        IMAGE,
        "Slice Slice Concat Slice Reduce Binary",
    ),
    "stack": (
        lambda: Of(lambda m, x: torch.stack((x, -x)).amax(0)),
        TOKENS,
        "Pointwise Reshape " * 1 + "Reshape Concat Reduce",
    ),
    "spread": (
        lambda: Of(lambda m, x: (x - x.mean(1, True)) / x.std(1, keepdim=True)),
        TOKENS,
        "Reduce Binary Reduce Binary",
    ),
    "normalize": (
        lambda: Of(lambda m, x: F.normalize(x, dim=-1)),
        TOKENS,
        "Reduce Pointwise Binary",
    ),
    "unfold": (
        lambda: Of(lambda m, x: x.unfold(2, 4, 2)),
        IMAGE,
        "Gather Reshape Permute",
    ),
    "columns": (
        lambda: nn.Unfold((2, 3), dilation=2, padding=1, stride=(1, 2)),
        (4, 6, 7),
        "Pad Gather Reshape Gather Reshape Permute Reshape",
    ),
    "sizes": (
        lambda: Of(lambda m, x: torch.cat((x, torch.ones_like(x.chunk(2, 2)[0])), 2)),
        TOKENS,
        "Stored Concat",
    ),
    "zeros": (lambda: Of(lambda m, x: x - torch.zeros_like(x)), TOKENS, "Stored Binary"),
    "in_place": (
        lambda: Of(lambda m, x: _written(x)),
        TOKENS,
        "Pointwise Slice Pointwise Slice Concat",
    ),
}


def _written(x: Tensor) -> Tensor:
    y = x + 1
    y[:, :2].mul_(2)
    return y


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    make, shape, expected = PATTERNS[name]
    module = Of(masked) if name == "mask" else make()
    if name == "attention":  # the vocabulary's takes what a layer gives
        module = nn.Sequential(nn.LayerNorm(8), module)
    traced = same(module, shape)
    if expected:
        assert sorted(kinds(traced)) == sorted(expected.split()), name
        assert not traced.opaque


def test_attention_is_the_layer_with_its_weights() -> None:
    for bias in (True, False):
        traced = same(nn.Sequential(nn.LayerNorm(8), Of(attend, **two(bias=bias))), TOKENS)
        assert [p.layer for p in traced.net.layers()][1] == Attention(2, qkv_bias=bias)
    kept = same(
        nn.Sequential(
            nn.LayerNorm(8), Of(attend, qkv=nn.Linear(8, 24), out=nn.Linear(8, 8, False))
        ),
        TOKENS,
    )
    assert "ScaledDotProduct" in kinds(kept), "no bias behind: not the vocabulary's"


def test_token_ids() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(m.tokens(x) + m.places(torch.arange(x.shape[1])))  # type: ignore[no-any-return]

    parts = {"tokens": nn.Embedding(11, 8), "places": nn.Embedding(5, 8), "head": nn.Linear(8, 11)}
    traced = same(Of(forward, **parts), (5,))
    assert traced.net.input_dtype == "int64"
    assert traced.net.input_limit == 11
    assert kinds(traced) == ["Embedding", "PositionEmbedding", "Linear"]


def test_encoder_layers_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    traced = same(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), TOKENS)
    assert not traced.opaque
    products = 2 * 2 * 2 * 5 * 5 * 8  # layers, products of attention, two FLOPs, tokens, width
    weights = 2 * 2 * 5 * (4 * 8 * 8 + 2 * 8 * 16)
    assert traced.net.flops() == products + weights


def test_a_traced_network_traces_to_itself() -> None:
    net = small_net()
    traced = same(net.to_module(seed=0), net.input_shape)
    assert traced.net.flops() == net.flops()
    assert traced.net.parameters == net.parameters
    assert [p.layer for p in traced.net.layers()] == [p.layer for p in net.layers()]
    stages = [block for name, block in traced.net.blocks if name in ("stage1_1", "stage1_2")]
    assert len(stages) == 2
    assert stages[0] == stages[1], "equal blocks, remembered once"


def test_blocks_keep_what_is_fused_together() -> None:
    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.norm(self.conv(x)) + x)

    traced = same(nn.Sequential(Unit(), Unit(), nn.Conv2d(4, 2, 1)), IMAGE)
    names = [name for name, _ in traced.net.blocks]
    assert names == ["layer0", "layer1", "layer2"]
    first, second, _ = (block for _, block in traced.net.blocks)
    assert first == second
    assert first.label == "unit"
    assert [node.name for node in first.nodes] == ["conv", "norm", "add", "relu"]
    assert set(traced.weights) >= {"layer0.conv.weight", "layer1.norm.running_var"}


class TestOpaque:
    def make(self) -> nn.Module:
        return Of(lambda m, x: m.part(x).cumsum(1), part=nn.Linear(8, 8))

    def test_is_counted_and_named(self) -> None:
        traced = same(self.make(), TOKENS)
        assert traced.opaque == {"aten.cumsum.default": 1}
        layer = list(traced.net.layers(2))[-1]
        assert isinstance(layer.layer, Opaque)
        (kernel,) = layer.layer.kernels("fp32", *layer.inputs)
        assert kernel.key == "opaque(n=2,flops=0,read=40,written=40,dtype=fp32)"

    def test_counts_flops_by_torchs_formula(self) -> None:
        module = nn.ConvTranspose3d(2, 3, 3, padding=1)
        traced = same(module, (2, 4, 5, 6))
        assert traced.opaque == {"aten.conv_transpose3d.input": 1}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.zeros(1, 2, 4, 5, 6))
        assert traced.net.flops() == counter.get_total_flops() == 2 * 120 * 3 * 2 * 27

    def test_several_outputs(self) -> None:
        def forward(m: Any, x: Tensor) -> Tensor:
            values, places = torch.sort(x)
            return values + places

        traced = same(Of(forward), TOKENS)
        assert sum(traced.opaque.values()) == 2

    @pytest.mark.parametrize(
        "op", ["os.system.default", "aten.relu_.default", "cumsum", "aten.x.y.z", "aten..default"]
    )
    def test_only_functions_of_torch(self, op: str) -> None:
        with pytest.raises(ShapeError, match="functional operator of aten, prims, torchvision"):
            Opaque(op, "{}", "[[-1, 4]]", "[-1, 4]")

    def test_what_reads_files_is_not_run(self) -> None:
        layer = Opaque(
            "aten.from_file.default", '{"filename": "/etc/hosts"}', "[[-1, 4]]", "[-1, 4]"
        )
        block = small_net().blocks[0][1]
        node = type(block.nodes[0])("layer", layer, (-1,))
        net = Net.checked((4,), (("only", type(block)("one", (node,))),))
        with pytest.raises(ValueError, match="no function of tensors"):
            net.to_module()


class TestTheCallersModule:
    def test_is_left_as_it_was(self) -> None:
        calls: list[int] = []
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(True))
        module[1].eval()
        module[0].weight.requires_grad_(False)
        hook = module[0].register_forward_hook(lambda *_: calls.append(1))
        before = {name: t.clone() for name, t in module.state_dict().items()}
        owners = [id(t) for t in module.state_dict(keep_vars=True).values()]
        modes = [part.training for part in module.modules()]
        state = torch.get_rng_state()
        trace(module, (3, 8, 8))
        assert torch.equal(torch.get_rng_state(), state)
        assert [part.training for part in module.modules()] == modes
        assert [id(t) for t in module.state_dict(keep_vars=True).values()] == owners
        assert list(module.state_dict()) == list(before)
        assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
        assert not module[0].weight.requires_grad
        assert list(module[0]._forward_hooks) == [hook.id]
        module(torch.zeros(2, 3, 8, 8)).sum().backward()
        assert module[1].weight.grad is not None

    def test_forgets_what_it_cached_meanwhile(self) -> None:
        class Caching(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cache: dict[str, Tensor] = {}
                self.last: Tensor | None = None

            def forward(self, x: Tensor) -> Tensor:
                if "mask" not in self.cache:
                    self.cache["mask"] = torch.ones(8)
                self.last = x * self.cache["mask"]
                return self.last

        module = Caching()
        trace(module, TOKENS)
        assert module.cache == {}
        assert module.last is None

    def test_weights_are_copies(self) -> None:
        module = nn.Linear(8, 3)
        traced = trace(module, TOKENS)
        with torch.no_grad():
            module.weight.zero_()
        (weight,) = (t for name, t in traced.weights.items() if name.endswith("weight"))
        assert weight.abs().sum() > 0


def test_source_weights_and_onnx_of_a_traced_network(tmp_path: Path) -> None:
    import onnxruntime

    module = nn.Sequential(
        Of(windows, part=nn.Linear(4, 4)),
        holding(lambda m, x: x * m.w.view(-1, 1, 1), 4),
        nn.Flatten(),
        Of(lambda m, x: x.cumsum(1)),
    )
    traced = same(module, IMAGE)
    assert any(isinstance(layer.layer, Stored) for layer in traced.net.layers())
    rebuilt = traced.to_module()
    x = traced.net.example(3)
    with torch.no_grad():
        expected = module(x)
    save_weights(rebuilt, tmp_path / "weights.safetensors")
    written = model_of(traced.net.to_source())
    load_weights(written, tmp_path / "weights.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(written(x), expected)
    to_onnx(rebuilt, IMAGE, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "net.onnx", providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(["output"], {"input": x.numpy()})
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_old_keys_stay() -> None:
    """Fields with defaults were added to the normalisations; what is stored has none of them."""
    assert BatchNorm2d() == BatchNorm2d(1e-5, True)
    block = next(block for _, block in small_net().blocks)
    data = small_net().to_json()["blocks"][0]["nodes"]
    assert ["norm", "BatchNorm2d", {}, [0]] in data
    assert block.nodes[0].layer == Conv2d(4, 3)
