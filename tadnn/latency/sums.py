"""Networks as sums of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tadnn.kernels import Kernel
from tadnn.latency.batch import KernelBatch
from tadnn.latency.model import LatencyModel
from tadnn.latency.sum_columns import process_columns, process_kinds
from tadnn.latency.summed_process import Cosines

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Sums:
    """Networks as sums of kernels.

    Attributes:
        us: microseconds of each kernel before correction, [kernels].
        counts: how often each network launches each, [n, kernels].
        kinds: that occur, dtypes included.
        kind: which each kernel is of, [kernels].
        waves: the cosines of each kernel's columns, [kernels, d].
        terms: per network launches, 1e6 bytes of weights and of large outputs, [n, 3].
        measured: microseconds, [n].
    """

    us: np.ndarray
    counts: csr_matrix
    kinds: tuple[str, ...]
    kind: np.ndarray
    waves: np.ndarray
    terms: np.ndarray
    measured: np.ndarray

    def of(self, rows: np.ndarray) -> Sums:
        """Return some of the networks."""
        return replace(
            self, counts=self.counts[rows], terms=self.terms[rows], measured=self.measured[rows]
        )


def read_sums(
    model: LatencyModel,
    launched: Sequence[Counter[Kernel]],
    terms: np.ndarray,
    measured: np.ndarray,
    cosines: Cosines,
) -> Sums:
    """Return networks as sums of the kernels that they launch."""
    from scipy.sparse import csr_matrix

    kernels = list(dict.fromkeys(kernel for counts in launched for kernel in counts))
    place = {kernel: i for i, kernel in enumerate(kernels)}
    known = model.remember(kernels)
    alike: dict[tuple[str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        alike.setdefault((kernel.op, kernel.dtype), []).append(i)
    names, waves = np.empty(len(kernels), dtype=object), np.empty((len(kernels), 0))
    waves = np.empty((len(kernels), len(cosines.phases)))
    for at in alike.values():
        batch = KernelBatch.of(
            [kernels[i] for i in at], model.device, model.setting.threads, model.setting.math
        )
        names[at], waves[at] = process_kinds(batch), cosines.of(process_columns(batch))
    kinds = tuple(sorted(set(names)))
    number = {kind: i for i, kind in enumerate(kinds)}
    rows = [row for row, counts in enumerate(launched) for _ in counts]
    columns = [place[kernel] for counts in launched for kernel in counts]
    values = [float(count) for counts in launched for count in counts.values()]
    return Sums(
        np.array([known[kernel][0] for kernel in kernels]),
        csr_matrix((values, (rows, columns)), shape=(len(launched), len(kernels))),
        kinds,
        np.array([number[name] for name in names]),
        waves,
        terms,
        measured,
    )
