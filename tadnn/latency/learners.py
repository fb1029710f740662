"""What corrects the physical core: trees and a process together, trees alone for many rows.

On GPUs, many rows train a network over tiles: :mod:`tadnn.latency.network_fitting`.

All learn log(latency / core) from the features and say how sure they are. They
are stored as plain numbers and text: nothing is executed on loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tadnn.latency.learner import Learner
from tadnn.latency.process import GaussianProcess
from tadnn.latency.tile_network import TileNetwork
from tadnn.latency.trees import FEWEST_ROWS_OF_TREES, BoostedTrees

MOST_ROWS_OF_PROCESS: Final = 2000
FEWEST_ROWS_OF_BLEND: Final = 100


class Blend(Learner):
    """The mean of a process and trees: the one is smooth, the other jumps, their errors differ.

    On 1,092 convolutions measured on a CPU, held-out shapes: process 9.1 %, trees 9.7 %,
    their mean 8.5 %.
    """

    kind = "blend"

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        parts = {
            part: {n.removeprefix(part): a for n, a in arrays.items() if n.startswith(part)}
            for part in ("process.", "trees.")
        }
        self._process = GaussianProcess(parts["process."])
        self._trees = BoostedTrees(parts["trees."])

    @classmethod
    def fit(cls, x: np.ndarray, y: np.ndarray, seed: int, like: Blend | None = None) -> Blend:
        """Fit both to features [n, d] and log ratios [n]; ``like`` lends its tuned scales."""
        process = GaussianProcess.fit(x, y, seed, like=like._process if like else None)
        return cls(_joined(process, BoostedTrees.fit(x, y, seed, light=True)))

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the mean of both means."""
        mean: np.ndarray = (self._process.mean(x) + self._trees.mean(x)) / 2
        return mean

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of both means, and a deviation that their disagreement widens."""
        (a, a_sigma), (b, b_sigma) = self._process.predict(x), self._trees.predict(x)
        return (a + b) / 2, np.sqrt((a_sigma**2 + b_sigma**2) / 2 + ((a - b) / 2) ** 2)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of both."""
        return _joined(self._process, self._trees)


def fit_learner(x: np.ndarray, y: np.ndarray, seed: int, like: Learner | None = None) -> Learner:
    """Fit the learner that suits the number of rows, or the kind that ``like`` is.

    A refit to fewer rows (a fold) keeps the tuned scales of ``like``, and its kind
    while there are rows enough for it.
    """
    if isinstance(like, Blend) and len(x) < FEWEST_ROWS_OF_TREES:
        like = like._process
    few = len(x) < (FEWEST_ROWS_OF_BLEND if like is None else FEWEST_ROWS_OF_TREES)
    if isinstance(like, GaussianProcess) or few:
        tuned = like if isinstance(like, GaussianProcess) else None
        return GaussianProcess.fit(x, y, seed, like=tuned)
    if isinstance(like, BoostedTrees) or (like is None and len(x) > MOST_ROWS_OF_PROCESS):
        return BoostedTrees.fit(x, y, seed)
    return Blend.fit(x, y, seed, like=like if isinstance(like, Blend) else None)


def learner_from_arrays(kind: str, arrays: Mapping[str, np.ndarray]) -> Learner:
    """Return the learner that :meth:`Learner.to_arrays` described.

    Raises:
        KeyError: the kind is unknown, or an array is missing.
        ValueError: an array isn't what it should be.
    """
    kinds: dict[str, Callable[[Mapping[str, np.ndarray]], Learner]] = {
        made.kind: made for made in (GaussianProcess, BoostedTrees, Blend, TileNetwork)
    }
    return kinds[kind](arrays)


def _joined(process: GaussianProcess, trees: BoostedTrees) -> dict[str, np.ndarray]:
    return {f"process.{n}": a for n, a in process.to_arrays().items()} | {
        f"trees.{n}": a for n, a in trees.to_arrays().items()
    }
