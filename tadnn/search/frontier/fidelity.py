"""Surrogates that learn from cheaper versions of an objective, as far as those foretell it.

A dear objective is modelled as a line in what a surrogate of the cheaper one predicts, and a
surrogate of what that leaves (M. C. Kennedy and A. O'Hagan, "Predicting the output from a complex
computer code when fast approximations are available", 2000; fitted level by level as in L. Le
Gratiet and J. Garnier, "Recursive co-kriging model for design of computer experiments with multiple
levels of fidelity", 2014). Whether that is better than learning the dear objective alone is decided
by how well each foretells values left out, so a proxy that tells nothing does no harm.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np

from tadnn.search.frontier.encoding import Encoded, Floats
from tadnn.search.frontier.surrogate import Surrogate

# A line is asked for by so many values at least.
_LEAST_ROWS: Final = 4


class Predictor(Protocol):
    """Predicts several objectives from encoded points."""

    def predict(self, points: Encoded, roughly: bool = False) -> tuple[Floats, Floats]:
        """Return means and standard deviations, both [n, objectives]."""


class Layered:
    """A surrogate above a cheaper one.

    Args:
        cheaper: predicts the cheaper version of every objective.
        points: the training points, [n].
        values: [n, objectives], finite.
        alone: the surrogate of the same points and values that knows nothing cheaper.
    """

    def __init__(
        self, cheaper: Predictor, points: Encoded, values: Floats, alone: Surrogate
    ) -> None:
        self._cheaper, self._alone = cheaper, alone
        told = cheaper.predict(points)[0]
        centre, spread = told.mean(axis=0), told - told.mean(axis=0)
        variance = (spread**2).sum(axis=0)
        covariance = (spread * (values - values.mean(axis=0))).sum(axis=0)
        self._slope = np.divide(
            covariance, variance, out=np.zeros_like(variance), where=variance > 0
        )
        self._offset = values.mean(axis=0) - self._slope * centre
        rest = values - self._line(told)
        self._rest = Surrogate(points, rest)
        # A line that was fitted has one more parameter: the price is that of Schwarz's criterion.
        price = math.log(len(values)) / (2.0 * len(values))
        #: Whether the cheaper version is of use, [objectives].
        self.helps = self._rest.foretold - price > alone.foretold

    def predict(self, points: Encoded, roughly: bool = False) -> tuple[Floats, Floats]:
        """Return means and standard deviations, both [n, objectives]."""
        mean, deviation = self._alone.predict(points, roughly)
        if self.helps.any():
            told, doubt = self._cheaper.predict(points, roughly)
            rest, own = self._rest.predict(points, roughly)
            mean = np.where(self.helps, self._line(told) + rest, mean)
            both = np.hypot(self._slope * doubt, own)
            deviation = np.where(self.helps, both, deviation)
        return mean, deviation

    def _line(self, told: Floats) -> Floats:
        line: Floats = self._offset + self._slope * told
        return line


def learned(cheaper: Predictor | None, points: Encoded, values: Floats) -> Predictor:
    """Return a surrogate of ``values`` that uses a cheaper version where that helps."""
    alone = Surrogate(points, values)
    if cheaper is None or len(values) < _LEAST_ROWS:
        return alone
    layered = Layered(cheaper, points, values, alone)
    return layered if layered.helps.any() else alone
