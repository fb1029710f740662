"""Dominance, fronts, crowding, hypervolume and knees.

Every objective is minimised; a caller that maximises one negates it. ``points`` are arrays
of shape ``[n, d]``, one row per candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def dominates(a: ArrayLike, b: ArrayLike) -> bool:
    """Tell whether ``a`` is nowhere worse than ``b`` and somewhere better, both of shape ``[d]``.

    A point with a NaN dominates nothing and is dominated by nothing.
    """
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return bool(np.all(left <= right) and np.any(left < right))


def front_mask(points: ArrayLike) -> NDArray[np.bool_]:
    """Return a boolean ``[n]``: the rows that no other row dominates.

    Rows with a NaN or an infinity are never on the front and dominate nothing. Of rows that
    are exactly equal only the first is on it. O(n log n) for two objectives, O(n * front)
    for more.
    """
    values = _as_points(points)
    mask = np.zeros(len(values), dtype=bool)
    finite = np.flatnonzero(np.isfinite(values).all(axis=1))
    if len(finite) == 0:
        return mask
    # np.unique sorts rows lexicographically, so no row is dominated by a later one.
    rows, first = np.unique(values[finite], axis=0, return_index=True)
    kept = _staircase(rows) if rows.shape[1] <= 2 else _sweep(rows)
    mask[finite[first[kept]]] = True
    return mask


def crowding_distance(points: ArrayLike) -> Floats:
    """Return ``[n]``: how far apart each row's neighbours are, summed over the objectives.

    The extremes of every objective are infinite; an objective on which all rows agree adds
    nothing. All values must be finite. Deb et al., "A fast and elitist multiobjective genetic
    algorithm: NSGA-II", 2002, section III.B.
    """
    values = _as_points(points)
    distance = np.zeros(len(values))
    for column in values.T:
        order = np.argsort(column, kind="stable")
        ordered = column[order]
        if len(ordered) == 0 or ordered[0] == ordered[-1]:
            continue
        distance[order[[0, -1]]] = np.inf
        distance[order[1:-1]] += (ordered[2:] - ordered[:-2]) / (ordered[-1] - ordered[0])
    return distance


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Return the volume that ``points`` ``[n, d]`` dominate, bounded by ``reference`` ``[d]``.

    Exact: a sweep for two objectives, the WFG recursion for more (exponential in ``d`` at
    worst, so for small ``d``). Rows that are not finite, or not strictly better than the
    reference in every objective, contribute nothing. While, Bradstreet and Barone, "A fast
    way of calculating exact hypervolumes", 2012.
    """
    values = _as_points(points)
    corner = np.asarray(reference, dtype=float)
    if corner.shape != (values.shape[1],):
        raise ValueError(
            f"the reference has one value per objective: {values.shape[1]} expected, "
            f"shape {corner.shape} received"
        )
    inside = values[np.isfinite(values).all(axis=1) & (values < corner).all(axis=1)]
    return _volume(inside[front_mask(inside)], corner)


def knee(points: ArrayLike) -> int:
    """Return the index of the row where giving up one objective stops paying in the other.

    ``points`` is ``[n, 2]``. The front is scaled to the unit square between its two extremes;
    the knee is the front's row that lies farthest below the chord between them. Of equal
    distances the one with the smaller first objective wins. With one or two rows on the front,
    or none below the chord (a concave front), it is the row nearest to the ideal corner; of
    equal ones again that with the smaller first objective.

    Raises:
        ValueError: no row is finite, or there are not two objectives.
    """
    values = _as_points(points)
    if values.shape[1] != 2:
        raise ValueError(f"a knee needs 2 objectives, {values.shape[1]} received")
    front = np.flatnonzero(front_mask(values))
    if len(front) == 0:
        raise ValueError("a knee needs a finite point, none received")
    front = front[np.argsort(values[front, 0], kind="stable")]
    if len(front) == 1:
        return int(front[0])
    low, high = values[front].min(axis=0), values[front].max(axis=0)
    scaled = (values[front] - low) / (high - low)
    # The scaled extremes are (0, 1) and (1, 0): the chord is x + y = 1. Rounding keeps the rule
    # for ties independent of the last bit.
    below = np.round(1.0 - scaled.sum(axis=1), 12)
    if below.max() <= 0:
        return int(front[np.argmin(np.round(np.hypot(scaled[:, 0], scaled[:, 1]), 12))])
    return int(front[np.argmax(below)])


def _as_points(points: ArrayLike) -> Floats:
    values: NDArray[Any] = np.asarray(points, dtype=float)
    if values.size == 0 and values.ndim < 2:
        return np.empty((0, 2))
    if values.ndim != 2:
        raise ValueError(f"points have shape [n, objectives], shape {values.shape} received")
    return values


def _staircase(rows: Floats) -> NDArray[np.intp]:
    """Front of distinct, lexicographically sorted rows with one or two objectives."""
    last = rows[:, -1]
    best_before = np.concatenate(([np.inf], np.minimum.accumulate(last)[:-1]))
    return np.flatnonzero(last < best_before)


def _sweep(rows: Floats) -> NDArray[np.intp]:
    """Front of distinct, lexicographically sorted rows with any number of objectives."""
    kept: list[int] = []
    alive = np.arange(len(rows))
    while len(alive):
        leader = alive[0]
        kept.append(int(leader))
        # Rows are distinct, so being nowhere better than the leader means being dominated.
        alive = alive[(rows[alive] < rows[leader]).any(axis=1)]
    return np.array(kept, dtype=np.intp)


def _volume(front: Floats, corner: Floats) -> float:
    """Hypervolume of a mutually non-dominated ``front`` that lies inside ``corner``."""
    if len(front) == 0:
        return 0.0
    if front.shape[1] == 1:
        return float(corner[0] - front.min())
    order = np.lexsort(front.T[::-1])
    front = front[order]
    if front.shape[1] == 2:
        heights = np.concatenate(([corner[1]], front[:-1, 1])) - front[:, 1]
        return float(np.sum((corner[0] - front[:, 0]) * heights))
    total = 0.0
    # Each row adds what the rows before it leave uncovered. Those are better in the first
    # objective, so limited to the row's own box they all agree with it there: one dimension less.
    for index in range(len(front)):
        row, rest = front[index], front[:index]
        limited = np.maximum(rest, row)[:, 1:]
        below = _volume(row[None, 1:], corner[1:]) - _volume(
            limited[front_mask(limited)], corner[1:]
        )
        total += float(corner[0] - row[0]) * below
    return total
