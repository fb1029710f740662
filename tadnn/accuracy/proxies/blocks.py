"""The feature maps between an untrained network's blocks, on noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tadnn.accuracy.modules import (
    as_logits,
    device_of,
    failures_named,
    modes_kept,
    normalise_by_minibatch,
    random_state_kept,
    require_finite_weights,
)
from tadnn.accuracy.proxies.zen import gaussian_tensors
from tadnn.errors import WorkFailed

#: Feature maps are ``[n, C, H, W]``, tokens ``[n, length, D]``; what is flat belongs to the head.
_DIMENSIONS = (3, 4)


def kaiming_deviation(weight: Tensor) -> float:
    """Return the deviation that keeps a rectified signal's size: ``sqrt(2 / fan-in)``.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, section 2.2.
    """
    return float((2.0 / max(1, weight[0].numel())) ** 0.5)


def block_features(
    proxy: str, module: nn.Module, shape: tuple[int, ...], generator: torch.Generator
) -> list[Tensor]:
    """Return what each block of a network gives for a batch of noise, with the graph between.

    Blocks are the module's own children, in the order of their calls; torch's layers without
    parameters (activations, pools, dropout) are none, nor is what gives flat features. Weights
    are drawn anew from N(0, 2 / fan-in), biases are 0, and batch normalisation uses the batch.

    Args:
        proxy: its name, for messages.
        module: the network; left as it was.
        shape: of the batch, ``[n, C, H, W]``.
        generator: draws weights, then noise.

    Raises:
        RequestError: the module is no classifier.
        WorkFailed: it has fewer than two blocks, a pass fails, or gives NaN or infinity.
    """
    require_finite_weights(module)
    device = device_of(module)
    seen: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad(), modes_kept(module):
        normalise_by_minibatch(module)
        tensors = gaussian_tensors(module, generator, kaiming_deviation)
        # The graph begins here, whether or not the first block has weights.
        images = torch.randn(shape, generator=generator).to(device).requires_grad_()
        with random_state_kept(device), _seeing(module, seen), failures_named(proxy, images):
            logits = as_logits(functional_call(module, tensors, (images,)))
    if len(seen) < 2:
        raise WorkFailed(
            f"{proxy} compares the feature maps of at least two blocks; this network has "
            f"{len(seen)}"
        )
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (*seen, logits)):
        raise WorkFailed(f"{proxy} needs finite features; the network gives NaN or infinity")
    return seen


def rows_of(features: Tensor) -> Tensor:
    """Return features as ``[positions of all inputs, channels]``."""
    if features.ndim == 4:
        features = features.permute(0, 2, 3, 1)
    return features.reshape(-1, features.shape[-1])


@contextmanager
def _seeing(module: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    def see(part: nn.Module, inputs: object, output: object) -> object:
        if not isinstance(output, Tensor) or output.ndim not in _DIMENSIONS:
            return output
        seen.append(output)
        return output.clone()  # what follows may work in place

    handles = [part.register_forward_hook(see) for part in module.children() if _is_block(part)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_block(part: nn.Module) -> bool:
    ours = not type(part).__module__.startswith("torch.nn.")
    return ours or next(part.parameters(), None) is not None
