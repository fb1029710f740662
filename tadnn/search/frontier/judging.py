"""What candidates are worth: what is known of the others, and what a surrogate makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from tadnn.pareto import front_mask
from tadnn.search.frontier.candidates import Candidate, Candidates
from tadnn.search.frontier.encoding import Floats
from tadnn.search.frontier.fidelity import Predictor, learned
from tadnn.search.frontier.improvement import Improvement
from tadnn.search.frontier.surrogate import Surrogate

# So many of the most promising candidates are judged exactly.
_EXACT: Final = 256
# More training points than this are thinned: the front's and an even share of the others stay.
_MOST_ROWS: Final = 256
_FEW_ROWS: Final = 128
_WORST_CHANCE: Final = 1e-3
_LEAST_DOUBT: Final = 0.1


@dataclass(frozen=True)
class History:
    """What a study knows, in the order of its trials.

    Attributes:
        points: the completed ones.
        values: theirs, [n, d], minimised; anything not finite counts as failed.
        feasible: whether each kept its constraints, [n].
        pending: points under evaluation.
        failed: points whose evaluation failed.
        lower: cheaper versions of the objectives, from the cheapest: points and their values,
            [n, d], minimised and finite. Values of known objectives are the same everywhere.
        stopped: points of which only cheaper versions are known and that are feasible; what is
            expected of them counts on the front.
        passed: all other points that were taken up.
    """

    points: Sequence[Candidate]
    values: Floats
    feasible: np.ndarray
    pending: Sequence[Candidate] = ()
    failed: Sequence[Candidate] = ()
    lower: Sequence[tuple[Sequence[Candidate], Floats]] = ()
    stopped: Sequence[Candidate] = ()
    passed: Sequence[Candidate] = ()

    @property
    def taken(self) -> list[Candidate]:
        """Every point that was taken up."""
        return [*self.points, *self.pending, *self.failed, *self.stopped, *self.passed]


class Judge:
    """What candidates of one proposal are worth.

    Args:
        candidates: encodes points.
        known: the objectives that are worked out, by index.
        learned: the objectives that a surrogate tells, by index.
        history: what is known.
        usable: which trials have values, indices into the history.
        cheap: the known objectives of all candidates, [n, known].
        cheap_of: works them out for other points.
    """

    def __init__(
        self,
        candidates: Candidates,
        known: Sequence[int],
        learned: Sequence[int],
        history: History,
        usable: np.ndarray,
        cheap: Floats,
        cheap_of: Callable[[Sequence[Candidate]], Floats],
    ) -> None:
        self._candidates = candidates
        self._known, self._learned = list(known), list(learned)
        values = history.values[usable]
        feasible = history.feasible[usable]
        # Of trials that run, what is expected counts: others should not look where they do.
        believed = np.empty((0, values.shape[1]))
        if history.pending:
            # What is only believed may be learned from fewer rows.
            self._surrogate = self._learn(history, usable, values, _FEW_ROWS)
            believed = self.predicted(history.pending, cheap_of(history.pending))[0]
        self._surrogate = self._learn(history, usable, values, _MOST_ROWS, believed)
        expected = np.empty((0, values.shape[1]))
        if history.stopped:
            expected = self.predicted(history.stopped, cheap_of(history.stopped))[0]
        settled = np.vstack([values[feasible], believed, expected])
        self._chance = self._chances(history, feasible, usable)
        reference = values.max(axis=0)
        for column, index in enumerate(self._known):
            reference[index] = max(reference[index], cheap[:, column].max())
        # Equal to the worst is no gain; a little beyond it, the worst one counts itself.
        reference = reference + 1e-6 * np.ptp(values, axis=0)
        self._improvement = Improvement(settled, reference)

    def gains(self, points: Sequence[Candidate], cheap: Floats) -> Floats:
        """Return what each point is expected to add to the dominated volume, [n].

        Of many points, all but the most promising get an approximation.
        """
        gains = self._gains(points, cheap, roughly=len(points) > _EXACT)
        if len(points) > _EXACT:
            best = np.argsort(-gains, kind="stable")[:_EXACT]
            exact = self._gains([points[i] for i in best], cheap[best], roughly=False)
            # The rest keep their order, behind.
            gains = np.minimum(gains, exact.min())
            gains[best] = exact
        return gains

    def _gains(self, points: Sequence[Candidate], cheap: Floats, roughly: bool) -> Floats:
        mean, deviation = self.predicted(points, cheap, roughly)
        gains = self._improvement.expected(mean, deviation)
        if self._chance is not None:
            mean, deviation = self._chance.predict(self._candidates.encode(points), roughly)
            # Labels are 0 and 1; half-way between them is even odds.
            odds = ndtr((mean[:, 0] - 0.5) / np.maximum(deviation[:, 0], _LEAST_DOUBT))
            gains = gains * np.maximum(odds, _WORST_CHANCE)
        return gains

    def predicted(
        self, points: Sequence[Candidate], cheap: Floats, roughly: bool = False
    ) -> tuple[Floats, Floats]:
        """Return means and standard deviations of all objectives, both [n, d]."""
        mean = np.zeros((len(points), len(self._known) + len(self._learned)))
        deviation = np.zeros_like(mean)
        for column, index in enumerate(self._known):
            mean[:, index] = cheap[:, column]
        if self._surrogate is not None:
            told = self._surrogate.predict(self._candidates.encode(points), roughly)
            mean[:, self._learned], deviation[:, self._learned] = told
        return mean, deviation

    def _learn(
        self,
        history: History,
        usable: np.ndarray,
        values: Floats,
        most: int,
        believed: Floats | None = None,
    ) -> Predictor | None:
        """Fit the objectives that are not known; ``believed`` are values of pending trials."""
        if not self._learned:
            return None
        cheaper: Predictor | None = None
        for points, told in history.lower:
            rows = _thinned(told, most)
            encoded = self._candidates.encode([points[i] for i in rows.tolist()])
            cheaper = learned(cheaper, encoded, told[rows][:, self._learned])
        kept = _thinned(values, most)
        points = [history.points[i] for i in usable[kept].tolist()]
        targets = values[kept]
        if believed is not None:
            points += history.pending
            targets = np.vstack([targets, believed])
        return learned(cheaper, self._candidates.encode(points), targets[:, self._learned])

    def _chances(
        self, history: History, feasible: np.ndarray, usable: np.ndarray
    ) -> Surrogate | None:
        """Learn where trials fail or turn out infeasible; None where they don't."""
        lost = set(range(len(history.points))) - set(usable.tolist())
        bad = [*history.failed, *(history.points[i] for i in sorted(lost))]
        bad += [history.points[i] for i, ok in zip(usable, feasible, strict=True) if not ok]
        good = [history.points[i] for i, ok in zip(usable, feasible, strict=True) if ok]
        if len(bad) < 2 or len(good) < 2:
            return None
        bad, good = bad[-_MOST_ROWS // 2 :], good[-_MOST_ROWS // 2 :]
        labels = np.array([[0.0]] * len(bad) + [[1.0]] * len(good))
        return Surrogate(self._candidates.encode([*bad, *good]), labels)


def _thinned(values: Floats, most: int) -> np.ndarray:
    """Return at most ``most`` rows: fronts peeled off for one half, the others evenly."""
    n = len(values)
    if n <= most:
        return np.arange(n)
    kept = np.zeros(n, dtype=bool)
    while kept.sum() < most // 2:
        layer = np.flatnonzero(front_mask(np.where(kept[:, None], np.nan, values)))
        kept[layer[: most // 2 - int(kept.sum())]] = True
    rest = np.flatnonzero(~kept)
    even = np.linspace(0, len(rest) - 1, most - int(kept.sum())).round().astype(int)
    kept[rest[even]] = True
    return np.flatnonzero(kept)
