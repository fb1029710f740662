"""Dividing a data set whose source left it whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


def stratified_split(
    labels: npt.NDArray[np.int64], shares: Mapping[str, float], seed: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Divide indices so that every class has about the same share everywhere.

    Args:
        labels: int64 ``[n]``.
        shares: name of a part to its share; the first part takes what rounding leaves over.
        seed: decides who goes where.

    Returns:
        Ascending, disjoint indices per part; together they are all of them.
    """
    # NumPy promises RandomState's stream for ever (NEP 19), which it does not for Generator's:
    # a split must survive an upgrade.
    random = np.random.RandomState(seed)
    first, *others = shares
    parts: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in shares}
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        for name in others:
            count = round(shares[name] * np.count_nonzero(labels == label))
            parts[name].append(members[:count])
            members = members[count:]
        parts[first].append(members)
    return {name: np.sort(np.concatenate(found)) for name, found in parts.items()}
