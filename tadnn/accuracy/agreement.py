"""Do two orders of the same networks agree? Rank correlations, and how sure they are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tadnn.errors import RequestError

#: Fewer networks say nothing about an order.
MIN_NETS = 5

_RESAMPLES = 1000
_COVERED = 0.95


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
    spearman, kendall = _spearman(x, y), _kendall(x, y)
    if spearman is None or kendall is None:
        return Agreement(None, None, None, None)
    picks = _resamples(len(x), seed)
    return Agreement(
        spearman,
        kendall,
        _interval([_spearman(x[pick], y[pick]) for pick in picks]),
        _interval([_kendall(x[pick], y[pick]) for pick in picks]),
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
    if _spearman(x, y) is None or _spearman(base, y) is None:
        return None
    differences = []
    for pick in _resamples(len(x), seed):
        ours, theirs = _spearman(x[pick], y[pick]), _spearman(base[pick], y[pick])
        differences.append(None if ours is None or theirs is None else ours - theirs)
    return _interval(differences)


def _checked(values: Sequence[float], accuracies: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(values, dtype=float), np.asarray(accuracies, dtype=float)
    if len(x) != len(y) or len(x) < MIN_NETS:
        raise RequestError(
            f"rank correlations take a value and an accuracy of at least {MIN_NETS} networks; "
            f"received {len(x)} and {len(y)}"
        )
    return x, y


def _resamples(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(count, size=(_RESAMPLES, count))


def _spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    from scipy.stats import rankdata

    a, b = rankdata(x), rankdata(y)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else None


def _kendall(x: np.ndarray, y: np.ndarray) -> float | None:
    from scipy.stats import kendalltau

    # Ranks: differences of minus infinities are no numbers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = float(kendalltau(x, y).statistic)
    return None if np.isnan(found) else found


def _interval(found: Sequence[float | None]) -> tuple[float, float] | None:
    defined = [value for value in found if value is not None]
    if not defined:
        return None
    tail = 100 * (1 - _COVERED) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return float(low), float(high)
