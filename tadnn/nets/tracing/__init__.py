"""Any ``nn.Module`` as a Net with its weights, through torch.export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tadnn.nets.layers import Shape
from tadnn.nets.net import Net

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True)
class Traced:
    """A network that was read from a module.

    Attributes:
        net: the network.
        weights: the values of ``net.to_module().state_dict()``.
        opaque: how often an operator occurs that the vocabulary lacks, by its name.
    """

    net: Net
    weights: Mapping[str, Tensor] = field(repr=False, compare=False)
    opaque: Mapping[str, int]

    def to_module(self) -> nn.Module:
        """Return the network with the weights, in evaluation mode."""
        module = self.net.to_module(seed=0)
        module.load_state_dict(dict(self.weights))
        return module.eval()


def trace(
    module: nn.Module,
    input_shape: Shape,
    *,
    dtype: torch.dtype | None = None,
    example: Tensor | None = None,
) -> Traced:
    """Return the network that a module computes in evaluation mode, with its weights.

    The module is run on tensors without values, twice, and is left as it was: mode, weights,
    statistics, hooks, and the random generators' states.

    Args:
        module: takes one tensor with the batch first and gives one; on the CPU.
        input_shape: one input without the batch dimension, such as (3, 224, 224).
        dtype: of the input; None: that of the module's parameters, or int64 where it looks
            token ids up.
        example: a batch of inputs to take the dtype from instead.

    Raises:
        TraceError: the module cannot be read; the operator, the source line and what to do
            are named.
        RequestError: the shape is none.
    """
    from tadnn.nets.tracing.tracing import trace_module

    return trace_module(module, input_shape, dtype=dtype, example=example)


def read_net(module: nn.Module, input_shape: Shape) -> Net:
    """Return the network that a module computes in evaluation mode, without its weights.

    That of :func:`trace`, but for names of layers here and there, several times as fast, and
    without touching the weights: for pricing hundreds of networks.

    Args:
        module: takes one tensor with the batch first and gives one; on the CPU.
        input_shape: one input without the batch dimension, such as (3, 224, 224).

    Raises:
        TraceError: the module cannot be read.
        RequestError: the shape is none.
    """
    from tadnn.nets.tracing.tracing import read_module

    return read_module(module, input_shape)


__all__ = ["Traced", "read_net", "trace"]
