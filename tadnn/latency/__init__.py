"""Latency models: fitting, predicting, scoring, and the loop that learns a device."""

from tadnn.latency.adapting import adapt
from tadnn.latency.calibrating import calibrate
from tadnn.latency.card import Card
from tadnn.latency.errors import error_summary, pairs_ordered
from tadnn.latency.evaluating import evaluate_kernels, evaluate_nets
from tadnn.latency.extending import extend
from tadnn.latency.fitting import (
    NetTiming,
    calibrate_nets,
    fit_kernels,
)
from tadnn.latency.learning import learn
from tadnn.latency.measuring import Budget
from tadnn.latency.model import LatencyModel
from tadnn.latency.prediction import KernelPredictions, KernelShare, NetPrediction, to_json
from tadnn.latency.scoring import BlockScorer, score
from tadnn.latency.storage import (
    load_latency_model,
    models_for,
    read_card,
    save_latency_model,
)
from tadnn.latency.width import width_of

__all__ = [
    "BlockScorer",
    "Budget",
    "Card",
    "KernelPredictions",
    "KernelShare",
    "LatencyModel",
    "NetPrediction",
    "NetTiming",
    "adapt",
    "calibrate",
    "calibrate_nets",
    "error_summary",
    "evaluate_kernels",
    "evaluate_nets",
    "extend",
    "fit_kernels",
    "learn",
    "load_latency_model",
    "models_for",
    "pairs_ordered",
    "read_card",
    "save_latency_model",
    "score",
    "to_json",
    "width_of",
]
