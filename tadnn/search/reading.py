"""Reading a study as it is now, also while a search writes it."""

from __future__ import annotations

from typing import Any, Final

import optuna
from optuna.trial import FrozenTrial, TrialState

from tadnn.errors import RequestError
from tadnn.search.address import StorageAddress, storage_errors
from tadnn.search.entrants import is_evaluated
from tadnn.search.front import FINALIST_ATTR
from tadnn.search.objective import ERROR_ATTR, RESULT_ATTR
from tadnn.search.owner import Owner
from tadnn.search.spec import StudySpec
from tadnn.search.sqlite_reader import SqliteReader
from tadnn.search.storage import SPEC_ATTR, require_frozen

# Reading samples nothing; Optuna's default sampler would warn about what it guesses.
_ANY: Final = optuna.samplers.RandomSampler()


def read_study(spec: StudySpec, *, unchanged: bool = False) -> optuna.Study:
    """Open a study to read it as it is now, and again later: finished trials are remembered.

    The YAML may have changed since; what the study searches stands in its own attributes.

    Args:
        spec: the study.
        unchanged: refuse a YAML that says something else than the study began with.

    Raises:
        RequestError: it was not searched yet, or is kept in tables of another version.
        CorruptFile: its database is damaged.
        StudyMismatch: it began with another spec, and that matters.
        WorkFailed: another process keeps the database locked.
    """
    address = StorageAddress.of(spec)
    unsearched = RequestError(
        f"the study {spec.name!r} has no results yet: tadnn search comes first"
    )
    storage: optuna.storages.BaseStorage
    if address.path is None:
        storage = address.open()
    elif not address.path.exists() or address.path.stat().st_size == 0:
        raise unsearched
    else:
        storage = SqliteReader(address.path)
    try:
        with storage_errors(address.url):
            study = optuna.load_study(study_name=spec.name, storage=storage, sampler=_ANY)
            if SPEC_ATTR not in study.user_attrs:
                raise unsearched
    except KeyError:
        raise unsearched from None
    if unchanged:
        require_frozen(study, spec)
    return study


def has_results(spec: StudySpec) -> bool:
    """Tell whether a study's database is there; of one on a server that is taken for granted."""
    path = StorageAddress.of(spec).path
    return path is None or (path.is_file() and path.stat().st_size > 0)


def study_progress(study: optuna.Study) -> dict[str, Any]:
    """Return how far a study is, as plain data.

    Returns:
        ``completed`` (distinct architectures; where there are stages, those that ended the first
        one), ``running`` (trials whose process lives, as far
        as can be told), ``failed`` (number and reason of each), ``started`` and ``updated``
        (ISO 8601, None before).
    """
    trials = study.get_trials(deepcopy=False)
    starts = [t.datetime_start for t in trials if t.datetime_start is not None]
    ends = [t.datetime_complete for t in trials if t.datetime_complete is not None]
    done = [t for t in trials if is_evaluated(t) and RESULT_ATTR in t.user_attrs]
    return {
        "completed": len({t.user_attrs[RESULT_ATTR]["key"] for t in done}),
        "running": sum(t.state == TrialState.RUNNING and _is_worked_on(t) for t in trials),
        "failed": [(t.number, _reason(t)) for t in trials if t.state == TrialState.FAIL],
        "started": min(starts).isoformat(timespec="seconds") if starts else None,
        "updated": max(ends).isoformat(timespec="seconds") if ends else None,
    }


def is_searched_here(study: optuna.Study) -> bool:
    """Tell whether a process of this machine evaluates one of the study's trials now."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    owners = [Owner.of(trial.user_attrs) for trial in trials]
    return any(owner is not None and owner.is_here() and owner.is_alive() for owner in owners)


def _reason(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get(ERROR_ATTR) or "its process died")


def _is_worked_on(trial: FrozenTrial) -> bool:
    owner = Owner.of(trial.user_attrs)
    # Whether a process of another machine lives cannot be told from here.
    return owner is not None and (not owner.is_here() or owner.is_alive())


def finalist_facts(study: optuna.Study) -> dict[int, dict[str, Any]]:
    """Return by trial number what the study stored about its finalists."""
    return {
        int(key.removeprefix(FINALIST_ATTR)): dict(facts)
        for key, facts in study.user_attrs.items()
        if key.startswith(FINALIST_ATTR)
    }
