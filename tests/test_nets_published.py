"""Networks by the names that tables of timings use, and reading them without weights."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

from tadnn.errors import MissingPackage, RequestError, TargetError, TraceError, UnknownName
from tadnn.nets import read_net, trace
from tadnn.nets.published import published_net
from tadnn.runtimes import find_runtime, lower_net
from tadnn.search import resolve_target

EAGER = find_runtime("torch-eager")


class Plain(nn.Module):
    """Writes in place, makes tensors as it goes, splits, and has a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.1))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
        self.table = torch.arange(8.0)  # no buffer

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm(self.conv(x)))
        x = x + x * self.scale
        x = x.mean((2, 3)) + torch.arange(8, device=x.device)
        first, second = self.head(x).chunk(2, dim=1)
        return torch.cat([second, first * 2], dim=1) + self.table


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out[:, -1]


class Written(nn.Module):
    """Writes to a view that is read by another name."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0].mul_(3)
        return y


@pytest.mark.parametrize(
    ("module", "shape"),
    [(Plain(), (3, 6, 6)), (Recurrent(), (3, 4)), (Written(), (4, 5))],
    ids=["plain", "recurrent", "written"],
)
def test_a_network_read_is_the_one_that_is_traced(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    read, traced = read_net(module, shape), trace(module, shape).net
    assert lower_net(read, 3, "fp32", EAGER) == lower_net(traced, 3, "fp32", EAGER)
    assert read.flops(2) == traced.flops(2)
    assert read.parameters == traced.parameters
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_names_of_layers_are_kept_too() -> None:
    assert read_net(Plain(), (3, 6, 6)) == trace(Plain(), (3, 6, 6)).net


def test_what_cannot_be_read_says_so_as_tracing_does() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(TraceError, match="decides by its data"):
        read_net(Branches(), (3,))


@pytest.mark.parametrize(
    "text",
    ["timm:", "timm:resnet18@", "timm:resnet18@0", "timm:resnet18@2x", "neusight:bert_large"],
)
def test_names_that_do_not_read_like_names(text: str) -> None:
    with pytest.raises(TargetError, match="timm:MODEL@SIZE and neusight:MODEL@TOKENS"):
        resolve_target(text)


def test_transformers_by_name() -> None:
    net = resolve_target("neusight:bert_large@16").net
    assert net.input_shape == (16,)
    # 24 layers of 12 width^2 multiply-adds a token (attention's projections and the feed-forward),
    # and 2 x tokens^2 x width for scores and weighted values.
    macs = 24 * (12 * 1024**2 * 16 + 2 * 16**2 * 1024)
    assert net.flops() == 2 * macs
    with pytest.raises(UnknownName, match="bert_large"):
        published_net("neusight:bert_big@16")


def test_without_timm_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="pip install --no-deps timm torchvision"):
        published_net("timm:resnet18@64")


class TestTimm:
    @pytest.fixture(autouse=True)
    def needs_timm(self) -> None:
        pytest.importorskip("timm", exc_type=ImportError) if False else None
        if importlib.util.find_spec("timm") is None:
            pytest.skip("timm is not installed")

    def test_sizes(self) -> None:
        named = resolve_target("timm:test_resnet@96")
        assert named.net.input_shape == (3, 96, 96)
        assert named.traced is None, "it has no weights"
        assert resolve_target("timm:test_resnet", (3, 64, 64)).net.input_shape == (3, 64, 64)
        assert resolve_target("timm:test_vit@128").net.input_shape == (3, 128, 128)
        assert published_net("timm:test_resnet").input_shape == (3, 160, 160)

    def test_it_is_the_network_that_timm_builds(self) -> None:
        import timm

        module = timm.create_model("test_resnet").eval()
        net = published_net("timm:test_resnet@64")
        assert net == trace(module, (3, 64, 64)).net
        assert net.parameters == sum(p.numel() for p in module.parameters())

    def test_what_timm_lacks(self) -> None:
        with pytest.raises(TargetError, match=r"no architecture 'resnet_18'.*mean resnet18"):
            published_net("timm:resnet_18@64")
        with pytest.raises((RequestError, TraceError), match="timm:vit_tiny_patch16_224"):
            published_net("timm:vit_tiny_patch16_224@7")
