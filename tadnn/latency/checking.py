"""What measurements can't be: mixed, contradictory, or in another unit.

Nothing runs faster than the device's arithmetic and memory allow. Nominal figures are beaten a
little (boost clocks, tensors that stay in a cache) and by some algorithms a lot (Winograd's and
Fourier transforms in place of a convolution), but never tenfold; a column in another unit is
off a thousandfold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tadnn.errors import TableError
from tadnn.hardware import DeviceSpec
from tadnn.kernels import OPAQUE, Kernel, KernelRow
from tadnn.latency.batch import KernelBatch
from tadnn.runtimes import Setting

BEATEN_BY: Final = 10.0
"""How far below the roofline a latency may lie before it isn't believed."""
_LEAST_US: Final = {"gpu": 0.3, "cpu": 0.02}
"""No launch takes less."""
_SLOWEST: Final = 150.0
"""How many times the roofline and a generous launch the typical row may take."""
_LAUNCH_US: Final = 20.0
_CONTRADICTION: Final = 1.5
"""Rows of one kernel that are further apart than so many times aren't one kernel's noise."""
_SHOWN: Final = 3


def floor_us(kernels: Sequence[Kernel], device: DeviceSpec, threads: int) -> np.ndarray:
    """Return the microseconds that kernels take at the very least, [n]."""
    least = np.empty(len(kernels))
    by_op: dict[tuple[str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        by_op.setdefault((kernel.op, kernel.dtype), []).append(i)
    for at in by_op.values():
        batch = KernelBatch.of([kernels[i] for i in at], device, threads)
        least[at] = np.maximum(*_plain_roofline(batch)) / BEATEN_BY
    return np.maximum(least, _LEAST_US[device.kind])


def check_rows(device: DeviceSpec, rows: Sequence[KernelRow], setting: Setting) -> None:
    """Check a kernel table before anything is fitted to it.

    Raises:
        TableError: kernels of another dtype, rows of one kernel that contradict each other, or
            latencies that the device can't reach or that are a thousandfold off.
    """
    for row in rows:
        if row.kernel.dtype != setting.dtype:
            raise TableError(
                f"the table of {device.slug} holds {setting.dtype} kernels, one dtype a model; "
                f"got {row.kernel.key}"
            )
    found = contradictions(rows)
    if found:
        shown = "; ".join(
            f"{c['kernel']}: {c['rows']} rows from {c['least_us']:.6g} to {c['most_us']:.6g} us"
            for c in found[:_SHOWN]
        )
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise TableError(
            f"rows of one kernel agree within a factor of {_CONTRADICTION}; in the table of "
            f"{device.slug}, {len(found)} kernels don't ({shown}{more}). Are two devices or two "
            "settings mixed in one table?"
        )
    # Opaque kernels aren't fitted: what they do is not known, nor how fast it may be.
    rows = [row for row in rows if row.kernel.op != OPAQUE]
    if not rows:
        return
    kernels = [row.kernel for row in rows]
    latency = np.array([row.latency_us for row in rows])
    least = floor_us(kernels, device, setting.threads)
    under = np.flatnonzero(latency < least)
    if len(under):
        worst = int(under[np.argmin(latency[under] / least[under])])
        raise TableError(
            f"no kernel is faster than a tenth of what arithmetic and memory take on "
            f"{device.slug}; got {latency[worst]:.6g} us for {kernels[worst].key}, where the "
            f"least is {least[worst]:.3g} us ({len(under)} of {len(rows)} rows are below it). "
            f"{_guess(latency[worst], least[worst], 'latency_us', ('milliseconds', 'seconds'))}"
        )
    # A few rows may be odd; a column in another unit is off from end to end.
    ratio = float(np.median(latency / (BEATEN_BY * least + _LAUNCH_US)))
    if ratio > _SLOWEST:
        raise TableError(
            f"the typical kernel takes at most {_SLOWEST:.0f} times what arithmetic, memory and a "
            f"launch take on {device.slug}; got {ratio:.0f} times. Is latency_us in nanoseconds?"
        )


def check_timings(
    device: DeviceSpec,
    launched: Sequence[Mapping[Kernel, int]],
    names: Sequence[str],
    latency_ms: np.ndarray,
    threads: int,
) -> None:
    """Check timings of whole networks before anything is fitted to them.

    Args:
        device: where they were measured.
        launched: per network its kernels, and how often each.
        names: of the networks, for messages.
        latency_ms: measured, [n].
        threads: CPU threads of one operator.

    Raises:
        TableError: latencies that the device can't reach or that are a thousandfold off.
    """
    least, launches = np.empty(len(names)), np.empty(len(names))
    for i, counts in enumerate(launched):
        us = floor_us(list(counts), device, threads)
        least[i] = us @ np.array(list(counts.values()), dtype=float) / 1e3
        launches[i] = sum(counts.values())
    under = np.flatnonzero(latency_ms < least)
    if len(under):
        worst = int(under[np.argmin(latency_ms[under] / least[under])])
        raise TableError(
            f"no network is faster than a tenth of what arithmetic and memory take on "
            f"{device.slug}; got {latency_ms[worst]:.6g} ms for {names[worst]}, where the least "
            f"is {least[worst]:.3g} ms. "
            f"{_guess(latency_ms[worst], least[worst], 'latency_ms', ('seconds',))}"
        )
    ratio = float(np.median(latency_ms / (BEATEN_BY * least + launches * _LAUNCH_US / 1e3)))
    if ratio > _SLOWEST:
        raise TableError(
            f"the typical network takes at most {_SLOWEST:.0f} times what arithmetic, memory and "
            f"launches take on {device.slug}; got {ratio:.0f} times. "
            "Is latency_ms in microseconds?"
        )


def contradictions(rows: Sequence[KernelRow]) -> list[dict[str, Any]]:
    """Return the kernels whose rows are too far apart for noise, the furthest first.

    Each as ``kernel``, ``rows``, ``least_us``, ``median_us`` and ``most_us``.
    """
    by_kernel: dict[Kernel, list[float]] = {}
    for row in rows:
        by_kernel.setdefault(row.kernel, []).append(row.latency_us)
    found = [
        {
            "kernel": kernel.key,
            "rows": len(values),
            "least_us": min(values),
            "median_us": float(np.median(values)),
            "most_us": max(values),
        }
        for kernel, values in by_kernel.items()
        if max(values) > _CONTRADICTION * min(values)
    ]
    return sorted(found, key=lambda c: (-c["most_us"] / c["least_us"], c["kernel"]))


def merged_rows(rows: Sequence[KernelRow]) -> dict[Kernel, float]:
    """Return microseconds by kernel; rows of one kernel, which agree, by their geometric mean."""
    logs: dict[Kernel, list[float]] = {}
    for row in rows:
        logs.setdefault(row.kernel, []).append(float(np.log(row.latency_us)))
    return {kernel: float(np.exp(np.mean(values))) for kernel, values in logs.items()}


def _plain_roofline(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    from tadnn.latency.quantization import peak_of, slots_of

    share = slots_of(batch.device, batch.threads) / batch.device.units
    compute = batch.flops / (peak_of(batch.device, batch.dtype) * share * 1e6)
    return compute, batch.bytes_moved / (batch.device.bandwidth_gbps * 1e3)


def _guess(got: float, least: float, column: str, units: Sequence[str]) -> str:
    """Guess the unit: the first, a thousandfold a step, that lifts the latency off the floor."""
    for step, unit in enumerate(units, 1):
        if got * 1000**step >= least:
            return f"Is {column} in {unit}?"
    return f"Is {column} in {units[-1]}, or the device another?"
