"""Expected hypervolume improvement, exact for independent normal predictions."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.special import ndtr

from tadnn.pareto import crowding_distance, front_mask
from tadnn.search.frontier.encoding import Floats

# Boxes grow with the front's size to the power of the objectives less one.
_MOST_MEMBERS: Final = {1: 1, 2: 500, 3: 40}
_FEW_MEMBERS: Final = 12
_CHUNK: Final = 512


class Improvement:
    """Tells by how much a new point is expected to grow the dominated volume.

    What no member of the front dominates is cut into boxes; the expected gain in a box is a
    product of one-dimensional ones, which are closed (K. Yang et al., "Efficient computation of
    expected hypervolume improvement using box decomposition algorithms", 2019). A front with
    more members than can be afforded is thinned by crowding distance.

    Args:
        points: what is known, [n, d], minimised.
        reference: [d]; what lies beyond it gains nothing.
    """

    def __init__(self, points: Floats, reference: Floats) -> None:
        inside = points[(points < reference).all(axis=1)]
        front = inside[front_mask(inside)]
        most = _MOST_MEMBERS.get(len(reference), _FEW_MEMBERS)
        if len(front) > most:
            front = front[np.argsort(-crowding_distance(front), kind="stable")[:most]]
        self._grids = [
            np.unique(np.append(column, end))
            for column, end in zip(front.T, reference, strict=True)
        ]
        self._lower, self._upper = _boxes(front, reference)

    def expected(self, mean: Floats, deviation: Floats) -> Floats:
        """Return the expected gain [n] of points with normal predictions ``mean`` [n, d].

        A deviation of 0 means that a value is known.
        """
        parts = [
            self._chunk(mean[i : i + _CHUNK], deviation[i : i + _CHUNK])
            for i in range(0, len(mean), _CHUNK)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def _chunk(self, mean: Floats, deviation: Floats) -> Floats:
        gains = np.ones((len(mean), len(self._lower)))
        for axis, grid in enumerate(self._grids):
            below = _expected_below(grid, mean[:, axis], deviation[:, axis])
            low, high = self._lower[:, axis], self._upper[:, axis]
            # Nothing lies below a box that reaches to minus infinity.
            padded = np.hstack([np.zeros((len(mean), 1)), below])
            start = np.where(np.isinf(low), 0, np.searchsorted(grid, low) + 1)
            gains *= padded[:, np.searchsorted(grid, high) + 1] - padded[:, start]
        total: Floats = gains.sum(axis=1)
        return total


def _expected_below(grid: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Return E[max(a - y, 0)] for every a of ``grid`` and y ~ N(mean, deviation), [n, a]."""
    gap = grid[None, :] - mean[:, None]
    result = np.maximum(gap, 0.0)
    unsure = deviation > 0
    if unsure.any():
        sigma = deviation[unsure, None]
        z = gap[unsure] / sigma
        density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        result[unsure] = gap[unsure] * ndtr(z) + sigma * density
    return result


def _boxes(front: Floats, reference: Floats) -> tuple[Floats, Floats]:
    """Return lower and upper corners [boxes, d] of disjoint boxes that ``front`` leaves free.

    Slices along the last objective: between two neighbouring members' values of it, only those
    that are better there cover anything.
    """
    if len(reference) == 1:
        best = min([*front[:, 0], reference[0]])
        return np.array([[-np.inf]]), np.array([[best]])
    levels = np.unique(np.append(front[:, -1], reference[-1]))
    lowers, uppers = [], []
    below = -np.inf
    for level in levels:
        covering = front[front[:, -1] <= below][:, :-1]
        covering = covering[front_mask(covering)] if len(covering) else covering
        low, high = _boxes(covering, reference[:-1])
        lowers.append(np.hstack([low, np.full((len(low), 1), below)]))
        uppers.append(np.hstack([high, np.full((len(high), 1), level)]))
        below = level
    return np.vstack(lowers), np.vstack(uppers)
