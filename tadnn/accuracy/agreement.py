"""Do two orders of the same networks agree? Rank correlations, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tadnn.errors import RequestError

#: Fewer networks say nothing about an order.
MIN_NETS = 5

_RESAMPLES = 1000
_COVERED = 0.95
_BLOCK = 512


@dataclass(frozen=True)
class Agreement:
    """How a proxy orders networks, compared with their accuracies.

    Attributes:
        spearman: Spearman's rank correlation; None where all values are equal.
        kendall: Kendall's tau-b; None as above.
        interval: of Spearman's, 95 %, from resampled networks; None as above.
        kendall_interval: of Kendall's, likewise.
    """

    spearman: float | None
    kendall: float | None
    interval: tuple[float, float] | None
    kendall_interval: tuple[float, float] | None


def agreement(values: Sequence[float], accuracies: Sequence[float], seed: int = 0) -> Agreement:
    """Compare two orders of the same networks.

    Intervals are percentiles of the bootstrap: networks are drawn with replacement, as often as
    there are (Efron & Tibshirani 1993, chapter 13).

    Args:
        values: of a proxy; minus infinity is a network without a value, the last of all.
        accuracies: finite.
        seed: of the resampling.

    Raises:
        RequestError: there are fewer than 5 networks, or as many values as accuracies.
    """
    x, y = _checked(values, accuracies)
    once = np.ones((1, len(x)))
    if not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return Agreement(None, None, None, None)
    counts = _resamples(len(x), seed)
    return Agreement(
        float(_spearmans(x, y, once)[0]),
        float(_kendalls(x, y, once)[0]),
        _interval(_spearmans(x, y, counts)),
        _interval(_kendalls(x, y, counts)),
    )


def gain(
    values: Sequence[float],
    baseline: Sequence[float],
    accuracies: Sequence[float],
    seed: int = 0,
) -> tuple[float, float] | None:
    """Return the 95 % interval of what a proxy's Spearman has over a baseline's.

    Both are taken of the same resampled networks, so that what they share cancels.

    Args:
        values: of the proxy.
        baseline: of the proxy it is to beat, such as FLOPs.
        accuracies: finite.
        seed: of the resampling.

    Returns:
        The interval; None where one of them does not vary.
    """
    x, y = _checked(values, accuracies)
    base, _ = _checked(baseline, accuracies)
    if not (np.ptp(x) > 0 and np.ptp(base) > 0 and np.ptp(y) > 0):
        return None
    counts = _resamples(len(x), seed)
    return _interval(_spearmans(x, y, counts) - _spearmans(base, y, counts))


def _checked(values: Sequence[float], accuracies: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return both as ranks from 0: minus infinity counts as the least, however far."""
    if len(values) != len(accuracies) or len(values) < MIN_NETS:
        raise RequestError(
            f"rank correlations take a value and an accuracy of at least {MIN_NETS} networks; "
            f"received {len(values)} and {len(accuracies)}"
        )
    x, y = (np.unique(np.asarray(v), return_inverse=True)[1] for v in (values, accuracies))
    return x.astype(float), y.astype(float)


def _resamples(count: int, seed: int) -> np.ndarray:
    """Return how often each network was drawn, float64 ``[resamples, n]``."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES).astype(float)


def _spearmans(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of every resample; NaN where one of them is constant."""
    total = counts.sum(axis=1, keepdims=True)
    ranks = []
    for values in (x, y):
        # A group of equals has the mean of the ranks that its members take up.
        groups = np.eye(int(values.max()) + 1)[values.astype(int)]
        sizes = counts @ groups
        mean = np.cumsum(sizes, axis=1) - sizes / 2
        ranks.append((mean - total / 2) @ groups.T)
    a, b = ranks
    with np.errstate(invalid="ignore"):
        found: np.ndarray = (counts * a * b).sum(axis=1) / np.sqrt(
            (counts * a * a).sum(axis=1) * (counts * b * b).sum(axis=1)
        )
    return found


def _kendalls(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b of every resample; NaN where one of them is constant."""
    agree, in_x, in_y = (np.zeros(len(counts)) for _ in range(3))
    for begin in range(0, len(x), _BLOCK):  # all pairs of many networks would not fit
        part = slice(begin, begin + _BLOCK)
        sign_x, sign_y = (np.sign(v[part, None] - v[None, :]) for v in (x, y))
        for sums, signs in (
            (agree, sign_x * sign_y),
            (in_x, np.abs(sign_x)),
            (in_y, np.abs(sign_y)),
        ):
            sums += (counts[:, part] * (counts @ signs.T)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        found: np.ndarray = agree / np.sqrt(in_x * in_y)
    return found


def _interval(found: np.ndarray) -> tuple[float, float] | None:
    defined = found[np.isfinite(found)]
    if not len(defined):
        return None
    tail = 100 * (1 - _COVERED) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return float(low), float(high)
