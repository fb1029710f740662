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
_ROWS_TO_CHOOSE: Final = 500


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
    learner, abroad = TileNetwork(members(arrays, range(_MEMBERS))), None
    if len(batches) > 1:
        device = x[:, places.device]
        away = np.stack([device == i for i in range(len(batches))][:_MOST_DEVICES])
        hidden = np.ones(len(away), dtype=bool)
        without, _, _ = train(x, log_ratio, places, away, hidden, seed, _EFFORT_ABROAD)
        strangers = [
            (TileNetwork(members(without, [i])), _as_stranger(x[out], places), log_ratio[out])
            for i, out in enumerate(away)
        ]
        likeness = _telling(strangers, seed)
        learner = learner.alike_by(likeness)
        abroad = np.concatenate([n.alike_by(likeness).mean(q) - y for n, q, y in strangers])
    return FittedNetwork(learner, means[pick], deviations[pick], abroad)


def _as_stranger(x: np.ndarray, places: Places) -> np.ndarray:
    told = x.copy()
    told[:, places.device] = -1
    return told


def _telling(strangers: list[tuple[TileNetwork, np.ndarray, np.ndarray]], seed: int) -> np.ndarray:
    """Return the likeness by which devices left out are predicted best, each counting the same."""
    from tadnn.latency.tile_training import LIKENESSES

    errors = np.zeros(len(LIKENESSES))
    for network, x, y in strangers:
        pick = np.random.default_rng(seed).permutation(len(y))[:_ROWS_TO_CHOOSE]
        for i, likeness in enumerate(LIKENESSES):
            guess = network.alike_by(likeness).mean(x[pick])
            errors[i] += np.mean(np.minimum(np.abs(guess - y[pick]), 1.0))
    return LIKENESSES[int(np.argmin(errors))]
