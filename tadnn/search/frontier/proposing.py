"""The next point: what is known, what is expected of thousands of candidates, the best of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from tadnn.pareto import front_mask
from tadnn.search.frontier.candidates import Candidate, Candidates
from tadnn.search.frontier.encoding import Floats, Point
from tadnn.search.frontier.judging import History, Judge

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
_SPREAD: Final = 64
_LEAST_ROWS: Final = 4
_MOST_REMEMBERED: Final = 200_000


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
        judge = self._judge(history, usable, cheap)
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
        judge = self._judge(history, usable, cheap)
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

    def _judge(self, history: History, usable: np.ndarray, cheap: Floats) -> Judge:
        known, learned = list(self._known), self._learned
        return Judge(self.candidates, known, learned, history, usable, cheap, self._cheap)

    def _rng(self, number: int, stream: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, number, stream))

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("frontier sampler: %s", text)
