"""grad_norm: how hard does the first minibatch pull at the weights?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from torch import Tensor, nn

from tadnn.accuracy.proxies.base import Need, Proxy, required
from tadnn.accuracy.proxies.gradients import draw_minibatches, weight_gradients

if TYPE_CHECKING:
    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net


@final
@dataclass(frozen=True)
class GradNorm(Proxy):
    """Euclidean norm of the loss's gradient, summed over the layers' weights.

    The loss is the cross-entropy of one minibatch; each weight tensor has a norm of its own,
    and the norms are added.

    Source: Abdelfattah, Mehrotra, Dudziak and Lane, "Zero-Cost Proxies for Lightweight NAS",
    ICLR 2021, section 3.2. The sum over layers, and weights without biases and scales, are as
    in their code. Dropout is off, for a network's value must not be random.

    Args:
        batch_size: images in the minibatch.
    """

    batch_size: int = 64

    name: ClassVar[str] = "grad_norm"
    description: ClassVar[str] = "sum of the layers' gradient norms on a minibatch"
    needs: ClassVar[frozenset[Need]] = frozenset({"module", "dataset"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the sum of the norms, at least 0.

        Raises:
            RequestError: the module has no weights, or is no classifier of these classes.
            DataError: there are fewer than two images.
            WorkFailed: a pass fails, or a weight, a logit or a gradient is not finite.
        """
        module, dataset = required(self, "module", module), required(self, "dataset", dataset)
        minibatches = draw_minibatches(self.name, dataset, 1, self.batch_size, seed)
        [found] = weight_gradients(self.name, module, minibatches)
        return sum_of_norms(gradient for _, gradient in found.values())


def sum_of_norms(gradients: Iterable[Tensor]) -> float:
    """Return the sum of the tensors' Euclidean norms."""
    return sum(float(gradient.double().norm()) for gradient in gradients)
