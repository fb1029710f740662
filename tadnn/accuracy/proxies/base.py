"""What a zero-cost proxy promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from tadnn.errors import RequestError

if TYPE_CHECKING:
    from torch import nn

    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net

T = TypeVar("T")
Need = Literal["net", "module", "dataset"]


class Proxy(ABC):
    """A number that ranks untrained networks, for a tiny part of the cost of training them.

    The contract of every proxy:

    - Larger means better: a network with the larger value is expected to reach the higher
      accuracy. Values of one proxy are compared on one data set and with one seed only; their
      unit is their own.
    - The value is finite, or `WorkFailed` is raised with the reason.
    - The value depends on the arguments alone: equal weights, data set and seed give an equal
      value on one machine and thread count. The seed chooses images, and what else a proxy
      draws; the weights, mostly random at this point, are the caller's to seed.
    - The module is left as it was: parameters, buffers, gradients, ``requires_grad``, training
      flags, hooks. While it is being scored nobody else may use it, so a module belongs to one
      thread; the proxy itself has no state and belongs to all.
    - Global random state is neither read nor advanced.

    Attributes:
        name: as in the registry.
        description: one line for listings.
        needs: which arguments `score` reads; the others may be None.
        makes_inputs: whether it reads no more of the data set than the shape of an input, and
            makes inputs of its own, of floating-point numbers.
        least_batch: inputs below which its value says little.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    makes_inputs: ClassVar[bool] = False
    least_batch: ClassVar[int] = 2

    @abstractmethod
    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the network's value; larger means better.

        Args:
            net: the network as data.
            module: the same network, runnable, on any device.
            dataset: what it is to be trained on; only the train split is read.
            seed: decides which images are looked at.

        Raises:
            RequestError: an argument is missing, or the network is one that cannot be scored.
            WorkFailed: this network has no finite value.
        """


def required(proxy: Proxy, need: Need, value: T | None) -> T:
    """Return ``value``.

    Raises:
        RequestError: it is None.
    """
    if value is None:
        raise RequestError(f"proxy {proxy.name!r} needs a {need}; received None")
    return value
