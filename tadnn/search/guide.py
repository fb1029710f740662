"""The frontier sampler at work in a study of architectures, with and without stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import FrozenTrial

from tadnn.search.entrants import Entrant, Plan
from tadnn.search.frontier import (
    Candidate,
    Measure,
    Proposer,
    SpaceCandidates,
    history_of,
    signed,
    signs_of,
)
from tadnn.search.stage_history import foreseen_losses, stage_history
from tadnn.search.stages import Foresight
from tadnn.spaces import Space

if TYPE_CHECKING:
    from optuna.study import Study


class FrontierGuide:
    """Proposes architectures, and foresees which trials are worth the next stage.

    Args:
        space: the study's.
        seed: the study's.
        known: objectives that need not be learned, by index.
        constraints: feasible where at most 0.
        plan: the study's stages, all of which are learned from; None: it has none.
        arch_of: a trial's whole architecture; None while it is being written down.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        known: Mapping[int, Measure],
        constraints: Sequence[Measure],
        plan: Plan | None,
        arch_of: Callable[[FrozenTrial], Mapping[str, Any] | None],
    ) -> None:
        self._space, self._seed, self._plan, self._arch_of = space, seed, plan, arch_of
        self._known, self._constraints = dict(known), constraints
        self._proposer: Proposer | None = None
        self._points: dict[int, Candidate] = {}

    def propose(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Return the architecture expected to push the front farthest; empty: none is left."""
        proposer, signs = self._proposer_of(study), signs_of(study)
        if self._plan is None:
            history = history_of(study, trial.number, self._arch_of, signs, self._points)
        else:
            others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
            history = stage_history(self._placed(others, signs), self._plan, len(signs))
        return dict(proposer.propose(history, trial.number) or {})

    def foresight(self, study: Study, trials: Sequence[FrozenTrial]) -> Foresight | None:
        """Return what tells which trials are worth the next stage; None where nobody learns."""
        plan = self._plan
        if plan is None:
            return None

        @functools.cache
        def foresee(stage: int) -> dict[int, tuple[float, ...]] | None:
            known = self._placed(trials, signs_of(study))
            return foreseen_losses(known, plan, stage, self._proposer_of(study))

        return foresee

    def _proposer_of(self, study: Study) -> Proposer:
        if self._proposer is None:
            # Kept, since it remembers only what would come out the same.
            signs = signs_of(study)
            candidates = SpaceCandidates(self._space)
            known = {i: signed(measure, signs[i]) for i, measure in self._known.items()}
            self._proposer = Proposer(candidates, len(signs), self._seed, known, self._constraints)
        return self._proposer

    def _placed(
        self, trials: Sequence[FrozenTrial], signs: np.ndarray
    ) -> list[tuple[Entrant, Candidate]]:
        """Return the trials that have a point, each with it."""
        return [
            (Entrant.of(trial, signs.tolist()), candidate)
            for trial in trials
            if (candidate := self._candidate(trial)) is not None
        ]

    def _candidate(self, trial: FrozenTrial) -> Candidate | None:
        if trial.number not in self._points:
            arch = self._arch_of(trial)
            if not arch:
                return None
            self._points[trial.number] = Candidate.of(arch)
        return self._points[trial.number]
