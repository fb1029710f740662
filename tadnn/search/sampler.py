"""Optuna's samplers, made to propose whole architectures that nobody has evaluated yet."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tadnn.errors import ArchitectureError
from tadnn.search._genetic import ArchitectureCrossover
from tadnn.search._optuna import distribution_of, wrapped_sampler
from tadnn.search.entrants import Plan, is_evaluated
from tadnn.search.frontier import (
    Exhausted,
    Measure,
)
from tadnn.search.guide import FrontierGuide
from tadnn.search.ledger import Ledger
from tadnn.search.objective import Snap
from tadnn.spaces import Space

if TYPE_CHECKING:
    from optuna.study import Study

#: How often a cheap sampler is asked again before its proposal's neighbours are tried.
_ATTEMPTS = 8
_RANDOM_TRIES = 64
#: How much of a space is enumerated where many of its architectures are snapped to one.
_MOST_SNAPPED = 2000


class DistinctSampler(BaseSampler):
    """Wraps one of Optuna's samplers so that every trial gets another architecture.

    A proposal is completed to a whole architecture (a choice without effect never becomes a
    parameter, so ``trial.params`` is the architecture). One that a completed, failed or running
    trial has is replaced: by more proposals where they are cheap, then by an unseen neighbour,
    an unseen random one, and at last whatever enumeration finds.

    All randomness derives from the seed, the trial's number and the attempt, and the wrapped
    sampler is made afresh for every trial. So the architecture of a trial depends on the
    finished trials alone, not on how often the program was restarted.

    Not thread-safe: one sampler, one worker.

    Args:
        space: the space that is searched.
        kind: ``random``, ``nsga2``, ``tpe``, ``gp`` or ``frontier``.
        seed: the study's seed.
        ledger: what was seen, refreshed by its owner before each ask; None: the sampler keeps
            one and refreshes it itself.
        known: what ``frontier`` need not learn: objectives by index, of a list of architectures.
        constraints: what ``frontier`` keeps before a trial is spent; feasible where at most 0.
        snap: moves every architecture onto its edges before it is taken; None: none is moved.
        plan: the study's stages, all of which ``frontier`` learns from; None: it has none.
    """

    def __init__(
        self,
        space: Space,
        kind: str,
        seed: int,
        ledger: Ledger | None = None,
        known: Mapping[int, Measure] | None = None,
        constraints: Sequence[Measure] = (),
        snap: Snap | None = None,
        plan: Plan | None = None,
    ) -> None:
        self._space = space
        self._snap = snap
        self._kind = kind
        self._seed = seed
        self._keeps_ledger = ledger is None
        self._ledger = Ledger(space) if ledger is None else ledger
        self._values = {name: tuple(choice.values) for name, choice in space.choices.items()}
        self._base: BaseSampler | None = None
        #: Proposes for ``frontier``.
        self.guide = FrontierGuide(space, seed, known or {}, constraints, plan, self._whole)
        #: Key of the architecture that was proposed last.
        self.last_key = ""
        #: How many architectures were drawn for the last trial until one was new.
        self.drawn = 0
        self.distributions: dict[str, IntDistribution | CategoricalDistribution] = {
            name: distribution_of(choice, self._values[name])
            for name, choice in space.choices.items()
        }

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return every choice of the space: a proposal is a whole architecture."""
        return dict(self.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return an architecture that no other trial of the study has.

        Raises:
            Exhausted: there is none left.
        """
        if self._keeps_ledger:
            self._ledger.refresh(study)
        if is_evaluated(trial):
            return dict(trial.params)  # it goes on to the next stage
        enqueued = trial.system_attrs.get("fixed_params", {})
        if self._is_whole(enqueued) and self._is_new(enqueued, trial):
            return self._space.canonical(enqueued)
        arch = self._propose(study, trial)
        # A trial whose worker died while writing its choices down keeps what it has. With one
        # worker the proposal agrees; with several the study may have moved on since.
        fixed = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        if any(arch.get(name) != value for name, value in fixed.items()):
            arch = self._complete(trial, fixed)
        return arch

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Leave a parameter that is no choice of the space to the wrapped sampler."""
        return self._wrapped(study, trial).sample_independent(
            study, trial, param_name, param_distribution
        )

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Let go of the wrapped sampler of the trial before."""
        self._base = None

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Tell the wrapped sampler."""
        if self._base is not None:
            self._base.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Do nothing: the randomness of a trial derives from its number."""

    def _propose(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        self.drawn = 0
        for attempt, proposal in enumerate(self._proposals(study, trial)):
            arch = self._snapped(self._filled(study, trial, proposal, attempt))
            if self._is_new(arch, trial):
                return arch
        return self._nearby(arch, trial)

    def _snapped(self, arch: Mapping[str, Any], keep: Collection[str] = ()) -> dict[str, Any]:
        self.drawn += 1
        return dict(arch) if self._snap is None else self._snap(arch, keep)

    def _proposals(self, study: Study, trial: FrozenTrial) -> Iterator[dict[str, Any]]:
        if self._kind == "random":
            yield from itertools.repeat({}, _ATTEMPTS)
            return
        if self._kind == "frontier":
            yield self.guide.propose(study, trial)
            return
        base = self._wrapped(study, trial)
        # Crossover takes what the parents have; finding what all trials have in common, as
        # Optuna's own does, would be quadratic with a sampler made afresh for every trial.
        common = {} if self._kind == "nsga2" else base.infer_relative_search_space(study, trial)
        # Asked exactly once: NSGA-II and TPE write their bookkeeping into the storage there.
        yield base.sample_relative(study, trial, common)
        if self._kind == "nsga2":
            for attempt in range(1, _ATTEMPTS):
                yield self._crossover.child(self._rng(trial, attempt))

    def _whole(self, trial: FrozenTrial) -> Mapping[str, Any] | None:
        """Return a trial's architecture; None while it is being written down."""
        return trial.params if self._ledger.key_of(trial) is not None else None

    def _wrapped(self, study: Study, trial: FrozenTrial) -> BaseSampler:
        """Return the sampler of Optuna's that this trial gets."""
        if self._base is None:
            rng = self._rng(trial, 0)
            self._crossover = ArchitectureCrossover(rng)
            self._base = wrapped_sampler(self._kind, int(rng.integers(2**32)), self._crossover)
            self._base.before_trial(study, trial)
        return self._base

    def _filled(
        self, study: Study, trial: FrozenTrial, proposal: Mapping[str, Any], attempt: int
    ) -> dict[str, Any]:
        """Complete a proposal with draws, choice by choice, parents first."""
        rng = self._rng(trial, _ATTEMPTS + attempt)
        arch: dict[str, Any] = {}
        for name, values in self._values.items():
            if not self._space.active(arch, name):
                continue
            if len(values) == 1:
                arch[name] = values[0]
            elif name in proposal:
                arch[name] = proposal[name]
            elif self._kind == "tpe":
                arch[name] = self.sample_independent(study, trial, name, self.distributions[name])
            else:
                # What Optuna's RandomSampler does for a discrete choice, without its transform.
                arch[name] = values[int(rng.integers(len(values)))]
        return arch

    def _nearby(self, arch: Mapping[str, Any], trial: FrozenTrial) -> dict[str, Any]:
        rng = self._rng(trial, 2 * _ATTEMPTS)
        neighbours = self._space.neighbours(arch)
        for index in rng.permutation(len(neighbours)):
            neighbour = self._snapped(neighbours[index])
            if self._is_new(neighbour, trial):
                return neighbour
        for _ in range(_RANDOM_TRIES):
            sample = self._snapped(self._space.sample_one(rng))
            if self._is_new(sample, trial):
                return sample
        # Ends after at most one more architecture than were seen, unless many are snapped to one.
        limit = None if self._snap is None else _MOST_SNAPPED
        for candidate in itertools.islice(self._space.enumerate(), limit):
            arch = self._snapped(candidate)
            if self._is_new(arch, trial):
                return arch
        raise Exhausted(
            f"the space has {self._space.size()} architectures and the study took up every one"
            + ("" if self._snap is None else " that was found after snapping")
        )

    def _complete(self, trial: FrozenTrial, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Return an architecture with the choices ``fixed``, unseen if there is one nearby."""
        rng = self._rng(trial, 2 * _ATTEMPTS + 1)
        for _ in range(_RANDOM_TRIES):
            arch: dict[str, Any] = {}
            for name, values in self._values.items():
                if self._space.active(arch, name):
                    drawn = values[int(rng.integers(len(values)))]
                    arch[name] = fixed.get(name, drawn)
            arch = self._snapped(arch, fixed)
            if self._is_new(arch, trial):
                break
        return arch

    def _is_whole(self, fixed: Mapping[str, Any]) -> bool:
        try:
            self._space.check(fixed)
        except ArchitectureError:
            return False
        return True

    def _is_new(self, arch: Mapping[str, Any], trial: FrozenTrial) -> bool:
        self.last_key = self._space.key(arch)
        return not self._ledger.taken(self.last_key, by_other_than=trial.number)

    def _rng(self, trial: FrozenTrial, stream: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, trial.number, stream))
