"""Handling somebody else's module with care."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tadnn.errors import RequestError, WorkFailed


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Restore the training flag of every submodule on leaving, whatever happened."""
    flags = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag


@contextmanager
def channels_last(module: nn.Module) -> Iterator[None]:
    """Hold the weights of convolutions with their channels last on a CPU, and as before on leaving.

    What convolutions give then has its channels last too, and most networks train in 0.55 to
    0.85 of the time (docs/benchmarks.md). A GPU's convolutions in float32 gain nothing by it.
    """
    moved = [
        weight
        for weight in module.parameters()
        if weight.dim() == 4 and weight.device.type == "cpu" and weight.is_contiguous()
    ]
    for weight in moved:
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for weight in moved:
            weight.data = weight.data.contiguous()


def normalise_by_minibatch(module: nn.Module) -> None:
    """Put all in evaluation mode but batch normalisation, which is to use the minibatch.

    That is an untrained network's deterministic side: its running statistics tell nothing yet.
    It changes training flags, so call it inside `modes_kept`.
    """
    module.eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.training = True


def working_copies(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers by name, floating-point ones as float32.

    They are for ``torch.func.functional_call``: whatever a forward pass does to them, what the
    module holds is never written to.
    """
    return {
        name: tensor.detach().to(
            torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True
        )
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


@contextmanager
def random_state_kept(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Seed the random state of the CPU and of ``device``, and restore it on leaving.

    Some modules draw whatever their mode; what they draw is then the same each time.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # `torch.manual_seed` would reach the devices that are not restored, too.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def device_of(module: nn.Module) -> torch.device:
    """Return where the module's first parameter or buffer lives; the CPU if it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def require_finite_weights(module: nn.Module) -> None:
    """Check every parameter and buffer.

    Raises:
        WorkFailed: one holds NaN or infinity; it is named.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WorkFailed(f"a network's weights must be finite; {name!r} holds NaN or infinity")


@contextmanager
def failures_named(what: str, images: Tensor) -> Iterator[None]:
    """Say what was going on when torch raises.

    Raises:
        WorkFailed: torch raised, such as for shapes that do not fit.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise WorkFailed(
            f"{what} failed on a batch of shape {list(images.shape)}: {error}"
        ) from error


def as_logits(output: object) -> Tensor:
    """Return what a module gave.

    Raises:
        RequestError: it is not a tensor of the shape ``[n, classes]``.
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        return output
    received = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise RequestError(f"a classifier must return one tensor [n, classes]; received {received}")
