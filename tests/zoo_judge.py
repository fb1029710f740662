"""What is asked of every network of the zoo once it was read."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import pytest
import torch
from flop_counter import count_flops
from latency_fakes import SETTING, rows
from torch import Tensor, nn
from zoo import MEMBERS, Member

from tadnn.hardware import DeviceSpec
from tadnn.kernels import OPAQUE, Kernel
from tadnn.latency import LatencyModel, fit_kernels, to_json
from tadnn.nets import Net, trace
from tadnn.profiling import FakeClock

TOLERANCE: Final = 1e-4
"""Of an output's largest value."""

MOVES: Final = frozenset({"aten.col2im.default"})
"""Operators that may stay opaque: they move values, or lay patches over each other (``fold``)."""


def judge(member: Member) -> None:
    """Read a member and compare the network with the module."""
    module = member.build()
    batches = [member.example(batch) for batch in (1, 2)]
    with torch.no_grad():
        outputs = [module(batch) for batch in batches]
    flops = [count_flops(module, batch).total() for batch in batches]

    _disturb(module)
    before, generator = _state(module), torch.get_rng_state()
    traced = trace(module, member.input_shape)
    _same(before, _state(module))
    assert torch.equal(torch.get_rng_state(), generator)

    net = traced.net
    unknown = {op: count for op, count in traced.opaque.items() if op not in MOVES}
    assert unknown == {}
    assert _opaque_flops(net) == 0
    copy = traced.to_module().eval()
    _same_outputs(copy, batches, outputs)
    # What doesn't depend on the batch (a table that is computed anew in every pass) is worked
    # out once and for all; the second input costs what an input costs.
    each = flops[1] - flops[0]
    if member.folded:
        less = count_flops(copy, batches[0]).total()
        assert 0.9 * each < less < each
        each = less
    assert (net.flops(), net.flops(2)) == (each, 2 * each)
    _priced(net, traced.opaque)
    again = Net.from_json(net.to_json())
    assert again == net
    assert again.key == net.key


def _disturb(module: nn.Module) -> None:
    """Leave a module as a user might: half in training mode, half frozen, watched by hooks."""
    children = list(module.children())
    module.train()
    children[0].eval()
    for parameter in children[-1].parameters():
        parameter.requires_grad_(False)
    module.register_forward_hook(_watch)
    children[0].register_forward_pre_hook(_watch)


def _watch(*_: Any) -> None:
    """See a call go by."""


def _state(module: nn.Module) -> dict[str, Any]:
    """Return all that must not change, tensors copied."""
    return {
        "training": {name: m.training for name, m in module.named_modules()},
        "classes": {name: type(m) for name, m in module.named_modules()},
        "hooks": {
            name: (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks))
            for name, m in module.named_modules()
        },
        "requires_grad": {name: p.requires_grad for name, p in module.named_parameters()},
        "grad": {name: p.grad for name, p in module.named_parameters()},
        "identity": {name: id(p) for name, p in module.named_parameters()},
        "buffers": {name: b.clone() for name, b in module.named_buffers()},
        "state_dict": {name: t.clone() for name, t in module.state_dict().items()},
        "attributes": {name: sorted(vars(m)) for name, m in module.named_modules()},
    }


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for what, values in before.items():
        assert list(values) == list(after[what]), what
        for name, value in values.items():
            now = after[what][name]
            same = torch.equal(value, now) if isinstance(value, Tensor) else value == now
            assert same, (what, name)


def _same_outputs(module: nn.Module, batches: list[Tensor], outputs: list[Tensor]) -> None:
    two = outputs[1]
    # Else the comparison would show nothing.
    assert (two[0] - two[1]).abs().max() > 1e-3 * two.abs().max()
    with torch.no_grad():
        for batch, expected in zip(batches, outputs, strict=True):
            got = module(batch)
            assert got.shape == expected.shape
            assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()


def _opaque_flops(net: Net) -> int:
    return sum(p.layer.flops(*p.inputs) for p in net.layers() if type(p.layer).__name__ == "Opaque")


def _priced(net: Net, opaque: Mapping[str, int]) -> None:
    model = _model()
    prediction = model.predict_net(net)
    assert 0 < prediction.std_ms < prediction.latency_ms
    assert dict(prediction.opaque) == dict(opaque)
    assert to_json(prediction, model)["opaque"] == [
        {"op": op, "count": count} for op, count in prediction.opaque
    ]
    for share in prediction.kernels:
        assert share.latency_us > 0
        assert not (share.kernel.op == OPAQUE and share.in_range)


@functools.cache
def _model() -> LatencyModel:
    """Return a model that has seen a dozen convolutions and knows other kernels by physics."""
    clock = FakeClock(SETTING)
    device: DeviceSpec = clock.device
    kernels = [Kernel.of("linear", m=m, n=n, k=64) for m in (1, 4, 16) for n in (8, 32, 64, 256)]
    return fit_kernels("zoo", [(device, rows(clock, kernels))], SETTING)


def cases(first: str, last: str) -> pytest.MarkDecorator:
    """Run a test for every member whose family begins with one of these letters.

    A file takes a part of the alphabet: files are what is spread over cores.
    """
    chosen = [member for member in MEMBERS if first <= member.family[0] <= last]
    return pytest.mark.parametrize(
        "member",
        [
            pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.slow else [])
            for m in sorted(chosen, key=lambda m: m.family)
        ],
    )
