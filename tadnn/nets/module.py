"""A network as an ``nn.Module``."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tadnn.nets import composites
from tadnn.nets.blocks import INPUT, Block, BlockFacts
from tadnn.nets.layers import TorchComposite, TorchFunction, TorchModule
from tadnn.nets.net import Net

_Call = str | Callable[..., Tensor]


class BlockModule(nn.Module):
    """Runs one block's graph; children have the names of its nodes."""

    def __init__(self, block: Block, facts: BlockFacts) -> None:
        super().__init__()
        # A child is kept by its name, so that replacing it takes effect.
        self._steps: list[tuple[_Call, tuple[int, ...], dict[str, Any]]] = []
        self._last_use = {i: step for step, n in enumerate(block.nodes) for i in n.inputs}
        for node, shapes in zip(block.nodes, facts.inputs, strict=True):
            recipe = node.layer.torch(*shapes)
            match recipe:
                case TorchModule(name, args, kwargs):
                    self.add_module(node.name, getattr(nn, name)(*args, **kwargs))
                    self._steps.append((node.name, node.inputs, {}))
                case TorchComposite(name, args, kwargs):
                    self.add_module(node.name, getattr(composites, name)(*args, **kwargs))
                    self._steps.append((node.name, node.inputs, {}))
                case TorchFunction(name, kwargs):
                    self._steps.append(
                        (operator.attrgetter(name)(torch), node.inputs, dict(kwargs))
                    )

    def forward(self, x: Tensor) -> Tensor:
        """Run the graph."""
        values: dict[int, Tensor] = {INPUT: x}
        for step, (call, inputs, kwargs) in enumerate(self._steps):
            run = getattr(self, call) if isinstance(call, str) else call
            values[step] = run(*(values[i] for i in inputs), **kwargs)
            for i in set(inputs):
                if self._last_use[i] == step:
                    del values[i]  # freed after its last use, which is what Net's peak counts
        return values[len(self._steps) - 1]


class NetModule(nn.Module):
    """Runs the chain of blocks; children have the names of the blocks."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self._names = [name for name, _ in net.blocks]
        for name, block, _, facts in net.chain():
            self.add_module(name, BlockModule(block, facts))

    def forward(self, x: Tensor) -> Tensor:
        """Run the network on a batch."""
        for name in self._names:
            x = getattr(self, name)(x)
        return x


def net_to_module(net: Net, seed: int | None = None) -> nn.Module:
    """Return the network as a module in training mode; see :meth:`Net.to_module`."""
    scope = contextlib.nullcontext() if seed is None else torch.random.fork_rng(devices=[])
    with scope:
        if seed is not None:
            torch.manual_seed(seed)
        return NetModule(net)


def net_to_example(net: Net, batch: int, seed: int) -> Tensor:
    """Return a random batch of inputs; see :meth:`Net.example`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, *net.input_shape)
    if net.input_dtype == "int64":
        return torch.randint(net.input_limit or 1, shape, generator=generator)
    return torch.randn(shape, generator=generator)
