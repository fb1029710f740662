"""naswot: can an untrained network tell images apart?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tadnn.accuracy.modules import (
    as_logits,
    device_of,
    failures_named,
    modes_kept,
    normalise_by_minibatch,
)
from tadnn.accuracy.proxies.base import Need, Proxy, required
from tadnn.errors import DataError, RequestError, WorkFailed

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset, Split
    from tadnn.nets import Net

# Units that are cut off at zero: what they give is positive exactly where they are active.
UNITS = (nn.ReLU, nn.ReLU6)


@final
@dataclass(frozen=True)
class Naswot(Proxy):
    """Log-determinant of the kernel of binary activation codes.

    The code of an image is one bit per rectified unit of the network: active or not. The kernel
    ``K[i, j]`` counts the units on which images i and j agree, over all N of them; the score is
    ``ln det K`` over one minibatch of distinct images. Codes that differ much give a large
    determinant. Batch normalisation uses the minibatch's statistics, as in the authors' code;
    everything else, dropout above all, is in evaluation mode.

    A singular kernel (two images with one code, or fewer units than images) has the score 0,
    the least that any kernel can have: the determinant of a matrix of integers that is positive
    semi-definite is a whole number, so a regular one's logarithm is never negative.

    Source: Mellor, Turner, Storkey and Crowley, "Neural Architecture Search without Training",
    ICML 2021, section 3. They use 128 images; the cost is proportional.

    Args:
        batch_size: distinct images in the minibatch.
    """

    batch_size: int = 32

    name: ClassVar[str] = "naswot"
    description: ClassVar[str] = "ln det of the agreement of ReLU codes on a minibatch"
    needs: ClassVar[frozenset[Need]] = frozenset({"module", "dataset"})
    least_batch: ClassVar[int] = 16

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return ``ln det K``, at least 0.

        Raises:
            RequestError: the module has no ReLU module, or none that its forward pass calls.
            DataError: there are fewer than two distinct images.
            WorkFailed: the forward pass fails, or gives NaN or infinity.
        """
        module = required(self, "module", module)
        train = required(self, "dataset", dataset).splits["train"]
        images = distinct_images(train, self.batch_size, seed).to(device_of(module))
        return log_determinant(agreement_kernel(module, images))


def agreement_kernel(module: nn.Module, images: Tensor) -> Tensor:
    """Return how many rectified units agree for each pair of images, float64 ``[n, n]``.

    Args:
        module: left as it was.
        images: ``[n, C, H, W]``.

    Raises:
        RequestError: no ReLU module is called.
        WorkFailed: the forward pass fails, or gives NaN or infinity.
    """
    count = len(images)
    kernel = torch.zeros(count, count, dtype=torch.float64, device=images.device)
    calls = 0

    def observe(unit: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal calls
        calls += 1
        # With a = active bits and N units, agreement is N - a_i - a_j + 2 (a_i . a_j): one
        # product instead of one for ones and one for zeros. float32 holds these integers
        # exactly up to 2**24 units a layer, twenty times the largest layer of a ResNet-50.
        active = (output > 0).flatten(1).to(torch.float32)
        both = (active @ active.T).double()
        own = both.diagonal()
        kernel.add_(active.shape[1] - own[:, None] - own[None, :] + 2 * both)

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), modes_kept(module), _observing(module, observe):
        normalise_by_minibatch(module)
        with failures_named("the forward pass for naswot", images):
            output = as_logits(functional_call(module, buffers, (images,)))
    if calls == 0:
        raise RequestError(
            "naswot reads the codes of ReLU modules, and this network calls none "
            "(a function such as torch.relu is not seen); use another proxy, such as synflow"
        )
    if not bool(torch.isfinite(output).all()):
        raise WorkFailed("naswot needs finite activations; the network gives NaN or infinity")
    return kernel


def log_determinant(kernel: Tensor) -> float:
    """Return ``ln det`` of an agreement kernel ``[n, n]``; 0 where it is singular."""
    # Rounding turns the zero determinant of a singular matrix into a small one, hence the rank.
    if int(torch.linalg.matrix_rank(kernel, hermitian=True)) < len(kernel):
        return 0.0
    return max(0.0, float(torch.linalg.slogdet(kernel).logabsdet))


def distinct_images(split: Split, count: int, seed: int) -> Tensor:
    """Draw ``count`` different images without replacement, fewer if there are no more.

    Equal images would make any kernel singular.

    Returns:
        ``[m, C, H, W]`` with 2 <= m <= count.

    Raises:
        DataError: there are fewer than two.
    """
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    chosen: dict[bytes, int] = {}
    for index in order.tolist():
        chosen.setdefault(split.images[index].numpy().tobytes(), index)
        if len(chosen) == count:
            break
    if len(chosen) < 2:
        raise DataError(
            f"naswot compares at least two distinct images; received {len(chosen)} "
            f"in a split of {len(split)}"
        )
    return split.images[list(chosen.values())]


@contextmanager
def _observing(
    module: nn.Module, observe: Callable[[nn.Module, object, Tensor], None]
) -> Iterator[None]:
    handles = [
        part.register_forward_hook(observe) for part in module.modules() if isinstance(part, UNITS)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
