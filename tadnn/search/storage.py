"""Studies in their storage, and what a study may never change once it began."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock

from tadnn.errors import RequestError, StudyMismatch
from tadnn.files import ensure_writable, environment
from tadnn.search.address import StorageAddress, storage_errors
from tadnn.search.spec import StudySpec, require_same, study_folder, study_storage

SPEC_ATTR = "tadnn:spec"
SPACE_ATTR = "tadnn:space"
MODEL_ATTR = "tadnn:latency_model"
ENVIRONMENT_ATTR = "tadnn:environment"
INPUT_ATTR = "tadnn:input_shape"
PROXY_ATTR = "tadnn:proxy"

_DIRECTIONS = {"accuracy": optuna.study.StudyDirection.MAXIMIZE}


# Reading a study samples nothing; Optuna's default sampler would warn about what it guesses.
_ANY = optuna.samplers.RandomSampler()


def study_lock(folder: Path) -> FileLock:
    """Return the lock that serialises who takes which trial; released when its holder dies."""
    return FileLock(folder / ".lock", poll_interval=0.005)


def directions(objectives: Sequence[str]) -> list[optuna.study.StudyDirection]:
    """Return Optuna's directions: accuracy is maximised, everything else minimised."""
    minimise = optuna.study.StudyDirection.MINIMIZE
    return [_DIRECTIONS.get(objective, minimise) for objective in objectives]


def create_study(
    spec: StudySpec,
    storage: optuna.storages.BaseStorage,
    spaces: Mapping[str, str],
    latency_model: Mapping[str, Any] | None,
    input_shape: Sequence[int],
    proxy: Mapping[str, Any] | None = None,
) -> optuna.Study:
    """Create the study or resume it, and freeze what it may never change.

    Args:
        spec: the study.
        storage: an open storage.
        spaces: hash of every space by name.
        latency_model: name, hash, device and setting; None without one.
        input_shape: (C, H, W) of the networks.
        proxy: what stands behind ``proxy: auto``; None where nothing does.

    Raises:
        StudyMismatch: the study began with another spec, space, latency model or proxy.
    """
    study = optuna.create_study(
        storage=storage,
        study_name=spec.name,
        sampler=_ANY,
        directions=directions(spec.objectives),
        load_if_exists=True,
    )
    frozen = study.user_attrs
    if SPEC_ATTR not in frozen:
        if study.get_trials(deepcopy=False):
            raise StudyMismatch(
                f"the storage {study_storage(spec)} has a study {spec.name!r} that tadnn did not "
                "make; give this one another name or storage"
            )
        _freeze(study, spec, spaces, latency_model, input_shape, proxy)
        return study
    require_frozen(study, spec)
    require_same("space", frozen[SPACE_ATTR], dict(spaces))
    require_same("latency model", frozen.get(MODEL_ATTR) or {}, dict(latency_model or {}))
    require_same("proxy", frozen.get(PROXY_ATTR) or {}, dict(proxy or {}))
    return study


def find_study(spec: StudySpec) -> optuna.Study:
    """Open the study to read and to write it; `read_study` is the fast way to read alone.

    Raises:
        RequestError: it was not searched yet.
        CorruptFile: its database is damaged.
        StudyMismatch: it began with another spec.
    """
    address = StorageAddress.of(spec)
    unsearched = f"the study {spec.name!r} has no results yet: tadnn search comes first"
    if address.path is not None and not address.path.exists():
        raise RequestError(unsearched)
    try:
        with storage_errors(address.url):
            study = optuna.load_study(study_name=spec.name, storage=address.open(), sampler=_ANY)
    except KeyError:
        raise RequestError(unsearched) from None
    if SPEC_ATTR not in study.user_attrs:
        raise RequestError(unsearched)
    require_frozen(study, spec)
    return study


def is_begun(spec: StudySpec) -> bool:
    """Tell whether the study was begun by an earlier search.

    Raises:
        CorruptFile: its database is damaged.
    """
    address = StorageAddress.of(spec)
    if address.path is not None and not address.path.exists():
        return False
    with storage_errors(address.url):
        summaries = optuna.get_all_study_summaries(address.open(), include_best_trial=False)
    return any(s.study_name == spec.name and SPEC_ATTR in s.user_attrs for s in summaries)


def frozen_model(spec: StudySpec) -> dict[str, Any] | None:
    """Return the latency model that the study froze; None before it began, or without one."""
    address = StorageAddress.of(spec)
    if address.path is not None and not address.path.exists():
        return None
    with storage_errors(address.url):
        for summary in optuna.get_all_study_summaries(address.open(), include_best_trial=False):
            if summary.study_name == spec.name:
                model: dict[str, Any] | None = summary.user_attrs.get(MODEL_ATTR)
                return model
    return None


def results_folder(spec: StudySpec) -> Path:
    """Return the study's folder, created and writable.

    Raises:
        Unwritable: it cannot be written.
    """
    folder = study_folder(spec)
    ensure_writable(folder)
    return folder


def _freeze(
    study: optuna.Study,
    spec: StudySpec,
    spaces: Mapping[str, str],
    latency_model: Mapping[str, Any] | None,
    input_shape: Sequence[int],
    proxy: Mapping[str, Any] | None,
) -> None:
    study.set_user_attr(SPACE_ATTR, dict(spaces))
    study.set_user_attr(MODEL_ATTR, None if latency_model is None else dict(latency_model))
    study.set_user_attr(INPUT_ATTR, list(input_shape))
    study.set_user_attr(ENVIRONMENT_ATTR, environment())
    if proxy is not None:
        study.set_user_attr(PROXY_ATTR, dict(proxy))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(spec.objectives))
    # Last: it marks the study as begun.
    study.set_user_attr(SPEC_ATTR, spec.canonical())


def require_frozen(study: optuna.Study, spec: StudySpec) -> None:
    """Check that a study searches what its spec says.

    Raises:
        StudyMismatch: it began with another spec.
    """
    old = StudySpec.model_validate(study.user_attrs[SPEC_ATTR])
    require_same("spec", old.frozen(), spec.frozen())
    # Optuna ignores other directions without a word.
    if study.directions != directions(spec.objectives):
        raise StudyMismatch(
            f"the storage's study {spec.name!r} has the directions "
            f"{', '.join(d.name.lower() for d in study.directions)}, which the objectives "
            f"{', '.join(spec.objectives)} do not have"
        )
