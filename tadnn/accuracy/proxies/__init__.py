"""Zero-cost proxies by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tadnn.accuracy.proxies.az_nas import (
    Expressivity,
    Progressivity,
    Trainability,
    aggregate,
    rank_among,
)
from tadnn.accuracy.proxies.base import Need, Proxy
from tadnn.accuracy.proxies.counts import DecoderParameters, Flops, Parameters
from tadnn.accuracy.proxies.grad_norm import GradNorm
from tadnn.accuracy.proxies.naswot import Naswot
from tadnn.accuracy.proxies.sharing import shared_passes
from tadnn.accuracy.proxies.snip import Snip
from tadnn.accuracy.proxies.synflow import Synflow
from tadnn.accuracy.proxies.zen import Zen
from tadnn.accuracy.proxies.zico import Zico
from tadnn.errors import RequestError, UnknownName, WorkFailed

if TYPE_CHECKING:
    from torch import nn

    from tadnn.accuracy.dataset import Dataset
    from tadnn.nets import Net

__all__ = [
    "ENSEMBLES",
    "PROXIES",
    "DecoderParameters",
    "Expressivity",
    "Flops",
    "GradNorm",
    "Naswot",
    "Need",
    "Parameters",
    "Progressivity",
    "Proxy",
    "Snip",
    "Synflow",
    "Trainability",
    "Zen",
    "Zico",
    "aggregate",
    "checked_score",
    "evaluate_proxy",
    "find_proxy",
    "rank_among",
    "require_proxy",
    "shared_passes",
]

# A proxy is added by a file of its own and a line here.
PROXIES: dict[str, Proxy] = {
    proxy.name: proxy
    for proxy in (
        Naswot(),
        Synflow(),
        Snip(),
        GradNorm(),
        Zen(),
        Zico(),
        Expressivity(),
        Progressivity(),
        Trainability(),
        Parameters(),
        DecoderParameters(),
        Flops(),
    )
}

# What ranks networks among others, by the ranks that proxies give them: the proxies of each.
ENSEMBLES: dict[str, tuple[str, ...]] = {
    "az_nas": ("expressivity", "progressivity", "trainability", "flops"),
}


def require_proxy(name: str) -> None:
    """Check that ``name`` is a proxy or an ensemble.

    Raises:
        UnknownName: it is neither.
    """
    if name not in PROXIES and name not in ENSEMBLES:
        raise UnknownName("proxy", name, [*PROXIES, *ENSEMBLES])


def find_proxy(name: str) -> Proxy:
    """Return the proxy called ``name``.

    Raises:
        UnknownName: there is none.
        RequestError: it is an ensemble, which has no value for one network alone.
    """
    if name in ENSEMBLES:
        raise RequestError(
            f"{name} ranks networks among others and has no value for one alone; its proxies "
            f"are {', '.join(ENSEMBLES[name])}"
        )
    if name not in PROXIES:
        raise UnknownName("proxy", name, PROXIES)
    return PROXIES[name]


def evaluate_proxy(
    name: str,
    net: Net | None,
    module: nn.Module | None,
    dataset: Dataset | None,
    seed: int = 0,
) -> float:
    """Return a proxy's value for one network; larger means better, for every proxy.

    Arguments that the proxy does not need (`Proxy.needs`) may be None. The seed chooses images,
    so use one seed for all networks that are to be compared.

    Raises:
        UnknownName: no such proxy.
        RequestError: an argument is missing, or the network is one that cannot be scored.
        WorkFailed: the network has no finite value.
    """
    return checked_score(find_proxy(name), net, module, dataset, seed)


def checked_score(
    proxy: Proxy,
    net: Net | None,
    module: nn.Module | None,
    dataset: Dataset | None,
    seed: int = 0,
) -> float:
    """Return what a proxy, maybe of other settings than the registered one, gives a network.

    Raises:
        RequestError: an argument is missing, or the network is one that cannot be scored.
        WorkFailed: the network has no finite value.
    """
    if proxy.makes_inputs and net is not None and net.input_dtype != "float":
        able = [other for other, p in PROXIES.items() if not p.makes_inputs]
        raise RequestError(
            f"proxy {proxy.name!r} makes inputs of floating-point numbers, and this network takes "
            f"{net.input_dtype}. Valid: {', '.join(able)}."
        )
    value = proxy.score(net, module, dataset, seed)
    if not math.isfinite(value):
        raise WorkFailed(f"a proxy's value must be finite; {proxy.name!r} gave {value}")
    return value
