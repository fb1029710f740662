"""Size as a proxy: the baseline that a cleverer proxy has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tadnn.accuracy.proxies.base import Proxy, required

if TYPE_CHECKING:
    from torch import nn

    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net


@final
class Parameters(Proxy):
    """The number of parameters: bigger networks tend to be better ones."""

    name = "parameters"
    description = "number of parameters"
    needs = frozenset({"net"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the number of parameters."""
        return float(required(self, "net", net).parameters)


@final
class Flops(Proxy):
    """The FLOPs of one image (2 per multiply-add)."""

    name = "flops"
    description = "floating-point operations per image"
    needs = frozenset({"net"})

    def score(
        self, net: Net | None, module: nn.Module | None, dataset: Dataset | None, seed: int
    ) -> float:
        """Return the FLOPs of a batch of one."""
        return float(required(self, "net", net).flops(batch=1))
