"""Traced modules on ONNX Runtime: what it makes of them, and what is launched by our account."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
import torch
from nets_examples import randomised
from torch import Tensor, nn
from zoo import MEMBERS

from tadnn.nets import Traced, trace
from tadnn.runtimes import Setting, find_runtime, lower_net
from tadnn.runtimes.onnx_graph import lacking_layers, net_to_onnx
from tadnn.runtimes.onnxruntime import optimised_nodes
from tadnn.runtimes.ort_profile import NodeMap

SETTING = Setting("onnxruntime")
MEMBER = {member.name: member for member in MEMBERS}


class Image(nn.Module):
    """A padded convolution, channels last and back inside a residual, a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2)
        self.spread = nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm = nn.LayerNorm(32)
        self.mix = nn.Linear(32, 32)
        self.gamma = nn.Parameter(torch.ones(32, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(nn.functional.pad(x, (0, 1, 0, 1)))
        x = self.spread(x) * self.gamma
        made = self.mix(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return (x + made).mean((2, 3))


class Tokens(nn.Module):
    """Attention by hand with rolled tokens, a stored mask and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.register_buffer("mask", torch.randn(9, 9))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x.roll(2, 1)).reshape(n, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = (q * 0.3) @ k.transpose(-2, -1) + self.mask
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, d)[:, 2:5]


def runs_the_same(module: nn.Module, traced: Traced) -> None:
    weights = {name: tensor.numpy() for name, tensor in traced.weights.items()}
    model = net_to_onnx(traced.net, 2, weights).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = traced.net.example(2)
    with torch.no_grad():
        expected = module(x).numpy()
    (got,) = session.run(None, {"input": x.numpy()})
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def differences(traced: Traced) -> tuple[Counter[str], Counter[str], int]:
    """Return ops of nodes that are no launch, ops of launches that are no node, and all launches.

    Nodes that only reorder their input's memory between blocks are told apart by the caller.
    """
    nodes = optimised_nodes(net_to_onnx(traced.net, 1).SerializeToString(), SETTING)
    found = NodeMap(traced.net, 1, "fp32", nodes)
    owners = [(name, op, found.owner(name, op)) for name, op, _, _ in nodes]
    strangers = Counter(
        op for name, op, owner in owners if owner is None and name and not found.is_view(op)
    )
    seen = {owner for _, _, owner in owners}
    unseen = Counter(x.kernel.op for i, x in enumerate(found.launches) if i not in seen)
    return strangers, unseen, len(found.launches)


@pytest.mark.parametrize(
    ("make", "shape"), [(Image, (3, 32, 32)), (Tokens, (9, 32))], ids=["image", "tokens"]
)
def test_a_traced_module_runs_as_it_is_lowered(
    make: type[nn.Module], shape: tuple[int, ...]
) -> None:
    module = randomised(make())
    traced = trace(module, shape)
    assert not lacking_layers(traced.net)
    runs_the_same(module, traced)
    strangers, unseen, count = differences(traced)
    moves = {"ReorderInput", "ReorderOutput", "Transpose"}
    assert set(strangers) <= moves, strangers
    # Parts that are taken one by one come out of one Split, which has no name.
    assert set(unseen) <= {"permute", "concat"}, unseen
    assert sum(unseen.values()) < count / 3


def test_a_traced_module_is_observed() -> None:
    net = trace(Tokens().eval(), (9, 32)).net
    observed = find_runtime("onnxruntime").observe_net(net, 2, SETTING)
    launched = lower_net(net, 2, "fp32", find_runtime("onnxruntime"))
    assert set(observed) <= set(launched)
    assert {"bmm", "linear", "softmax"} <= {kernel.op for kernel in observed}
    assert sum(kernel.flops for kernel in launched) == net.flops(2)


# What is left over of reorders, because blocks are priced apart from each other.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reorders"),
    [
        ("resnet18", 0),
        ("mobilenetv2_035", 0),
        ("efficientnet_b0", 0),
        ("regnetx_002", 0),
        ("densenet121", 0),
        ("convnext_atto", 12),
        ("deit_tiny_distilled_patch16_224", 3),
    ],
)
def test_networks_of_timm_run_as_they_are_lowered(name: str, reorders: int) -> None:
    member = MEMBER[name]
    module = member.build().eval()
    traced = trace(module, member.input_shape)
    runs_the_same(module, traced)
    strangers, unseen, _ = differences(traced)
    moves = {"ReorderInput", "ReorderOutput", "Transpose"}
    assert set(strangers) - moves <= {"SkipLayerNormalization"}
    assert sum(unseen.values()) <= reorders
    assert sum(strangers.values()) <= reorders
