"""From kernels to whole networks: gaps between launches, and what kernels cost each other.

A network's latency isn't the sum of its kernels': the host launches each one,
and measured alone a kernel finds its data in cache. Per runtime and device

    net = base + scale * sum of kernels + gap * launches
        + a * weight bytes + b * bytes of large outputs

with coefficients fitted on whole networks. They can't be negative, but for the gap of a runtime
whose kernels its own profiler tells: it counts what it adds to every kernel itself, some
microseconds that no network without a profiler takes. A GPU works while the
host goes on launching: where kernels are short, the host's time per launch is what is waited
for, and the two blend smoothly where they are alike. On CPUs a tensor
of 128 KiB or more is fresh memory from the system, page by page, which costs more
than many a kernel (glibc malloc's M_MMAP_THRESHOLD); kernels are measured without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel
from tadnn.latency.errors import error_summary

FEWEST_NETS: Final = 4
_LARGE_BYTES: Final = 128 * 1024
_SHARPNESS: Final = 6.0
_PRIOR: Final = np.array([0.0, 1.0, 0.0, 0.0, 0.0])
_PRIOR_DEVIATION: Final = np.array([50.0, 0.25, 5.0, 100.0, 100.0])
"""Of base, scale, gap, and what 1e6 bytes of weights and of large outputs take: 250 faults of a
page take some 100 us."""
_NOISE: Final = 0.03
_LEAST_NOISE: Final = 0.002
_ROUNDS: Final = 4
_LEAST_SHARE: Final = 0.1
"""Of kernels, that is left of them at least when what a profiler added is taken off."""
_UNCALIBRATED: Final = 0.15
"""The relative deviation of a sum of kernels that was never checked against a network."""


def large_mb(kernel: Kernel, device: DeviceSpec) -> float:
    """Return a kernel's output in 1e6 bytes where the allocator gets it from the system, else 0."""
    if device.kind != "cpu":
        return 0.0
    size = kernel.output_bytes
    return size / 1e6 if size >= _LARGE_BYTES else 0.0


@dataclass(frozen=True)
class NetCost:
    """What a network's latency is made of, before calibration.

    Attributes:
        kernels_us: the sum of its kernels' latencies.
        launches: how many kernels.
        weight_mb: 1e6 bytes of parameters.
        large_mb: 1e6 bytes of outputs that the allocator gets from the system; 0 on GPUs,
            whose allocators keep what they have.
    """

    kernels_us: float
    launches: int
    weight_mb: float
    large_mb: float = 0.0


@dataclass(frozen=True)
class NetCalibration:
    """How kernels add up to a network.

    Attributes:
        base_us: per run.
        scale: times the sum of kernels.
        gap_us: per launch; negative where kernels were told by a profiler that adds to them.
        weights_us: per 1e6 bytes of weights.
        large_us: per 1e6 bytes of large outputs.
        host_us: per launch, on the host, while the device works.
        sigma: relative standard deviation beyond the kernels' own.
        held_out: errors on networks left out of the fit (error_summary).
    """

    base_us: float = 0.0
    scale: float = 1.0
    gap_us: float = 0.0
    weights_us: float = 0.0
    large_us: float = 0.0
    host_us: float = 0.0
    sigma: float = _UNCALIBRATED
    held_out: Mapping[str, Any] = field(default_factory=dict)

    def latency_us(self, cost: NetCost) -> float:
        """Return microseconds of a whole network."""
        device = (
            self.scale * cost.kernels_us
            + self.gap_us * cost.launches
            + self.weights_us * cost.weight_mb
            + self.large_us * cost.large_mb
        )
        if self.gap_us < 0:
            # Kernels smaller than any that were calibrated with still take something.
            device = max(device, _LEAST_SHARE * self.scale * cost.kernels_us)
        if self.host_us:
            device = float(overlapped(device, self.host_us * cost.launches))
        return self.base_us + device

    def to_dict(self) -> dict[str, Any]:
        """Return what the card shows."""
        return {
            "base_us": self.base_us,
            "scale": self.scale,
            "gap_us": self.gap_us,
            "weights_us": self.weights_us,
            "large_us": self.large_us,
            "host_us": self.host_us,
            "sigma": self.sigma,
            "held_out": dict(self.held_out),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NetCalibration:
        """Return what :meth:`to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: something is missing or of another type.
        """
        return cls(
            float(data["base_us"]),
            float(data["scale"]),
            float(data["gap_us"]),
            float(data["weights_us"]),
            float(data["large_us"]),
            # Models of before there was one have none.
            float(data.get("host_us", 0.0)),
            float(data["sigma"]),
            dict(data["held_out"]),
        )


def overlapped(device_us: np.ndarray | float, host_us: np.ndarray | float) -> np.ndarray:
    """Return the time of two that work at once: the longer's, a little more where alike."""
    longer = np.maximum(device_us, host_us)
    shorter = np.minimum(device_us, host_us)
    both: np.ndarray = longer * (1 + (shorter / longer) ** _SHARPNESS) ** (1 / _SHARPNESS)
    return both


def fit_nets(
    costs: list[NetCost], latency_us: np.ndarray, observed: bool = False
) -> NetCalibration:
    """Fit to measured networks, minimising relative errors.

    Each network's error is taken from a fit without it; these are reported.

    Args:
        costs: what the networks are made of.
        latency_us: measured, [n]; n >= :data:`FEWEST_NETS`.
        observed: whether the kernels' latencies come from a profiler of whole networks.
    """
    held_out = np.empty(len(costs))
    for i, cost in enumerate(costs):
        others = [*costs[:i], *costs[i + 1 :]]
        held_out[i] = _fit(others, np.delete(latency_us, i), observed).latency_us(cost)
    error = held_out / latency_us - 1
    sigma = max(0.01, float(np.sqrt(np.mean(error**2))))
    fitted = _fit(costs, latency_us, observed)
    return replace(fitted, sigma=sigma, held_out=error_summary(held_out, latency_us))


def _fit(costs: list[NetCost], latency_us: np.ndarray, observed: bool) -> NetCalibration:
    """Return the most probable coefficients under a normal prior, within their bounds.

    Networks that are narrower and wider forms of one another have more of everything at once:
    they fit as well without the kernels' sum, and then say nothing about widths. What the
    coefficients can be is known; timings move them as far as their noise allows.
    """
    from scipy.optimize import lsq_linear

    design = np.array(
        [[1.0, c.kernels_us, float(c.launches), c.weight_mb, c.large_mb] for c in costs]
    )
    rows = design / latency_us[:, None]
    n, d = rows.shape
    least = np.zeros(d)
    if observed:  # of no network's kernels less than a share is left
        mean_us = min(c.kernels_us / c.launches for c in costs)
        least[2] = -(1 - _LEAST_SHARE) * mean_us
    noise = _NOISE
    for _ in range(_ROUNDS):
        solution = lsq_linear(
            np.concatenate([rows / noise, np.diag(1 / _PRIOR_DEVIATION)]),
            np.concatenate([np.full(n, 1 / noise), _PRIOR / _PRIOR_DEVIATION]),
            bounds=(least, np.full(d, np.inf)),
            method="bvls",
        ).x
        # Few networks are fitted closely whatever their noise is.
        seen = float(np.sum((rows @ solution - 1) ** 2))
        noise = max(_LEAST_NOISE, float(np.sqrt((seen + d * _NOISE**2) / (n + d))))
    base_us, scale_of_sum, gap_us, weights_us, large_us = (float(x) for x in solution)
    return NetCalibration(base_us, scale_of_sum, gap_us, weights_us, large_us)
