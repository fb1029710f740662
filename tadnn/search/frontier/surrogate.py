"""Surrogates that know when they are wrong: Gaussian processes of several shapes, stacked.

Which function of the choices an objective is differs by space, device and the number of trials:
a sum of effects, one of pairs, a smooth surface. So several are fitted, each a Gaussian process
whose kernel is one of these shapes; scale and mean have closed forms, and the noise is the one
of highest marginal likelihood on a grid (C. E. Rasmussen and C. K. I. Williams, "Gaussian
Processes for Machine Learning", 2006, eq. 2.30): with few trials, climbing from one starting
point ends in local optima. A shape counts as far as it foretells what it has not seen: weights
maximise the leave-one-out predictive likelihood (eq. 5.10-5.12 there; Y. Yao et al., "Using
stacking to average Bayesian predictive distributions", 2018), and where leave-one-out errors are
larger than their deviations, the deviations grow to match.

Some shapes know which choices matter: the squared effects of the linear fit, their uncertainty
included, are the relevances of the choices (one step of the EM algorithm for automatic relevance
determination; M. E. Tipping, "Sparse Bayesian learning and the relevance vector machine", 2001).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.search.frontier.encoding import Encoded, Floats

# Noise variances on a grid, in shares of the kernel's mean eigenvalue.
_NOISES: Final = np.logspace(-4.0, 1.5, 12)
# A shape that weighs less is left out.
_NEGLIGIBLE: Final = 0.05
_ROUNDS: Final = 30


@dataclass(frozen=True, eq=False)
class _Shape:
    """A kernel: a share of linear effects, the rest a smooth surface.

    Attributes:
        linear: the share.
        indicators: whether the linear part has indicators of few-valued numbers.
        length: of the smooth part; on average points are sqrt(2) apart.
        relevance: by column of `Encoded.mixed`, mean 1; None: all columns are alike.
    """

    linear: float
    indicators: bool = False
    length: float = 1.0
    relevance: Floats | None = None

    def between(self, a: Encoded, b: Encoded) -> Floats:
        """Return the kernel matrix [a, b]."""
        left, right = self._scaled(a), self._scaled(b)
        total: Floats = np.zeros((len(a), len(b)))
        products = left @ right.T
        if self.linear > 0:
            total = self.linear * (a.full @ b.full.T if self.indicators else products)
        if self.linear < 1:
            squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)
            distance = np.maximum(squares - 2.0 * products, 0.0)
            total += (1.0 - self.linear) * np.exp(distance / (-2.0 * self.length**2))
        return total

    def at(self, points: Encoded) -> Floats:
        """Return the kernel of every point with itself, [n]."""
        x = points.full if self.indicators else self._scaled(points)
        prior: Floats = self.linear * (x**2).sum(axis=1) + (1.0 - self.linear)
        return prior

    def _scaled(self, points: Encoded) -> Floats:
        if self.relevance is None:
            return points.mixed
        return points.mixed * np.sqrt(self.relevance)


_LINEAR: Final = _Shape(1.0)
_SHARED: Final = (
    _LINEAR,
    _Shape(0.0, length=1.0),
    _Shape(0.5, indicators=True, length=1.0),
    _Shape(0.0, length=2.0),
    _Shape(0.5, indicators=True, length=2.0),
)


def _with(relevance: Floats) -> tuple[_Shape, ...]:
    """Return the shapes that know how much each column matters to an objective."""
    return (
        _Shape(1.0, relevance=relevance),
        _Shape(0.0, length=1.0, relevance=relevance),
        _Shape(0.0, length=2.0, relevance=relevance),
    )


@dataclass(frozen=True)
class _Spectrum:
    """A shape's kernel matrix of the training points, taken apart."""

    values: Floats
    vectors: Floats
    ones: Floats

    @classmethod
    def of(cls, kernel: Floats) -> _Spectrum:
        """Take a kernel matrix apart."""
        values, vectors = np.linalg.eigh(kernel)
        return cls(np.maximum(values, 0.0), vectors, vectors.sum(axis=0))


@dataclass(frozen=True)
class _Fit:
    """One shape, fitted to one objective (standardised)."""

    mean: float
    scale: float
    alpha: Floats
    precision: Floats
    errors: Floats
    variances: Floats

    @property
    def scores(self) -> Floats:
        """Log-likelihood of every training value left out, [n]."""
        z = self.errors**2 / self.variances
        return -0.5 * (np.log(2.0 * np.pi * self.variances) + z)


@dataclass(frozen=True)
class _View:
    """An objective as it is modelled: shifted and scaled, of its logarithm where that fits better.

    Attributes:
        sign: 1 or -1 where the logarithm of that many times the value is modelled; else 0.
        shift: mean of what is modelled.
        scale: its standard deviation.
        fits: by shape.
        weights: by shape, adding up to 1.
        inflation: what deviations are multiplied by.
        score: mean log-density of the values left out, in the unit that is modelled.
    """

    sign: float
    shift: float
    scale: float
    fits: dict[_Shape, _Fit]
    weights: dict[_Shape, float]
    inflation: float
    score: float

    @property
    def density(self) -> float:
        """The score in the unit of the values themselves, the only one in which views compare."""
        # The mean logarithm is the shift.
        return self.score - (self.shift if self.sign else 0.0)


class Surrogate:
    """Predicts several objectives from encoded points.

    Args:
        points: the training points, [n].
        values: [n, objectives], finite, no column constant.
    """

    def __init__(self, points: Encoded, values: Floats) -> None:
        self._points = points
        # What does not depend on an objective's values serves them all.
        self._spectra = {shape: _Spectrum.of(shape.between(points, points)) for shape in _SHARED}
        self._views = [self._view(column) for column in values.T]

    @property
    def foretold(self) -> Floats:
        """Mean log-density of the training values, each foretold from the others, [objectives]."""
        return np.array([view.density for view in self._views])

    def predict(self, points: Encoded, roughly: bool = False) -> tuple[Floats, Floats]:
        """Return means and standard deviations, both [n, objectives].

        Args:
            points: where.
            roughly: whether an objective's deviations may be those of its weightiest shape
                alone, which saves most of the work.
        """
        sums = [_Sum(len(points)) for _ in self._views]
        leading = [max(view.weights, key=view.weights.__getitem__) for view in self._views]
        for shape in dict.fromkeys(shape for view in self._views for shape in view.weights):
            users = [j for j, view in enumerate(self._views) if shape in view.weights]
            cross, prior = shape.between(points, self._points), shape.at(points)
            squared = None
            if not roughly or any(leading[j] is shape for j in users):
                squared = (cross @ self._spectra[shape].vectors) ** 2
            for j in users:
                fit = self._views[j].fits[shape]
                variance = None
                if squared is not None and (not roughly or leading[j] is shape):
                    variance = fit.scale * np.maximum(prior - squared @ fit.precision, 1e-9)
                weight = self._views[j].weights[shape]
                sums[j].add(weight, fit.mean + cross @ fit.alpha, variance)
        told = [
            _unseen(view, *total.moments()) for view, total in zip(self._views, sums, strict=True)
        ]
        return np.stack([m for m, _ in told], axis=1), np.stack([d for _, d in told], axis=1)

    def _view(self, values: Floats) -> _View:
        view = self._fitted(values, sign=0.0)
        sign = float(np.sign(values[0]))
        if (sign * values).min() > 0:
            logarithms = np.log(sign * values)
            logarithmic = self._fitted(logarithms, sign)
            if logarithmic.density > view.density:
                return self._refined(logarithms, logarithmic)
        return self._refined(values, view)

    def _fitted(self, values: Floats, sign: float) -> _View:
        shift, scale = float(values.mean()), float(values.std()) or 1.0
        standard = (values - shift) / scale
        fits = {shape: _best_fit(self._spectra[shape], standard) for shape in _SHARED}
        return _view_of(sign, shift, scale, fits)

    def _refined(self, values: Floats, view: _View) -> _View:
        """Add the shapes that know which columns matter."""
        standard = (values - view.shift) / view.scale
        fits = dict(view.fits)
        for shape in _with(self._relevance(fits[_LINEAR])):
            self._spectra[shape] = _Spectrum.of(shape.between(self._points, self._points))
            fits[shape] = _best_fit(self._spectra[shape], standard)
        return _view_of(view.sign, view.shift, view.scale, fits)

    def _relevance(self, fit: _Fit) -> Floats:
        """Return each column's relevance: its squared linear effect, as far as it is known."""
        x = self._points.mixed
        spectrum = self._spectra[_LINEAR]
        effect = x.T @ fit.alpha
        left = 1.0 - (x.T @ spectrum.vectors) ** 2 @ fit.precision
        relevance = effect**2 + fit.scale * np.maximum(left, 0.0)
        return np.asarray(relevance / max(float(relevance.mean()), 1e-300))


def _view_of(sign: float, shift: float, scale: float, fits: dict[_Shape, _Fit]) -> _View:
    """Weigh fitted shapes by how well they foretell."""
    scores = np.stack([fit.scores for fit in fits.values()], axis=1)
    shares = _stacked(scores)
    errors = np.stack([fit.errors**2 / fit.variances for fit in fits.values()], axis=1)
    inflation = float(np.clip(math.sqrt((errors @ shares).mean()), 1.0, 3.0))
    top = scores.max(axis=1)
    likelihood = top + np.log(np.exp(scores - top[:, None]) @ shares)
    score = float(likelihood.mean()) - math.log(scale)
    weights = {s: float(w) for s, w in zip(fits, shares, strict=True) if w > 0}
    return _View(sign, shift, scale, fits, weights, inflation, score)


class _Sum:
    """Mean and deviation of a mixture, added up shape by shape."""

    def __init__(self, n: int) -> None:
        self._mean, self._square = np.zeros(n), np.zeros(n)
        self._variance, self._weight = np.zeros(n), 0.0

    def add(self, weight: float, mean: Floats, variance: Floats | None) -> None:
        """Add a shape; its variance is None where those of others stand for it."""
        self._mean += weight * mean
        self._square += weight * mean**2
        if variance is not None:
            self._variance += weight * variance
            self._weight += weight

    def moments(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation."""
        spread = np.maximum(self._square - self._mean**2, 0.0)
        return self._mean, np.sqrt(spread + self._variance / self._weight)


def _unseen(view: _View, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    mean = view.shift + view.scale * mean
    deviation = view.scale * deviation * view.inflation
    if view.sign == 0:
        return mean, deviation
    # Mean and deviation of a log-normal; far from the data its tail is not to be believed.
    variance = np.minimum(deviation**2, 1.0)
    centre = np.exp(mean + variance / 2.0)
    return view.sign * centre, centre * np.sqrt(np.expm1(variance))


def _best_fit(spectrum: _Spectrum, y: Floats) -> _Fit:
    """Fit mean, scale and noise; the noise has the highest marginal likelihood of the grid."""
    n = len(y)
    turned = spectrum.vectors.T @ y
    base = max(float(spectrum.values.mean()), 1e-12)
    precision = 1.0 / (spectrum.values[None, :] + base * _NOISES[:, None])
    norm = precision @ spectrum.ones**2
    mean = precision @ (spectrum.ones * turned) / norm
    rest = turned[None, :] - mean[:, None] * spectrum.ones[None, :]
    scale = np.maximum((rest**2 * precision).sum(axis=1) / n, 1e-12)
    evidence = -n * np.log(scale) + np.log(precision).sum(axis=1) - np.log(norm)
    best = int(np.argmax(evidence))
    alpha = spectrum.vectors @ (rest[best] * precision[best])
    # Leaving one out: its error is alpha_i / (K^-1)_ii, its variance 1 / (K^-1)_ii.
    inverse = spectrum.vectors**2 @ precision[best]
    return _Fit(
        mean=float(mean[best]),
        scale=float(scale[best]),
        alpha=alpha,
        precision=precision[best],
        errors=alpha / inverse,
        variances=scale[best] / inverse,
    )


def _stacked(scores: Floats) -> Floats:
    """Return the shapes' weights; ``scores`` are log-likelihoods [n, shapes]."""
    likelihood = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = np.full(scores.shape[1], 1.0 / scores.shape[1])
    for _ in range(_ROUNDS):
        shares = likelihood * weights
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    weights[weights < _NEGLIGIBLE] = 0.0
    stacked: Floats = weights / weights.sum()
    return stacked
