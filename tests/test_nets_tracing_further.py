"""Operators beyond the common ones, each in a module of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from test_nets_tracing import kinds, same
from torch import Tensor, nn

from tadnn.nets.tracing import graph as graphs
from tadnn.nets.tracing.opaque import _flops


class Chosen(nn.Module):
    """Masks that are stored, with numbers and with values in their places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([[True, False, True, False, True]]))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.where(self.mask, x, 0.5 * x)
        return first.masked_fill(~self.mask, 3.0) + torch.where(self.mask, 1.0, x)


class OneHeadOfKeys(nn.Module):
    """Attention whose queries' heads share one key and value by broadcasting."""

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q = x.reshape(n, t, 2, d // 2).transpose(1, 2)
        k = x[:, None, :, : d // 2]
        return nn.functional.scaled_dot_product_attention(q, k, k)


class Recurrent(nn.Module):
    """Both directions of one kind of recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(6, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)[0]
        return made


class Call(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


FURTHER: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "masks": (Chosen, (3, 5), "Where"),
    "one head of keys": (OneHeadOfKeys, (5, 8), "ScaledDotProduct"),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 6), "Linear"),
    "gru": (lambda: Recurrent(nn.GRU), (3, 6), "Linear"),
    "rnn": (lambda: Recurrent(nn.RNN), (3, 6), "Linear"),
    "volume": (lambda: nn.Conv3d(2, 4, (1, 3, 2), (1, 2, 1), (0, 1, 1)), (2, 3, 6, 5), "Conv3d"),
    "log_softmax": (lambda: nn.LogSoftmax(1), (3, 5), "LogSoftmax"),
    "dilated pool": (lambda: nn.MaxPool2d(3, 1, 1, dilation=2), (2, 8, 7), "MaxPool2d"),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, (2, 3), (1, 2), (0, 1), (0, 1), 2, dilation=(1, 2)),
        (4, 5, 6),
        "ConvTranspose2d",
    ),
    "transposed sequence": (lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1), (4, 7), "ConvTranspose2d"),
    "odd scale": (
        lambda: nn.Upsample(scale_factor=(1.6, 1.5), mode="bilinear"), (2, 4, 5), "Resize"
    ),
    "reversed": (lambda: Call(lambda x: 2 * x.flip(1, 2)), (3, 5), "Gather"),
    "largest but padding": (
        lambda: Call(
            lambda x: nn.functional.max_pool2d(
                nn.functional.pad(x, (0, 1, 1, 0), value=-math.inf), 2, 1
            )
        ),
        (2, 5, 6),
        "Pad",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FURTHER)
def test_further_operators_are_layers(name: str) -> None:
    make, shape, layer = FURTHER[name]
    traced = same(make(), shape)
    assert not traced.opaque
    assert layer in kinds(traced)


class _WithoutMeta:
    """Matrix multiplication that refuses tensors without values."""

    __name__ = "mm"
    overloadpacket = torch.ops.aten.mm

    def __call__(self, *args: Tensor) -> Tensor:
        raise NotImplementedError


def test_flops_of_an_operator_that_needs_values_are_its_formulas() -> None:
    graph = torch.fx.Graph()
    taken = [graph.placeholder(name) for name in "ab"]
    for node, shape in zip(taken, ((3, 4), (4, 5)), strict=True):
        node.meta["val"] = torch.empty(shape, device="meta")
    product = graph.call_function(_WithoutMeta(), tuple(taken))
    product.meta["val"] = torch.empty(3, 5, device="meta")
    call = graphs.Call(product, "mm", {}, ((3, 5),), graphs.Origin((), (), ""))
    assert _flops(call) == 2 * 3 * 4 * 5
    product.target.overloadpacket = torch.ops.aten.nonzero
    assert _flops(call) == 0, "no formula: priced by what it moves"
