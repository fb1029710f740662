"""The sampler that Optuna studies are given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tadnn.errors import RequestError, TadnnError
from tadnn.search.frontier.candidates import (
    Candidate,
    Candidates,
    PoolCandidates,
    SpaceCandidates,
)
from tadnn.search.frontier.encoding import Floats, Point
from tadnn.search.frontier.judging import History
from tadnn.search.frontier.parameters import ParameterCandidates
from tadnn.search.frontier.proposing import STARTUP, Measure, Proposer

if TYPE_CHECKING:
    from optuna.study import Study

    from tadnn.spaces import Space

logger = logging.getLogger("tadnn.search.frontier")

_POINT_ATTR: Final = "tadnn:frontier"


class Exhausted(TadnnError):
    """The space has no architecture left that the study did not take up."""


class FrontierSampler(BaseSampler):
    """Proposes the points that are expected to push the front farthest.

    Works with any study of one or more objectives: those named in ``known`` are worked out for
    thousands of candidates per proposal, the others are learned from the trials so far. Trials
    that run count with what is expected of them, so that parallel workers look elsewhere. A
    proposal depends on the seed, the trial's number and the other trials alone; a resumed study
    goes on as if nothing had happened.

    With neither ``pool`` nor ``space``, the parameters are those that all finished trials have;
    any others are drawn at random.

    Not thread-safe where ``n_jobs`` of ``study.optimize`` is above 1 and ``known`` or
    ``constraints`` are not.

    Args:
        seed: of everything random.
        pool: a finite list of points (rows of a table); each has a value for every parameter
            that the objective asks for. ``study.optimize`` stops when all were taken up.
        space: a tadnn space; a point is a whole architecture.
        known: exact, cheap objectives by index: a function from a list of points to a list of
            values, in the objective's own direction.
        constraints: exact, cheap constraints: functions from a list of points to a list of
            values, feasible where at most 0. No trial is spent on a point that breaks one,
            unless all candidates do.
        startup: trials that fill the space before anything is learned.

    Raises:
        RequestError: both a pool and a space are given, the pool is empty or has a point twice,
            or ``startup`` is not positive.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        pool: Sequence[Point] | None = None,
        space: Space | None = None,
        known: Mapping[int, Measure] | None = None,
        constraints: Sequence[Measure] = (),
        startup: int = STARTUP,
    ) -> None:
        if pool is not None and space is not None:
            raise RequestError("a sampler has a pool or a space; got both")
        if type(startup) is not int or startup < 1:
            raise RequestError(f"startup is a positive whole number; got {startup!r}")
        if type(seed) is not int or seed < 0:
            raise RequestError(f"seed is a whole number, 0 or more; got {seed!r}")
        self._seed, self._startup = seed, startup
        self._known, self._constraints = dict(known or {}), tuple(constraints)
        self._whole: Candidates | None = None
        if pool is not None:
            self._whole = PoolCandidates(pool)
        elif space is not None:
            self._whole = SpaceCandidates(space)
        self._proposer: tuple[object, Proposer] | None = None
        self._chosen: dict[int, Point] = {}

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that every finished trial has; none where points are whole."""
        if self._whole is not None:
            return {}
        common: dict[str, BaseDistribution] | None = None
        for past in study.get_trials(deepcopy=False):
            if past.state not in (TrialState.COMPLETE, TrialState.PRUNED):
                continue
            if common is None:
                common = dict(past.distributions)
            else:
                here = past.distributions
                common = {n: d for n, d in common.items() if _same(d, here.get(n))}
        return dict(sorted((common or {}).items()))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a value for each parameter of ``search_space``."""
        self._check(study)
        if self._whole is not None:
            self._chosen[trial.number] = self._whole_point(study, trial)
            return {}
        if not search_space:
            return {}
        candidates = ParameterCandidates(search_space)
        signature = tuple(sorted((name, repr(d)) for name, d in search_space.items()))
        proposer = self._proposer_of(study, signature, candidates)
        point = proposer.propose(self._history(study, trial, search_space), trial.number)
        if point is None:
            # Other parameters may differ, or the caller wants repetitions: not ours to refuse.
            point = candidates.draw(self._rng(trial, 0), 1)[0].point
        self._chosen[trial.number] = point
        return dict(point)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the chosen point's value; draw what no point has."""
        if self._whole is not None:
            point = self._chosen.get(trial.number, {})
            if param_name in point:
                return point[param_name]
            raise RequestError(
                f"the points of the sampler have no parameter {param_name!r}; they have "
                f"{', '.join(map(str, point))}"
            )
        # Independent of the order in which parameters are asked for.
        name = int.from_bytes(param_name.encode(), "little")
        rng = np.random.default_rng((self._seed, trial.number, 4, name))
        random = RandomSampler(seed=int(rng.integers(2**32)))
        return random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop the study where every point was taken up."""
        self._chosen.pop(trial.number, None)
        optimizing = getattr(study._thread_local, "in_optimize_loop", False)
        if optimizing and self._left(study, trial) == 0:
            logger.warning("frontier sampler: every point was taken up; the study stops")
            study.stop()

    def reseed_rng(self) -> None:
        """Do nothing: the randomness of a trial derives from its number."""

    def _check(self, study: Study) -> None:
        wrong = [i for i in self._known if not 0 <= i < len(study.directions)]
        if wrong:
            raise RequestError(
                f"known objectives are numbered from 0 to {len(study.directions) - 1}; "
                f"got {wrong[0]}"
            )

    def _whole_point(self, study: Study, trial: FrozenTrial) -> Point:
        assert self._whole is not None
        proposer = self._proposer_of(study, None, self._whole)
        point = proposer.propose(self._history(study, trial, None), trial.number)
        if point is None:
            raise Exhausted(
                f"there are {self._whole.size:.0f} points and the study took up every one"
            )
        return point

    def _proposer_of(self, study: Study, signature: object, candidates: Candidates) -> Proposer:
        # Kept for what it remembers of cheap values; anew where the parameters changed.
        if self._proposer is None or self._proposer[0] != signature:
            signs = signs_of(study)
            known = {i: signed(measure, signs[i]) for i, measure in self._known.items()}
            made = Proposer(
                candidates, len(signs), self._seed, known, self._constraints, self._startup
            )
            self._proposer = (signature, made)
        return self._proposer[1]

    def _history(
        self, study: Study, trial: FrozenTrial, names: Mapping[str, object] | None
    ) -> History:
        return history_of(study, trial.number, lambda t: self._point(t, names), signs_of(study))

    def _point(self, trial: FrozenTrial, names: Mapping[str, object] | None) -> Point | None:
        # What was proposed here is known before the objective has asked for all of it.
        params = {**self._chosen.get(trial.number, {}), **trial.params}
        if names is None:
            return params or None
        if any(name not in params for name in names):
            return None
        return {name: params[name] for name in names}

    def _left(self, study: Study, ended: FrozenTrial) -> float:
        """Return how many points nobody took up yet."""
        trials = study.get_trials(deepcopy=False)
        if self._whole is not None:
            size = self._whole.size
        else:
            params = [set(t.params) for t in trials if t.state == TrialState.COMPLETE]
            params.append(set(ended.params))
            if any(names != params[0] for names in params):
                return float("inf")  # conditional parameters: their number is not known
            size = ParameterCandidates(ended.distributions).size if ended.params else 1
        if size > len(trials):
            return size - len(trials)
        taken: set[Hashable] = {Candidate.of(t.params).key for t in trials if t.params}
        return size - len(taken)

    def _rng(self, trial: FrozenTrial, stream: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, trial.number, 16 + stream))


def _same(a: BaseDistribution, b: BaseDistribution | None) -> bool:
    # Optuna's own comparison costs a third of a proposal at a thousand trials.
    return a is b or (type(a) is type(b) and vars(a) == vars(b))


def history_of(
    study: Study,
    number: int,
    point_of: Callable[[FrozenTrial], Point | None],
    signs: Floats,
    remembered: dict[int, Candidate] | None = None,
) -> History:
    """Return what a study knows, other than of the trial ``number``.

    Args:
        study: the study.
        number: the trial that asks.
        point_of: a trial's point; None where it has none (yet).
        signs: see `signs_of`.
        remembered: points of finished trials, kept from call to call.
    """
    known = {} if remembered is None else remembered
    points, values, feasible = [], [], []
    pending: list[Candidate] = []
    failed: list[Candidate] = []
    for trial in study.get_trials(deepcopy=False):
        if trial.number == number:
            continue
        candidate = known.get(trial.number)
        if candidate is None:
            point = point_of(trial)
            if not point:
                continue
            candidate = Candidate.of(point)
            if trial.state.is_finished():
                known[trial.number] = candidate
        if trial.state == TrialState.COMPLETE:
            points.append(candidate)
            values.append(np.asarray(trial.values) * signs)
            feasible.append(all(excess <= 0 for excess in trial.constraints.values()))
        elif trial.state in (TrialState.FAIL, TrialState.PRUNED):
            failed.append(candidate)
        else:
            pending.append(candidate)
    shaped = np.array(values, dtype=float).reshape(len(values), len(signs))
    return History(points, shaped, np.array(feasible, dtype=bool), pending, failed)


def signs_of(study: Study) -> Floats:
    """Return 1 for objectives that are minimised, -1 for those that are maximised, [d]."""
    return np.array([-1.0 if d == StudyDirection.MAXIMIZE else 1.0 for d in study.directions])


def signed(measure: Measure, sign: float) -> Measure:
    """Return ``measure`` as it is minimised."""
    return lambda points: sign * np.asarray(measure(points), dtype=float)
