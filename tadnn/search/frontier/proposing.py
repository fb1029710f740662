"""The next point: what is known, what is expected of thousands of candidates, the best of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from tadnn.pareto import front_mask
from tadnn.search.frontier.candidates import Candidate, Candidates
from tadnn.search.frontier.encoding import Floats, Point
from tadnn.search.frontier.fidelity import Predictor, learned
from tadnn.search.frontier.improvement import Improvement
from tadnn.search.frontier.surrogate import Surrogate

logger = logging.getLogger("tadnn.search.frontier")

#: Values of many points at once, [n]; NaN where a point has none.
Measure = Callable[[Sequence[Point]], Sequence[float] | Floats]

#: Points that are evaluated before a surrogate is asked.
STARTUP: Final = 8
# Random candidates come in blocks; each trial replaces one, so that cheap values are worked out
# for few at a time.
_BLOCKS: Final = 16
_DRAWN: Final = 64
_NEAR: Final = 384
_CLIMBERS: Final = 8
_CLIMBING: Final = 128
_EXACT: Final = 256
_SPREAD: Final = 64
# More training points than this are thinned: the front's and an even share of the others stay.
_MOST_ROWS: Final = 256
_FEW_ROWS: Final = 128
_LEAST_ROWS: Final = 4
_MOST_REMEMBERED: Final = 200_000
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


class Proposer:
    """Chooses points for a search of the front.

    A proposal depends on the seed, the trial's number and the history alone; what is kept
    between proposals is values that would be the same if worked out again.

    Args:
        candidates: what there is to choose from.
        objectives: how many.
        seed: of everything random.
        known: cheap, exact objectives by index, minimised.
        constraints: cheap, exact constraints; at most 0 where a point is feasible.
        startup: points before a surrogate is asked.
    """

    def __init__(
        self,
        candidates: Candidates,
        objectives: int,
        seed: int,
        known: Mapping[int, Measure] | None = None,
        constraints: Sequence[Measure] = (),
        startup: int = STARTUP,
    ) -> None:
        self.candidates = candidates
        self._seed, self._startup = seed, startup
        self._known = dict(known or {})
        self._learned = [i for i in range(objectives) if i not in self._known]
        self._measures = [*self._known.values(), *constraints]
        self._blocks: dict[int, list[Candidate]] = {}
        self._remembered: dict[Hashable, list[float]] = {}
        self._said: set[str] = set()

    def propose(self, history: History, number: int) -> Point | None:
        """Return the point for trial ``number``; None: every point was taken up."""
        taken = {candidate.key for candidate in history.taken}
        parents = self._parents(history)
        pool = self._gather(number, taken, parents)
        if not pool:
            return None
        cheap = self._cheap(pool)
        kept = np.flatnonzero(np.isfinite(cheap).all(axis=1))
        if not len(kept):
            return pool[0].point
        pool = [pool[i] for i in kept]
        pool, cheap = self._feasible(number, taken, pool, cheap[kept])
        usable = self._usable(history)
        if usable is None:
            return self._spread(history, number, pool)
        judge = _Judge(self, history, usable, cheap)
        gains = judge.gains(pool, cheap)
        best = int(np.argmax(gains))
        if parents:
            top = [pool[i].point for i in np.argsort(-gains, kind="stable")[:_CLIMBERS]]
            climbed = self._fresh(self.candidates.near(self._rng(number, 3), top, _CLIMBING), taken)
            more = self._cheap(climbed)
            good = np.flatnonzero(np.isfinite(more).all(axis=1) & (self._excess(more) <= 0))
            if len(good):
                climbed = [climbed[i] for i in good]
                found = judge.gains(climbed, more[good])
                if found.max() > gains[best]:
                    return climbed[int(np.argmax(found))].point
        return pool[best].point

    def expect(self, history: History, points: Sequence[Candidate]) -> Floats | None:
        """Return what is expected of points, [n, d]; None while too little is known to learn from.

        Known objectives are worked out, and NaN where a point has none.
        """
        usable = self._usable(history)
        if usable is None or not points:
            return None
        cheap = self._cheap(points)
        judge = _Judge(self, history, usable, cheap)
        return judge.predicted(points, cheap)[0]

    def _gather(
        self, number: int, taken: set[Hashable], parents: Sequence[Point]
    ) -> list[Candidate]:
        drawn = self._drawn(number)
        near = self.candidates.near(self._rng(number, 1), parents, _NEAR) if parents else []
        pool = self._fresh([*drawn, *near], taken)
        if not pool and self.candidates.size < np.inf:
            # Ends after at most one more point than were taken up.
            for candidate in map(Candidate.of, self.candidates.enumerate()):
                if candidate.key not in taken:
                    return [candidate]
        return pool

    def _drawn(self, number: int) -> Sequence[Candidate]:
        """Return random candidates; all but a few are those of the trial before."""
        listed = self.candidates.listed()
        if listed is not None:
            return listed
        blocks = range(number, number + _BLOCKS)
        self._blocks = {
            block: self._blocks.get(block) or self.candidates.draw(self._rng(block, 0), _DRAWN)
            for block in blocks
        }
        return [candidate for drawn in self._blocks.values() for candidate in drawn]

    def _fresh(self, candidates: Sequence[Candidate], taken: set[Hashable]) -> list[Candidate]:
        distinct = {candidate.key: candidate for candidate in candidates}
        return [c for key, c in distinct.items() if key not in taken]

    def _parents(self, history: History) -> list[Point]:
        values = np.where(history.feasible[:, None], history.values, np.nan)
        return [history.points[i].point for i in np.flatnonzero(front_mask(values)).tolist()]

    def _cheap(self, candidates: Sequence[Candidate]) -> Floats:
        """Return the known objectives and the constraints, [n, known + constraints]."""
        if not self._measures or not candidates:
            return np.zeros((len(candidates), len(self._measures)))
        missing = [c for c in candidates if c.key not in self._remembered]
        if len(self._remembered) + len(missing) > _MOST_REMEMBERED:
            self._remembered.clear()
            missing = list(candidates)
        if missing:
            points = [candidate.point for candidate in missing]
            columns = [np.asarray(measure(points), dtype=float) for measure in self._measures]
            rows = np.stack(columns, axis=1).tolist()
            self._remembered.update((c.key, row) for c, row in zip(missing, rows, strict=True))
        return np.array([self._remembered[candidate.key] for candidate in candidates])

    def _excess(self, cheap: Floats) -> Floats:
        """Return by how much points break the constraints, summed, [n]."""
        total: Floats = np.maximum(cheap[:, len(self._known) :], 0.0).sum(axis=1)
        return total

    def _feasible(
        self, number: int, taken: set[Hashable], pool: list[Candidate], cheap: Floats
    ) -> tuple[list[Candidate], Floats]:
        """Keep what meets the constraints; go towards them where nothing does."""
        for round_ in range(_CLIMBERS):
            excess = self._excess(cheap)
            good = np.flatnonzero(excess <= 0)
            if len(good):
                return [pool[i] for i in good], cheap[good]
            nearest = [pool[i].point for i in np.argsort(excess, kind="stable")[:_CLIMBERS]]
            rng = self._rng(number, 8 + round_)
            more = self._fresh(self.candidates.near(rng, nearest, _CLIMBING), taken)
            found = self._cheap(more)
            finite = np.flatnonzero(np.isfinite(found).all(axis=1))
            if not len(finite):
                break
            pool = pool + [more[i] for i in finite]
            cheap = np.vstack([cheap, found[finite]])
        least = int(np.argmin(self._excess(cheap)))
        self._say("no candidate meets the constraints; the least infeasible one is proposed")
        return [pool[least]], cheap[[least]]

    def _usable(self, history: History) -> np.ndarray | None:
        """Return the rows that a surrogate can learn from; None where it can't."""
        finite = np.flatnonzero(np.isfinite(history.values).all(axis=1))
        if len(history.points) + len(history.failed) < self._startup:
            return None
        if len(finite) < min(_LEAST_ROWS, self._startup):
            self._say(
                f"{len(finite)} trials have finite values, too few to learn from; "
                "filling the space instead"
            )
            return None
        learned = history.values[finite][:, self._learned]
        if (np.ptp(learned, axis=0) <= 1e-12 * np.abs(learned).max(axis=0, initial=0.0)).any():
            self._say("an objective is constant so far; filling the space instead")
            return None
        return finite

    def _spread(self, history: History, number: int, pool: list[Candidate]) -> Point:
        """Return, of some random candidates, the one farthest from everything taken up."""
        rng = self._rng(number, 2)
        chosen = [pool[i] for i in rng.permutation(len(pool))[:_SPREAD]]
        taken = history.taken
        if not taken:
            return dict(chosen[0].point)
        a, b = self.candidates.encode(chosen).mixed, self.candidates.encode(taken).mixed
        distance = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
        farthest = int(np.argmax(np.round(distance.min(axis=1), 9)))
        return dict(chosen[farthest].point)

    def _rng(self, number: int, stream: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, number, stream))

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("frontier sampler: %s", text)


class _Judge:
    """What candidates of one proposal are worth."""

    def __init__(
        self, proposer: Proposer, history: History, usable: np.ndarray, cheap: Floats
    ) -> None:
        self._candidates = proposer.candidates
        self._known, self._learned = list(proposer._known), proposer._learned
        values = history.values[usable]
        feasible = history.feasible[usable]
        # Of trials that run, what is expected counts: others should not look where they do.
        believed = np.empty((0, values.shape[1]))
        if history.pending:
            # What is only believed may be learned from fewer rows.
            self._surrogate = self._learn(history, usable, values, _FEW_ROWS)
            believed = self.predicted(history.pending, proposer._cheap(history.pending))[0]
        self._surrogate = self._learn(history, usable, values, _MOST_ROWS, believed)
        expected = np.empty((0, values.shape[1]))
        if history.stopped:
            expected = self.predicted(history.stopped, proposer._cheap(history.stopped))[0]
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
