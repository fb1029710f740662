"""How far predictions are from measurements."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

_NEAR: Final = 0.3
_MOST_PAIRED: Final = 1500  # a million pairs say it to a tenth of a percent


def error_summary(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """Compare predictions with measurements, both [n] and positive, n >= 1.

    Returns ``n``, and in percent ``mape`` (mean absolute error), ``median_ape``,
    ``within_5``, ``within_10``, ``within_20`` (shares) and ``bias`` (mean signed
    error, positive when predicted too slow); ``spearman`` is the rank correlation,
    None where it isn't defined (one row, or all alike); ``near_pairs`` is the percentage
    ordered rightly of the pairs within 30 % of each other, which are what a search has to
    tell apart, None where there is none. Of many rows, a fixed sample is paired.
    """
    error = predicted / measured - 1
    absolute = np.abs(error)
    return {
        "n": len(error),
        "mape": _percent(absolute.mean()),
        "median_ape": _percent(np.median(absolute)),
        **{f"within_{p}": _percent(np.mean(absolute <= p / 100)) for p in (5, 10, 20)},
        "bias": _percent(error.mean()),
        "spearman": _spearman(predicted, measured),
        "near_pairs": _near_pairs(predicted, measured),
    }


def calibrated_summary(
    predicted: np.ndarray, std: np.ndarray, measured: np.ndarray
) -> dict[str, Any]:
    """Return :func:`error_summary`, and the percentages within one and two deviations.

    Args:
        predicted: [n].
        std: its standard deviations, [n], in the same unit.
        measured: [n].
    """
    z = np.abs(predicted - measured) / std
    return error_summary(predicted, measured) | {
        "one_sigma": _percent(np.mean(z <= 1)),
        "two_sigma": _percent(np.mean(z <= 2)),
    }


def pairs_ordered(
    predicted: np.ndarray, measured: np.ndarray, apart: float = 0.0, within: float = math.inf
) -> float | None:
    """Return the percentage of pairs ordered rightly among those that differ clearly.

    Args:
        predicted: [n].
        measured: [n].
        apart: a pair counts when the slower is measured more than ``1 + apart`` times
            the faster,
        within: and at most ``1 + within`` times.

    Returns:
        0-100, or None where no pair counts.
    """
    first, second = np.triu_indices(len(measured), k=1)
    slower = np.maximum(measured[first], measured[second])
    faster = np.minimum(measured[first], measured[second])
    clear = (slower > (1 + apart) * faster) & (slower <= (1 + within) * faster)
    if not clear.any():
        return None
    right = np.sign(predicted[first] - predicted[second]) == np.sign(
        measured[first] - measured[second]
    )
    return _percent(right[clear].mean())


def _near_pairs(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    if len(measured) > _MOST_PAIRED:
        pick = np.random.default_rng(0).permutation(len(measured))[:_MOST_PAIRED]
        predicted, measured = predicted[pick], measured[pick]
    return pairs_ordered(predicted, measured, within=_NEAR)


def _spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    from scipy.stats import rankdata

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return round(float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]), 4)


def _percent(share: Any) -> float:
    return round(100 * float(share), 3)
