"""tadnn: neural architecture search for hardware-aware design.

The names below are imported when they are first used, so that ``import tadnn``
is quick and torch is loaded only where something runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tadnn.latency import LatencyModel, load_latency_model, score
    from tadnn.nets import Net
    from tadnn.search import load_spec, run_search
    from tadnn.spaces import Space, load_space

_HOMES = {
    "LatencyModel": "tadnn.latency",
    "Net": "tadnn.nets",
    "Space": "tadnn.spaces",
    "load_latency_model": "tadnn.latency",
    "load_space": "tadnn.spaces",
    "load_spec": "tadnn.search",
    "run_search": "tadnn.search",
    "score": "tadnn.latency",
}

__all__ = [
    "LatencyModel",
    "Net",
    "Space",
    "load_latency_model",
    "load_space",
    "load_spec",
    "run_search",
    "score",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tadnn' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
