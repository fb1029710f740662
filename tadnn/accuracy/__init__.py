"""How good a network is: data sets, zero-cost proxies, short training."""

from __future__ import annotations

from tadnn.accuracy.dataset import Dataset, RawDataset, Split
from tadnn.accuracy.evaluation import evaluate
from tadnn.accuracy.noise import noise_for
from tadnn.accuracy.preprocessing import Preprocessing
from tadnn.accuracy.proxies import PROXIES, Proxy, evaluate_proxy, find_proxy
from tadnn.accuracy.registry import SOURCES, load_dataset, require_dataset
from tadnn.accuracy.splitting import stratified_split
from tadnn.accuracy.training import TrainResult, train

__all__ = [
    "PROXIES",
    "SOURCES",
    "Dataset",
    "Preprocessing",
    "Proxy",
    "RawDataset",
    "Split",
    "TrainResult",
    "evaluate",
    "evaluate_proxy",
    "find_proxy",
    "load_dataset",
    "noise_for",
    "require_dataset",
    "stratified_split",
    "train",
]
