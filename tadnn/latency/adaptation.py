"""What a handful of a device's kernels say about a model that never saw it.

What a fit on other devices gets wrong on a new one is mostly a scale (clocks that throttle, a
driver, another memory), partly a matter of the op, partly a trend in how large a kernel is and
whether arithmetic or memory binds it, and partly that it is more like one of the known devices
than like another: what the model says of a kernel on each of them tells that. A Gaussian process
over the log ratio of measured to predicted has just these parts (Rasmussen & Williams 2006,
section 2.7: explicit basis functions with a prior): a device-wide factor, an offset per op that
shrinks towards it, linear trends, weights of the known devices, and a smooth rest, which a
handful of rows leaves at zero and more rows bring in. How large each part may be is set by the
marginal likelihood under a prior; deviations are calibrated by the leave-one-out residuals,
which have a closed form (section 5.4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from tadnn.hardware import DeviceSpec
from tadnn.kernels import OPS
from tadnn.latency.adjustment import Adjustment
from tadnn.latency.batch import KernelBatch
from tadnn.latency.op_model import OpModel
from tadnn.latency.quantization import peak_of

_MOST_TO_TUNE: Final = 300
_FEWEST_OF_OP: Final = 3
"""An op with fewer rows is known by what the others say; it isn't in range."""
_FLOOR: Final = 0.005
_OUTSIDE: Final = 0.25
_SHRINK: Final = 10.0
"""The leave-one-out residuals count from so many rows on; before, the process is believed."""
# Log standard deviations and length before any data, and how far in logs data moves them.
_PRIOR: Final = {
    "device": math.log(0.3),
    "op": math.log(0.1),
    "slope": math.log(0.1),
    "smooth": math.log(0.1),
    "length": math.log(1.0),
    "peers": math.log(0.2),
    "alike": math.log(0.1),
    "reach": math.log(0.3),
    "noise": math.log(0.05),
}
_MOVES: Final = 1.0
_FEATURES: Final = 8
_PLAIN, _OF_PEERS = slice(1, 1 + _FEATURES), slice(1 + _FEATURES, None)


@dataclass(frozen=True)
class Adaptation(Adjustment):
    """Log ratios of a device's measured kernels to a model's predictions, as a process.

    Attributes:
        device: the device's slug.
        peers: the devices that it is compared with.
        ops: of the rows, by number in ``x``'s first column.
        x: per row the op's number, the features, and what is said of the peers,
            [n, 1 + 8 + peers].
        y: log(measured / predicted), [n].
        scales: logarithms: the parts' standard deviations and the length; see ``_PRIOR``.
        stretch: what deviations are multiplied by to be honest.
        held_out: per op and overall, errors on rows left out one at a time.
    """

    kind: ClassVar[str] = "adaptation"

    device: str
    peers: tuple[DeviceSpec, ...]
    ops: tuple[str, ...]
    x: np.ndarray
    y: np.ndarray
    scales: Mapping[str, float]
    stretch: float = 1.0
    held_out: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        factor = np.linalg.cholesky(_covariance(self.x, self.scales))
        # Frozen, and computed once: what every prediction solves with.
        object.__setattr__(self, "_weights", _solve(factor, self.y))
        object.__setattr__(self, "_factor", factor)

    @classmethod
    def fit(
        cls,
        device: str,
        peers: Sequence[DeviceSpec],
        ops: Sequence[str],
        x: np.ndarray,
        y: np.ndarray,
        seed: int,
    ) -> Adaptation:
        """Fit to rows as :class:`Adaptation` describes them; ``seed`` picks what tunes many."""
        pick = np.random.default_rng(seed).permutation(len(y))[:_MOST_TO_TUNE]
        scales = _tuned(x[pick], y[pick])
        fitted = cls(device, tuple(peers), tuple(ops), x, y, scales)
        mean, deviation = fitted.left_out()
        z = np.abs(mean - y) / np.maximum(deviation, _FLOOR)
        stretch = (len(y) * float(np.quantile(z, 0.68)) + _SHRINK) / (len(y) + _SHRINK)
        return replace(fitted, stretch=float(np.clip(stretch, 0.5, 3.0)))

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what is said of each row by the others: mean and deviation, [n] each."""
        inverse = _solve(self._factor, np.eye(len(self.y)))  # type: ignore[attr-defined]
        diagonal = np.diag(inverse)
        mean = self.y - self._weights / diagonal  # type: ignore[attr-defined]
        return mean, self.stretch / np.sqrt(diagonal)

    def log_factor(self, op: OpModel, batch: KernelBatch, latency_us: np.ndarray) -> np.ndarray:
        """Return the logarithm of the factor, [n]."""
        cross = _cross(self._rows(op, batch, latency_us), self.x, self.scales)
        factor: np.ndarray = cross @ self._weights  # type: ignore[attr-defined]
        return factor

    def adjust(
        self,
        op: OpModel,
        batch: KernelBatch,
        latency_us: np.ndarray,
        sigma: np.ndarray,
        inside: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return corrected microseconds and deviations; see the base class."""
        from scipy.linalg import solve_triangular

        x = self._rows(op, batch, latency_us)
        cross = _cross(x, self.x, self.scales)
        mean = cross @ self._weights  # type: ignore[attr-defined]
        half = solve_triangular(self._factor, cross.T, lower=True)  # type: ignore[attr-defined]
        s = {name: math.exp(value) for name, value in self.scales.items()}
        fixed = ("device", "op", "smooth", "alike", "noise")
        own = sum(s[part] ** 2 for part in fixed) + (
            s["slope"] ** 2 * np.sum(x[:, _PLAIN] ** 2, axis=1)
            + s["peers"] ** 2 * np.sum(x[:, _OF_PEERS] ** 2, axis=1)
        )
        deviation = np.sqrt(np.maximum(own - np.sum(half**2, axis=0), 0)) * self.stretch
        known = inside & self.measured(batch.op)
        deviation = np.maximum(deviation, np.where(known, _FLOOR, _OUTSIDE))
        return latency_us * np.exp(mean), deviation

    def measured(self, op: str) -> bool:
        """Tell whether there are enough rows of the op to know it by."""
        if op not in self.ops:
            return False
        return int(np.sum(self.x[:, 0] == self.ops.index(op))) >= _FEWEST_OF_OP

    def _rows(self, op: OpModel, batch: KernelBatch, latency_us: np.ndarray) -> np.ndarray:
        number = self.ops.index(batch.op) if batch.op in self.ops else -1
        return np.column_stack(
            [np.full(len(batch), number), features(op, batch, latency_us, self.peers)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what the card shows."""
        return {
            "kind": self.kind,
            "device": self.device,
            "peers": [spec.to_dict() for spec in self.peers],
            "ops": list(self.ops),
            "scales": {name: float(value) for name, value in self.scales.items()},
            "stretch": self.stretch,
            "held_out": dict(self.held_out),
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the rows."""
        return {"x": self.x, "y": self.y}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Adaptation:
        """Return what :meth:`to_dict` and :meth:`to_arrays` gave.

        Raises:
            KeyError, TypeError, ValueError: something is missing or wrong.
        """
        x, y = np.asarray(arrays["x"], dtype=float), np.asarray(arrays["y"], dtype=float)
        peers = tuple(DeviceSpec.from_dict(spec) for spec in data["peers"])
        if x.shape != (len(y), 1 + _FEATURES + len(peers)) or not np.all(np.isfinite(x)):
            raise ValueError("the rows of an adaptation are damaged")
        return cls(
            str(data["device"]),
            peers,
            tuple(str(op) for op in data["ops"]),
            x,
            y,
            {name: float(data["scales"][name]) for name in _PRIOR},
            float(data["stretch"]),
            dict(data["held_out"]),
        )


def features(
    op: OpModel, batch: KernelBatch, latency_us: np.ndarray, peers: Sequence[DeviceSpec]
) -> np.ndarray:
    """Return what trends may follow, [n, 8 + peers], each of the order of one.

    Log latency, arithmetic against memory, waves, what the last wave leaves idle, the sizes
    of the matrix product (zero where there is none), and for each peer how much further above
    the physical core a kernel is there than here; zero where the peer's weren't measured, and
    where the device's own traits are known, which hold what it has of others.
    """
    here = np.log(latency_us / op.core.latency_us(batch))
    device = batch.device
    memory = np.log(batch.bytes_moved / (device.bandwidth_gbps * 1e3))
    work = np.log(np.maximum(batch.flops, 1.0) / (peak_of(device, batch.dtype) * 1e6))
    waves, used = batch.occupancy
    columns = [
        (np.log(latency_us) - 6) / 3,
        np.clip(work - memory, -4, 4) / 3 if np.any(batch.flops) else np.zeros(len(batch)),
        np.log2(waves) / 5,
        -np.log(used),
    ]
    matrix = OPS[batch.op].matrix(batch.dims)
    if matrix is None:
        columns += [np.zeros(len(batch))] * 4
    else:
        sizes = [np.asarray(size, dtype=float) * np.ones(len(batch)) for size in matrix]
        groups, m, n, k = (np.log2(size) for size in sizes)
        columns += [groups / 8, (m - 9) / 5, (n - 9) / 5, (k - 9) / 5]
    for peer in peers:
        there = replace(batch, device=peer)
        compared = peer.slug in op.devices and device.slug not in op.devices
        if compared and op.learner is not None:
            columns.append(np.log(op.latency_us(there) / op.core.latency_us(there)) - here)
        else:
            columns.append(np.zeros(len(batch)))
    return np.column_stack(columns)


def _cross(a: np.ndarray, b: np.ndarray, scales: Mapping[str, float]) -> np.ndarray:
    s = {name: math.exp(value) for name, value in scales.items()}
    same = a[:, :1] == b[:, 0]
    inner, apart = _products(a[:, _PLAIN], b[:, _PLAIN])
    inner_peers, apart_peers = _products(a[:, _OF_PEERS], b[:, _OF_PEERS])
    smooth = np.exp(-apart / (2 * s["length"] ** 2))
    alike = np.exp(-apart_peers / (2 * s["reach"] ** 2))
    covariance: np.ndarray = (
        s["device"] ** 2
        + s["op"] ** 2 * same
        + s["slope"] ** 2 * inner
        + s["peers"] ** 2 * inner_peers
        + s["alike"] ** 2 * alike
        # Half of what is smooth is the op's own.
        + s["smooth"] ** 2 * smooth * (0.5 + 0.5 * same)
    )
    return covariance


def _products(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows' inner products and squared distances, [n, m] each."""
    inner = a @ b.T
    apart = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2 * inner
    return inner, np.maximum(apart, 0)


def _covariance(x: np.ndarray, scales: Mapping[str, float]) -> np.ndarray:
    return _cross(x, x, scales) + math.exp(2 * scales["noise"]) * np.eye(len(x))


def _solve(factor: np.ndarray, y: np.ndarray) -> np.ndarray:
    from scipy.linalg import cho_solve

    solved: np.ndarray = cho_solve((factor, True), y)
    return solved


def _tuned(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the scales that maximise the marginal likelihood times their prior."""
    from scipy.optimize import minimize

    names, prior = list(_PRIOR), np.array(list(_PRIOR.values()))

    def loss(point: np.ndarray) -> float:
        factor = np.linalg.cholesky(_covariance(x, dict(zip(names, point, strict=True))))
        likelihood = 0.5 * y @ _solve(factor, y) + np.log(np.diag(factor)).sum()
        return float(likelihood + 0.5 * np.sum(((point - prior) / _MOVES) ** 2))

    bounds = [(p - 3, p + 3) for p in prior]
    found = minimize(loss, prior, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return dict(zip(names, (float(v) for v in found.x), strict=True))
