"""Gradients of an untrained network's loss: what several proxies are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from tadnn.accuracy.dataset import Split
from tadnn.accuracy.modules import (
    as_logits,
    device_of,
    failures_named,
    modes_kept,
    normalise_by_minibatch,
    random_state_kept,
    require_finite_weights,
    working_copies,
)
from tadnn.accuracy.proxies.sharing import shared
from tadnn.errors import DataError, RequestError, WorkFailed

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset

Loss = Callable[[Tensor, Tensor], Tensor]


def draw_minibatches(proxy: str, dataset: Dataset, count: int, size: int, seed: int) -> list[Split]:
    """Draw disjoint minibatches of one size from the train split, without replacement.

    Args:
        proxy: its name, for messages.
        dataset: where the images come from.
        count: how many minibatches.
        size: the images of each; fewer where the split holds less than ``count * size``.
        seed: decides which.

    Raises:
        DataError: there are fewer than two images for each.
    """
    train = dataset.splits["train"]
    size = min(size, len(train) // count)
    if size < 2:
        raise DataError(
            f"{proxy} takes {count} minibatches of at least two images; received a split of "
            f"{len(train)} images"
        )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    chosen = order[: count * size].reshape(count, size)
    return [Split(train.images[part], train.labels[part]) for part in chosen]


def weight_gradients(
    proxy: str, module: nn.Module, minibatches: Sequence[Split], loss: Loss = cross_entropy
) -> list[dict[str, tuple[Tensor, Tensor]]]:
    """Return the loss's gradient by every weight, for each minibatch on its own.

    Weights are the parameters of two or more dimensions, those of convolutions and linear layers
    above all, frozen ones included. Batch normalisation uses the minibatch's statistics, as a
    network does when its training starts; everything else, dropout above all, is in evaluation
    mode, so that nothing is random. The module is left as it was: copies of its tensors, in
    float32, take the place of the tensors that it holds.

    Args:
        proxy: its name, for messages.
        module: the network.
        minibatches: images ``[n, C, H, W]`` and labels ``[n]``.
        loss: of logits and labels; the mean over the minibatch.

    Returns:
        Per minibatch, by the weight's name: the weight and the gradient, of one shape.

    Raises:
        RequestError: the module has no weights, or is no classifier of so many classes.
        WorkFailed: a pass fails, or a weight, a logit or a gradient is not finite.
    """
    require_finite_weights(module)
    names = [name for name, parameter in module.named_parameters() if parameter.ndim >= 2]
    if not names:
        raise RequestError(f"{proxy} looks at the gradients of weights, and this network has none")
    return [
        shared(
            ("gradients", id(module), loss, *(_content(t) for t in (batch.images, batch.labels))),
            lambda batch=batch: _gradients(proxy, module, names, batch, loss),  # type: ignore[misc]
        )
        for batch in minibatches
    ]


def _content(tensor: Tensor) -> bytes:
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).digest()


def _gradients(
    proxy: str, module: nn.Module, names: Sequence[str], minibatch: Split, loss: Loss
) -> dict[str, tuple[Tensor, Tensor]]:
    device = device_of(module)
    with torch.inference_mode(False), torch.enable_grad(), modes_kept(module):
        normalise_by_minibatch(module)
        # Afresh each time, so that no minibatch sees what another did to a buffer.
        tensors = working_copies(module)
        weights = [tensors[name].requires_grad_() for name in names]
        images = minibatch.images.to(device, copy=True)
        labels = minibatch.labels.to(device, copy=True)
        with random_state_kept(device), failures_named(proxy, images):
            logits = as_logits(functional_call(module, tensors, (images,)))
            _require_classes(proxy, logits, labels)
            gradients = torch.autograd.grad(loss(logits, labels), weights, materialize_grads=True)
        _require_finite(proxy, logits, dict(zip(names, gradients, strict=True)))
        pairs = zip(weights, gradients, strict=True)
        return {n: (w.detach(), g) for n, (w, g) in zip(names, pairs, strict=True)}


def _require_classes(proxy: str, logits: Tensor, labels: Tensor) -> None:
    if int(labels.max()) >= logits.shape[1]:
        raise RequestError(
            f"{proxy} needs a logit for every label; the network gives {logits.shape[1]}, and "
            f"there is a label {int(labels.max())}"
        )


def _require_finite(proxy: str, logits: Tensor, gradients: dict[str, Tensor]) -> None:
    if not bool(torch.isfinite(logits).all()):
        raise WorkFailed(f"{proxy} needs finite logits; the network gives NaN or infinity")
    for name, gradient in gradients.items():
        if not bool(torch.isfinite(gradient).all()):
            raise WorkFailed(
                f"{proxy} needs finite gradients; that of {name!r} holds NaN or infinity"
            )
