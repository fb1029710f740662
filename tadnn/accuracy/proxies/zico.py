"""zico: do minibatches agree on how far each weight should move?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor, nn

from tadnn.accuracy.proxies.base import Need, Proxy, required
from tadnn.accuracy.proxies.gradients import draw_minibatches, weight_gradients
from tadnn.errors import RequestError, WorkFailed

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net


@final
@dataclass(frozen=True)
class Zico(Proxy):
    """Inverse coefficient of variation of the gradients over minibatches.

    For a weight w, ``E|dL/dw|`` and ``Var|dL/dw|`` are taken over minibatches, L being a
    minibatch's cross-entropy; the score is the sum over layers of the logarithm of
    ``sum over w of E|dL/dw| / sqrt(Var|dL/dw|)``. Large and steady gradients go with fast
    convergence and small generalisation error. A factor on the loss changes nothing.

    Source: Li, Yang, Bhardwaj and Marculescu, "ZiCo: Zero-shot NAS via Inverse Coefficient of
    Variation on Gradients", ICLR 2023, section 3, the definition of ZiCo. Their code takes the
    deviation of the signed gradient; here, as in the paper, it is that of the absolute one. As in
    their code, the layers are the weights of convolutions and linear layers, a weight without
    variance is left out (the quotient is undefined), and so is a layer of none but such weights.
    Dropout is off, for a network's value must not be random.

    Args:
        batch_size: images in each minibatch.
        minibatches: how many, at least 2.

    Raises:
        RequestError: there are fewer than two minibatches.
    """

    batch_size: int = 64
    minibatches: int = 2

    name: ClassVar[str] = "zico"
    description: ClassVar[str] = "steadiness of the gradients over two minibatches"
    needs: ClassVar[frozenset[Need]] = frozenset({"module", "dataset"})

    def __post_init__(self) -> None:
        """Check the number of minibatches."""
        if self.minibatches < 2:
            raise RequestError(f"zico compares at least 2 minibatches; received {self.minibatches}")

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the sum over layers; it may be negative.

        Raises:
            RequestError: the module has no weights, or is no classifier of these classes.
            DataError: there are fewer than two images for each minibatch.
            WorkFailed: a pass fails, a weight, a logit or a gradient is not finite, or no
                gradient varies.
        """
        module, dataset = required(self, "module", module), required(self, "dataset", dataset)
        drawn = draw_minibatches(self.name, dataset, self.minibatches, self.batch_size, seed)
        found = weight_gradients(self.name, module, drawn)
        return inverse_variation(
            [torch.stack([gradients[layer][1] for gradients in found]) for layer in found[0]]
        )


def inverse_variation(layers: Sequence[Tensor]) -> float:
    """Return the sum over layers of ``ln(sum over weights of mean / deviation)``.

    Args:
        layers: per layer the gradients ``[minibatches, *weight shape]``.

    Raises:
        WorkFailed: no gradient varies.
    """
    logarithms = []
    for gradients in layers:
        sizes = gradients.double().abs().flatten(1)
        deviation = sizes.std(dim=0, correction=0)
        varies = deviation > 0
        if bool(varies.any()):
            ratios = sizes.mean(dim=0)[varies] / deviation[varies]
            logarithms.append(math.log(float(ratios.sum())))
    if not logarithms:
        raise WorkFailed(
            "zico must be finite; every gradient of this network is zero, or the same in all "
            "minibatches"
        )
    return math.fsum(logarithms)
