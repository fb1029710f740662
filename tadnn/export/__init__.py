"""A chosen network as a folder that runs without tadnn."""

from tadnn.export.folder import export_network, is_exported
from tadnn.export.request import (
    CardFacts,
    ExportRequest,
    Measured,
    PhaseLatency,
    Predicted,
    ProxyScore,
    Trained,
)

__all__ = [
    "CardFacts",
    "ExportRequest",
    "Measured",
    "PhaseLatency",
    "Predicted",
    "ProxyScore",
    "Trained",
    "export_network",
    "is_exported",
]
