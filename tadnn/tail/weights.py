"""Weights carried over to a network with other widths.

Channels that go are the least important ones: of the smallest norms of the filters that make
them (Li et al. 2017, Pruning filters for efficient ConvNets), tied layers averaged. New channels
start with random filters, and everything that reads them with zeros, so that the network
computes what it did before; training finds a use for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tadnn.errors import RequestError
from tadnn.tail.axes import Axis, LayerAt
from tadnn.tail.flow import Flow, Group
from tadnn.tail.parameters import Parameter, parameters_of

if TYPE_CHECKING:
    from torch import Tensor

NEW: Final = -1
"""Stands for a channel that was not there before."""


def importance(flow: Flow, weights: Mapping[str, Tensor]) -> dict[int, np.ndarray]:
    """Return the importance of every channel, by group: [width], 1 on average.

    Groups whose width is no layer's output alone (none makes channels for it) have ones.

    Raises:
        RequestError: a weight isn't finite.
    """
    found: dict[int, list[np.ndarray]] = {}
    for at, prefix in _places(flow):
        for parameter in parameters_of(flow, at):
            if parameter.fill != "filter" or not parameter.axes:
                continue
            values = weights[f"{prefix}.{parameter.name}"].detach().double().numpy()
            if not np.isfinite(values).all():
                raise RequestError(
                    f"weights to carry over are finite; got NaN or infinity in "
                    f"{prefix}.{parameter.name}"
                )
            if values.ndim < 2:
                continue
            norms = np.sqrt((values**2).reshape(len(values), -1).sum(axis=1))
            start = 0
            for segment in parameter.axes[0]:
                end = start + segment.size * segment.inner
                if segment.group is not None:
                    mine = np.sqrt(
                        (norms[start:end] ** 2).reshape(segment.size, segment.inner).sum(axis=1)
                    )
                    if mine.mean() > 0:
                        found.setdefault(segment.group, []).append(mine / mine.mean())
                start = end
    return {
        index: np.mean(found[index], axis=0) if index in found else np.ones(group.width)
        for index, group in enumerate(flow.groups)
    }


def kept_channels(group: Group, scores: np.ndarray, width: int) -> np.ndarray:
    """Return the old channel at every place of a new width, in order; ``NEW`` for new ones.

    Each of the group's ``grain`` parts keeps and gains as many channels as the others.

    Args:
        group: the group.
        scores: importance of its channels, [group.width].
        width: the new width.
    """
    parts = group.grain
    old, new = group.width // parts, width // parts
    places = []
    for part in range(parts):
        mine = np.arange(part * old, (part + 1) * old)
        if new < old:
            best = np.argsort(-scores[mine], kind="stable")[:new]
            mine = mine[np.sort(best)]
        places.append(np.concatenate([mine, np.full(max(0, new - old), NEW)]))
    return np.concatenate(places)


def carry_over(
    flow: Flow, weights: Mapping[str, Tensor], widths: Mapping[int, int], seed: int = 0
) -> dict[str, Tensor]:
    """Return the weights of the network with other widths.

    Where no group gets narrower, and no wider one is normed, the network computes what it
    did before.

    Args:
        flow: the network's groups.
        weights: the state of the network's module.
        widths: the new width by group; what is absent stays.
        seed: of the new channels' filters.

    Raises:
        RequestError: a weight isn't finite.
    """
    import torch

    scores = importance(flow, weights)
    keep = {
        index: kept_channels(group, scores[index], widths.get(index, group.width))
        for index, group in enumerate(flow.groups)
    }
    generator = torch.Generator().manual_seed(seed)
    carried = {name: value.clone() for name, value in weights.items()}
    for at, prefix in _places(flow):
        for parameter in parameters_of(flow, at):
            name = f"{prefix}.{parameter.name}"
            if name in carried:
                carried[name] = _carried(parameter, weights[name], keep, generator)
    return carried


def _places(flow: Flow) -> list[tuple[LayerAt, str]]:
    return [
        ((b, i), f"{block_name}.{node.name}")
        for b, (block_name, block) in enumerate(flow.net.blocks)
        for i, node in enumerate(block.nodes)
    ]


def _carried(
    parameter: Parameter, old: Tensor, keep: Mapping[int, np.ndarray], generator: Any
) -> Tensor:
    import torch

    value = old.clone()
    is_new: list[Tensor | None] = []
    for dim, axis in enumerate(parameter.axes):
        places = torch.from_numpy(entries(axis, keep))
        if parameter.parts > 1 and dim == 1:
            value, fresh = _regrouped(value, places, parameter.parts)
        else:
            fresh = places == NEW
            value = value.index_select(dim, places.clamp(min=0))
        is_new.append(fresh if bool(fresh.any()) else None)
    made = is_new[0] if is_new else None
    for dim, new in enumerate(is_new):
        if new is None:
            continue
        at = (slice(None),) * dim + (new,)
        if not isinstance(parameter.fill, str):
            value[at] = parameter.fill
        elif dim == parameter.reads:
            value[at] = 0.0
    if parameter.fill == "filter" and made is not None and parameter.reads != 0:
        spread = float(old.std()) if old.numel() > 1 else 0.0
        rows = value[made]
        drawn = torch.randn(rows.shape, generator=generator, dtype=torch.float32)
        value[made] = (spread * drawn).to(value.dtype)
    return value


def _regrouped(value: Tensor, places: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Take every part's own inputs from the second dimension of a grouped convolution.

    The outputs were taken already, as many of each part as of the others; so are the inputs.
    """
    import torch

    each = len(places) // parts
    wide = value.shape[1]
    rows = value.chunk(parts, dim=0)
    taken = []
    for part, row in enumerate(rows):
        mine = places[part * each : (part + 1) * each]
        taken.append(row.index_select(1, (mine - part * wide).clamp(min=0)))
    fresh = places[:each] == NEW  # new channels stand at the end of every part
    return torch.cat(taken), fresh


def entries(axis: Axis, keep: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the old entry at every place of a dimension under new widths; ``NEW`` for new ones."""
    found, start = [], 0
    for segment in axis:
        channels = np.arange(segment.size) if segment.group is None else keep[segment.group]
        each = channels[:, None] * segment.inner + np.arange(segment.inner)
        found.append(np.where(channels[:, None] == NEW, NEW, each + start).ravel())
        start += segment.size * segment.inner
    return np.concatenate(found)
