"""synflow: how much signal can flow through a network's weights?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tadnn.accuracy.modules import as_logits, device_of, failures_named, modes_kept
from tadnn.accuracy.proxies.base import Proxy, required
from tadnn.errors import RequestError, WorkFailed

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net


@final
class Synflow(Proxy):
    """Synaptic flow, summed over all weights, on a logarithmic scale.

    With every parameter replaced by its absolute value, R is the sum of the outputs for one
    input of ones, and the flow through a weight is ``|theta * dR/dtheta|``. The score is
    ``ln(1 + sum of the flows)`` over the weights of convolutions and linear layers (every
    parameter of two or more dimensions). The logarithm keeps the published order and is here
    because the sum itself grows exponentially with depth; it is computed in float64, and a
    network that exceeds even that fails. Batch normalisation is skipped, as in the reference
    implementation of Abdelfattah et al.: neither running statistics nor scales count. No image
    is looked at, so the seed has no effect.

    Sources: Tanaka, Kunin, Yamins and Ganguli, "Pruning neural networks without any data by
    iteratively conserving synaptic flow", NeurIPS 2020, equation 2 and section 5; as a proxy:
    Abdelfattah, Mehrotra, Dudziak and Lane, "Zero-Cost Proxies for Lightweight NAS", ICLR 2021,
    section 3.2.
    """

    name = "synflow"
    description = "ln(1 + synaptic flow) for an input of ones; looks at no image"
    needs = frozenset({"module", "dataset"})
    makes_inputs = True

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return ``ln(1 + flow)``, at least 0.

        Raises:
            RequestError: the module has no weights.
            WorkFailed: the forward pass fails, or the flow exceeds float64.
        """
        module = required(self, "module", module)
        flow = synaptic_flow(module, required(self, "dataset", dataset).input_shape)
        if not bool(torch.isfinite(flow)):
            raise WorkFailed(
                f"synflow must be finite; the flow through this network is {flow.item()}, "
                "because it is too deep and wide for float64 or has weights that are not finite"
            )
        return float(torch.log1p(flow))


def synaptic_flow(module: nn.Module, input_shape: tuple[int, int, int]) -> Tensor:
    """Return the sum of ``|theta * dR/dtheta|``, a float64 scalar; the module is left as it was.

    Args:
        module: the network.
        input_shape: (C, H, W).

    Raises:
        RequestError: the module has no weights.
        WorkFailed: the forward pass fails.
    """
    # Replacements, not changes in place: what the caller holds is never written to.
    with torch.inference_mode(False), torch.enable_grad():
        ones = torch.ones(1, *input_shape, dtype=torch.float64, device=device_of(module))
        tensors = {
            name: _absolute(tensor)
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }
        weights = [
            tensors[name].requires_grad_()
            for name, parameter in module.named_parameters()
            if parameter.ndim >= 2
        ]
        if not weights:
            raise RequestError("synflow sums over weights, and this network has none")
        with (
            modes_kept(module),
            _batch_norm_skipped(module),
            failures_named("synflow", ones),
        ):
            module.eval()
            total = as_logits(functional_call(module, tensors, (ones,))).sum()
            gradients = torch.autograd.grad(total, weights, materialize_grads=True)
        flows = [
            (weight * gradient).abs().sum()
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        return torch.stack(flows).sum().detach()


def _absolute(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.detach().clone()
    return tensor.detach().to(torch.float64, copy=True).abs_()


@contextmanager
def _batch_norm_skipped(module: nn.Module) -> Iterator[None]:
    def skip(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return inputs[0]

    handles = [
        part.register_forward_hook(skip)
        for part in module.modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
