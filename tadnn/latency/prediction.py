"""What is predicted of kernels and networks, as records and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tadnn.kernels import Kernel

if TYPE_CHECKING:
    from tadnn.latency.model import LatencyModel


@dataclass(frozen=True)
class KernelPredictions:
    """Microseconds, their standard deviation, and whether in the profiled range; each [n]."""

    latency_us: np.ndarray
    std_us: np.ndarray
    in_range: np.ndarray


@dataclass(frozen=True)
class KernelShare:
    """What one kernel contributes to a network; latency and deviation are per launch.

    ``profiled`` is False where nobody measured a kernel of its kind: physics alone prices it.
    """

    kernel: Kernel
    count: int
    latency_us: float
    std_us: float
    in_range: bool
    waves: int
    utilisation: float
    profiled: bool = True


@dataclass(frozen=True)
class NetPrediction:
    """A network's latency per batch in milliseconds, and where it goes, slowest share first.

    Attributes:
        opaque: operators that the vocabulary lacks, and how often each stands in the network.
            They are priced by what arithmetic and memory take on the device, a factor of two
            either way, and are never in range.
    """

    latency_ms: float
    std_ms: float
    in_range: bool
    batch: int
    kernels: tuple[KernelShare, ...]
    opaque: tuple[tuple[str, int], ...] = ()

    @property
    def unprofiled_share(self) -> float:
        """The share, 0 to 1, of the kernels' time that physics alone prices: never measured."""
        total = sum(s.latency_us * s.count for s in self.kernels)
        return sum(s.latency_us * s.count for s in self.kernels if not s.profiled) / total


def to_json(prediction: NetPrediction, model: LatencyModel) -> dict[str, Any]:
    """Return a prediction as the JSON that ``tadnn latency --json`` prints."""
    return {
        "latency_ms": prediction.latency_ms,
        "std_ms": prediction.std_ms,
        "in_range": prediction.in_range,
        "batch": prediction.batch,
        "latency_model": model.name,
        "unprofiled_share": prediction.unprofiled_share,
        "kernels": [
            {
                "kernel": s.kernel.key,
                "count": s.count,
                "latency_us": s.latency_us,
                "std_us": s.std_us,
                "in_range": s.in_range,
                "waves": s.waves,
                "utilisation": s.utilisation,
                "profiled": s.profiled,
            }
            for s in prediction.kernels
        ],
        "opaque": [{"op": op, "count": count} for op, count in prediction.opaque],
    }
