"""What a study has evaluated so far, kept up to date in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from optuna.trial import FrozenTrial, Trial, TrialState

from tadnn.errors import ArchitectureError
from tadnn.search.entrants import is_evaluated

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from optuna.study import Study


class Keyed(Protocol):
    """The part of a space that tells architectures apart."""

    def key(self, arch: Mapping[str, Any], /) -> str:
        """Return a stable hash; raise `ArchitectureError` where a choice is missing."""


class Ledger:
    """Every architecture that a study took up, whatever became of it.

    Finished trials never change, so each refresh looks only at those that were open or new.
    Not thread-safe.
    """

    def __init__(self, space: Keyed) -> None:
        self._space = space
        self._keys: dict[int, str] = {}
        self._settled = 0
        self._settled_seen: dict[str, int] = {}
        self._settled_complete: set[str] = set()
        self._clear_open()

    def refresh(self, study: Study) -> None:
        """Read the study's trials; one storage query and no copies."""
        trials = study.get_trials(deepcopy=False)
        while self._settled < len(trials) and trials[self._settled].state.is_finished():
            trial = trials[self._settled]
            self._settled += 1
            key = self.key_of(trial)
            self._keys.pop(trial.number, None)
            if key is not None:
                self._settled_seen.setdefault(key, trial.number)
                if is_evaluated(trial):
                    self._settled_complete.add(key)
        self._clear_open()
        for trial in trials[self._settled :]:
            self._add_open(trial)
        #: Every trial, as it was when this ledger was refreshed.
        self.trials = trials

    def key_of(self, trial: FrozenTrial | Trial) -> str | None:
        """Return the key of a trial's architecture; None where it has none (yet)."""
        known = self._keys.get(trial.number)
        if known is not None:
            return known
        params = trial.params
        if not params:
            return None
        try:
            return self._space.key(params)
        except ArchitectureError:
            # Its worker died while it was writing the choices down, one by one.
            return None

    def remember(self, number: int, key: str) -> None:
        """Take note of an open trial's architecture, to save working it out again."""
        self._keys[number] = key

    def number_of(self, key: str) -> int | None:
        """Return the lowest trial number that took up ``key``."""
        numbers = [seen[key] for seen in (self._settled_seen, self._open_seen) if key in seen]
        return min(numbers, default=None)

    def taken(self, key: str, by_other_than: int) -> bool:
        """Tell whether a trial of another number has this architecture."""
        number = self.number_of(key)
        return number is not None and number != by_other_than

    @property
    def seen_count(self) -> int:
        """How many distinct architectures were taken up: completed, failed or running."""
        return len(self._settled_seen) + sum(k not in self._settled_seen for k in self._open_seen)

    @property
    def complete_count(self) -> int:
        """How many distinct architectures were completed, or ended the first of several stages."""
        return len(self._settled_complete | self._open_complete)

    def _clear_open(self) -> None:
        self._open_seen: dict[str, int] = {}
        self._open_complete: set[str] = set()
        self.running: list[FrozenTrial] = []
        self.waiting: list[FrozenTrial] = []

    def _add_open(self, trial: FrozenTrial) -> None:
        if trial.state == TrialState.RUNNING:
            self.running.append(trial)
        elif trial.state == TrialState.WAITING:
            self.waiting.append(trial)
        key = self.key_of(trial)
        if key is not None:
            self._open_seen.setdefault(key, trial.number)
            if trial.state.is_finished():
                self._keys[trial.number] = key
            if is_evaluated(trial):
                self._open_complete.add(key)
