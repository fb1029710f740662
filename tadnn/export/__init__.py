"""A chosen network as a folder that runs without tadnn."""

from tadnn.export.facts import CardFacts, Measured, PhaseLatency, Predicted, ProxyScore, Trained
from tadnn.export.folder import check_replaceable, export_network, is_exported
from tadnn.export.request import ExportRequest

__all__ = [
    "CardFacts",
    "ExportRequest",
    "Measured",
    "PhaseLatency",
    "Predicted",
    "ProxyScore",
    "Trained",
    "check_replaceable",
    "export_network",
    "is_exported",
]
