"""snip: how much would the loss feel the loss of a connection?"""

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
class Snip(Proxy):
    """Connection sensitivity, summed over all weights.

    A connection's sensitivity is ``|dL/dc|`` at c = 1, where c multiplies its weight; by the
    chain rule that is ``|theta * dL/dtheta|``. L is the cross-entropy of one minibatch. The
    weights are those that the caller's initialisation gave.

    Sources: Lee, Ajanthan and Torr, "SNIP: Single-shot Network Pruning based on Connection
    Sensitivity", ICLR 2019, section 4.1; as a proxy: Abdelfattah, Mehrotra, Dudziak and Lane,
    "Zero-Cost Proxies for Lightweight NAS", ICLR 2021, section 3.2.

    Two deviations. Lee et al. divide by the sum over the network, which tells connections apart
    but would give every network a sum of 1, so, as in Abdelfattah et al., nothing is divided.
    Dropout is off, for a network's value must not be random.

    Args:
        batch_size: images in the minibatch.
    """

    batch_size: int = 64

    name: ClassVar[str] = "snip"
    description: ClassVar[str] = "sum of |weight x gradient| on a minibatch"
    needs: ClassVar[frozenset[Need]] = frozenset({"module", "dataset"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the sum of the sensitivities, at least 0.

        Raises:
            RequestError: the module has no weights, or is no classifier of these classes.
            DataError: there are fewer than two images.
            WorkFailed: a pass fails, or a weight, a logit or a gradient is not finite.
        """
        module, dataset = required(self, "module", module), required(self, "dataset", dataset)
        minibatches = draw_minibatches(self.name, dataset, 1, self.batch_size, seed)
        [found] = weight_gradients(self.name, module, minibatches)
        return connection_sensitivity(found.values())


def connection_sensitivity(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the sum of ``|weight * gradient|`` over pairs of tensors of one shape."""
    return sum(
        float((weight.double() * gradient.double()).abs().sum()) for weight, gradient in pairs
    )
