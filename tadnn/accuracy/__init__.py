"""How good a network is: data sets, zero-cost proxies, short training."""

from __future__ import annotations

from tadnn.accuracy.agreement import Agreement, agreement, gain
from tadnn.accuracy.dataset import Dataset, RawDataset, Split
from tadnn.accuracy.evaluation import evaluate
from tadnn.accuracy.noise import noise_for
from tadnn.accuracy.preprocessing import Preprocessing
from tadnn.accuracy.proxies import (
    ENSEMBLES,
    PROXIES,
    Proxy,
    aggregate,
    checked_score,
    evaluate_proxy,
    find_proxy,
    rank_among,
    require_proxy,
    shared_passes,
)
from tadnn.accuracy.registry import SOURCES, load_dataset, require_dataset
from tadnn.accuracy.splitting import stratified_split
from tadnn.accuracy.training import TrainResult, checked_epochs, train

__all__ = [
    "ENSEMBLES",
    "PROXIES",
    "SOURCES",
    "Agreement",
    "Dataset",
    "Preprocessing",
    "Proxy",
    "RawDataset",
    "Split",
    "TrainResult",
    "aggregate",
    "agreement",
    "checked_epochs",
    "checked_score",
    "evaluate",
    "evaluate_proxy",
    "find_proxy",
    "gain",
    "load_dataset",
    "noise_for",
    "rank_among",
    "require_dataset",
    "require_proxy",
    "shared_passes",
    "stratified_split",
    "train",
]
