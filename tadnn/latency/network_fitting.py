"""Fitting networks over tiles to the kernels of one op, on one GPU or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.latency.batch import KernelBatch
from tadnn.latency.core import Core
from tadnn.latency.features import feature_matrix, likeness_columns
from tadnn.latency.gpu_features import network_places
from tadnn.latency.tile_network import Places, TileNetwork

FEWEST_ROWS_OF_NETWORK: Final = 600
"""Below this, a process and trees together err less."""
PARTS: Final = 10
_MEMBERS: Final = 5
# Devices left out in turn, in a training half as long: it only tells how far off strangers are.
_MOST_DEVICES: Final = 5
_EFFORT_ABROAD: Final = 0.5


@dataclass(frozen=True)
class FittedNetwork:
    """A network and its held-out log ratios.

    Attributes:
        learner: the network.
        mean: what members say about rows they didn't see, [n]; NaN for rows that all saw.
        deviation: theirs, [n].
        abroad: log errors on devices left out of the fit in turn; None with one device.
    """

    learner: TileNetwork
    mean: np.ndarray
    deviation: np.ndarray
    abroad: np.ndarray | None


def network_features(
    batch: KernelBatch, core: Core, devices: Sequence[str]
) -> tuple[Places, np.ndarray]:
    """Return what a network is given, [n, d], and where it finds what.

    Args:
        batch: the kernels.
        core: what its log ratios are to.
        devices: the fit's slugs, in its order.
    """
    names, x = feature_matrix(batch, False)
    known = devices.index(batch.device.slug) if batch.device.slug in devices else -1
    more = [np.log(core.latency_us(batch)), np.full(len(batch), float(known))]
    more += likeness_columns(batch).values()
    return network_places(names, len(devices) > 1), np.column_stack([x, *more])


def fit_network(
    batches: Sequence[KernelBatch],
    core: Core,
    log_ratio: np.ndarray,
    part: np.ndarray,
    seed: int,
) -> FittedNetwork:
    """Fit members that each leave out one part of the shapes; as many judge as parts are left out.

    Args:
        batches: kernels of one op, one batch a device.
        core: the physical core.
        log_ratio: log(latency / core), [n], in the batches' order.
        part: which of PARTS parts of the shapes a row is in, [n].
        seed: of weights and batches.
    """
    from tadnn.latency.tile_training import members, train

    slugs = [batch.device.slug for batch in batches]
    parts = [network_features(batch, core, slugs) for batch in batches]
    places, x = parts[0][0], np.concatenate([features for _, features in parts])
    left_out = np.stack([part == member for member in range(_MEMBERS)])
    shown = np.zeros(_MEMBERS, dtype=bool)
    arrays, means, deviations = train(x, log_ratio, places, left_out, shown, seed)
    pick = np.minimum(part, _MEMBERS - 1), np.arange(len(part))
    abroad = None
    if len(batches) > 1:
        device = x[:, places.device]
        away = np.stack([device == i for i in range(len(batches))][:_MOST_DEVICES])
        hidden = np.ones(len(away), dtype=bool)
        _, guesses, _ = train(x, log_ratio, places, away, hidden, seed, _EFFORT_ABROAD)
        abroad = (guesses - log_ratio)[away]
    learner = TileNetwork(members(arrays, range(_MEMBERS)))
    return FittedNetwork(learner, means[pick], deviations[pick], abroad)
