"""zen: how far does a small change of the input move the features?"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    random_state_kept,
    require_finite_weights,
    working_copies,
)
from tadnn.accuracy.proxies.base import Need, Proxy, required
from tadnn.accuracy.proxies.features import watched
from tadnn.errors import WorkFailed

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net

_NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
)


@final
@dataclass(frozen=True)
class Zen(Proxy):
    """Logarithm of a Gaussian network's sensitivity, with what normalisation hid put back.

    With every weight drawn from N(0, 1), x and e images of such noise and f(x) the feature map
    before global average pooling, ``D = E ||f(x) - f(x + alpha e)||`` grows with the network's
    expressivity, exponentially with its depth. Batch normalisation keeps it from overflowing and
    hides the scale; the score puts it back: ``ln D + sum over BN of ln s``, s^2 being the mean
    over a layer's channels of the minibatch's variance. So the score is aware of scale: it is
    that of the network without normalisation, if all channels of a layer have one variance. The
    caller's weights are replaced, and no image is looked at: the seed draws both.

    Source: Lin, Wang, Sun, Chen, Sun, Qian, Li and Jin, "Zen-NAS: A Zero-Shot NAS for
    High-Performance Image Recognition", ICCV 2021, section 4.2, algorithm 1.

    Deviations. Residual links stay, since a module does not say which of its sums are such; the
    authors remove them. On ten networks of the space ``resnet`` the order is nearly the same
    (Spearman 0.99). The norm is the paper's (their code sums absolute differences), and so is the
    variance, the minibatch's (their code reads running averages). Four draws are enough: one
    deviates by 0.1 where those networks differ by 10. Where no module pools globally after the
    last convolution, the features are what the last linear layer receives, or the output.

    Args:
        batch_size: images of noise per draw.
        draws: of weights and noise; the score is their mean.
        alpha: size of the change.
    """

    batch_size: int = 16
    draws: int = 4
    alpha: float = 0.01

    name: ClassVar[str] = "zen"
    description: ClassVar[str] = "ln of the response to noise with Gaussian weights"
    needs: ClassVar[frozenset[Need]] = frozenset({"module", "dataset"})
    makes_inputs: ClassVar[bool] = True

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the mean over the draws; it may be negative.

        Raises:
            RequestError: the module is no classifier.
            WorkFailed: a pass fails, a weight is not finite, or the features overflow float32 or
                do not respond.
        """
        module = required(self, "module", module)
        shape = (self.batch_size, *required(self, "dataset", dataset).input_shape)
        require_finite_weights(module)
        device, generator = device_of(module), torch.Generator().manual_seed(seed)
        scores = []
        for _ in range(self.draws):
            tensors = gaussian_tensors(module, generator)
            images = torch.randn(shape, generator=generator).to(device)
            noise = torch.randn(shape, generator=generator).to(device)
            scores.append(zen_score(module, tensors, images, images + self.alpha * noise))
        return math.fsum(scores) / self.draws


def gaussian_tensors(
    module: nn.Module,
    generator: torch.Generator,
    deviation: Callable[[Tensor], float] = lambda weight: 1.0,
) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name, with new weights of mean 0.

    Biases become 0 and scales of normalisation 1; other vectors stay as they are.

    Args:
        module: the network; left as it was.
        generator: draws the weights.
        deviation: of a weight's entries.
    """
    tensors = working_copies(module)
    norms = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, _NORMS)
        for parameter in part.parameters(recurse=False)
    }
    for name, parameter in module.named_parameters():
        kind = name.rpartition(".")[2]
        if id(parameter) not in norms and parameter.ndim >= 2:
            noise = torch.randn(parameter.shape, generator=generator) * deviation(parameter)
            tensors[name] = noise.to(parameter.device)
        elif kind.endswith("bias"):
            tensors[name].zero_()
        elif id(parameter) in norms:
            tensors[name].fill_(1.0)
    return tensors


def zen_score(
    module: nn.Module, tensors: dict[str, Tensor], images: Tensor, changed: Tensor
) -> float:
    """Return ``ln mean ||f(images) - f(changed)|| + sum of ln s``; the module is left as it was.

    Args:
        module: the network.
        tensors: what takes the place of its parameters and buffers; buffers may be written to.
        images: ``[n, C, H, W]``; batch normalisation's s are read off their pass.
        changed: as the images.

    Raises:
        RequestError: the module is no classifier.
        WorkFailed: a pass fails, or the result is not finite.
    """
    seen = []
    with torch.no_grad(), modes_kept(module):
        normalise_by_minibatch(module)
        for batch in (images, changed):
            with (
                random_state_kept(images.device),
                watched(module) as watch,
                failures_named("zen", batch),
            ):
                output = as_logits(functional_call(module, tensors, (batch,)))
            seen.append((watch.features(output).flatten(1).double(), watch.variances))
    (features, variances), (moved, _) = seen
    response = float((features - moved).norm(dim=1).mean())
    scales = [response, *(math.sqrt(variance) for variance in variances)]
    if not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise WorkFailed(
            f"zen must be finite; the features respond to a change of the input by {response:g}, "
            f"and the variances before batch normalisation are {min(variances, default=1):g} "
            f"to {max(variances, default=1):g}"
        )
    return math.fsum(map(math.log, scales))
