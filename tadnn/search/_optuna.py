"""Optuna's samplers and distributions as studies of architectures need them."""

from __future__ import annotations

import warnings
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler

from tadnn.search._genetic import ArchitectureCrossover
from tadnn.spaces import Int


def wrapped_sampler(kind: str, seed: int, crossover: ArchitectureCrossover) -> BaseSampler:
    """Return the sampler of Optuna's that a study's ``sampler`` names."""
    with warnings.catch_warnings():
        # Hooks and groups are marked experimental; the versions that work are pinned.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if kind == "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, child_generation_strategy=crossover)
        if kind == "tpe":
            return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
        if kind == "gp":
            return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        return optuna.samplers.RandomSampler(seed=seed)


def distribution_of(
    choice: object, values: tuple[Any, ...]
) -> IntDistribution | CategoricalDistribution:
    """Return a choice as a distribution of Optuna's."""
    if isinstance(choice, Int):
        return IntDistribution(values[0], values[-1], step=choice.step)
    return CategoricalDistribution(values)
