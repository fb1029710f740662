"""Predicting the latency of kernels and networks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tadnn.errors import SettingMismatch
from tadnn.hardware import DeviceSpec
from tadnn.kernels import Kernel
from tadnn.latency.adjustment import Adjustment
from tadnn.latency.batch import KernelBatch
from tadnn.latency.card import Card
from tadnn.latency.memory import Memory
from tadnn.latency.nets import NetCalibration, NetCost, large_mb
from tadnn.latency.op_model import OpModel
from tadnn.latency.prediction import KernelPredictions, KernelShare, NetPrediction
from tadnn.latency.stand_ins import with_stand_ins
from tadnn.nets import Net, Opaque
from tadnn.runtimes import Setting, find_runtime, lower_net

if TYPE_CHECKING:
    from tadnn.latency.scoring import BlockScorer

_MOST_REMEMBERED: Final = 50_000

Known = tuple[float, float, bool]
"""Microseconds, their standard deviation, whether in range."""

Cost = tuple[float, float]
"""Microseconds, and the 1e6 bytes of output that :func:`large_mb` counts."""


class LatencyModel:
    """A predictor for one device in one setting; made by ``load_latency_model``.

    Predictions are remembered, so one model belongs to one thread.

    Args:
        card: the facts.
        ops: the predictor per op.
        nets: how kernels add up.
        device: the device predicted for; one of the card's, or one never seen.
        hash: identifies card and numbers; empty until it is saved.
        adjustments: corrections of single devices, applied in order; those of another device
            stay without effect.

    Attributes:
        scorers: by batch size; see :func:`tadnn.latency.score`.

    Raises:
        SettingMismatch: the device is a CPU and the card's are GPUs, or the reverse.
    """

    def __init__(
        self,
        card: Card,
        ops: Mapping[str, OpModel],
        nets: NetCalibration,
        device: DeviceSpec,
        hash: str = "",
        adjustments: Sequence[Adjustment] = (),
    ) -> None:
        kinds = {known.kind for known in card.devices}
        if device.kind not in kinds:
            raise SettingMismatch(
                f"latency model {card.name} predicts a {' or '.join(sorted(kinds))}; "
                f"got {device.slug}, a {device.kind}"
            )
        self.card, self.ops, self.nets, self.device, self.hash = card, dict(ops), nets, device, hash
        self._complete = with_stand_ins(self.ops)
        self.adjustments = tuple(adjustments)
        self._adjusting = [a for a in self.adjustments if a.device == device.slug]
        self.scorers: dict[int, BlockScorer] = {}
        self._remembered: Memory[Kernel, Known] = Memory(_MOST_REMEMBERED)
        self._costs: Memory[Kernel, Cost] = Memory(_MOST_REMEMBERED)

    @property
    def name(self) -> str:
        """NAME, or NAME@DEVICE where the model serves several or another device."""
        slugs = [device.slug for device in self.card.devices]
        plain = slugs == [self.device.slug]
        return self.card.name if plain else f"{self.card.name}@{self.device.slug}"

    @property
    def setting(self) -> Setting:
        """The setting it is fitted for."""
        return self.card.setting

    @property
    def calibrated(self) -> bool:
        """Whether whole networks told what kernels that nobody measured have in common here."""
        return any(adjustment.common_known for adjustment in self._adjusting)

    def on(self, device: DeviceSpec) -> LatencyModel:
        """Return the same model for another device.

        Raises:
            SettingMismatch: it is of another kind than those of the fit.
        """
        return LatencyModel(self.card, self.ops, self.nets, device, self.hash, self.adjustments)

    def predict(self, kernels: Sequence[Kernel]) -> KernelPredictions:
        """Predict kernels, [n] each.

        Raises:
            SettingMismatch: a kernel's dtype isn't the setting's.
        """
        n = len(kernels)
        latency, std, inside = np.empty(n), np.empty(n), np.empty(n, dtype=bool)
        for op, at, batch in self._batches(kernels):
            us, std_us, within = self.op(op).predict(batch)
            if self._adjusting:
                sigma, known = std_us / us, self.op(op).holds(batch)
                for adjustment in self._adjusting:
                    us, sigma = adjustment.adjust(self.op(op), batch, us, sigma, known)
                    within = within | (known & adjustment.measured(op))
                us = self._bounded(us, batch)
                std_us = us * sigma
            latency[at], std[at], inside[at] = us, std_us, within
        return KernelPredictions(_rounded(latency), _rounded(std), inside)

    def predict_us(self, kernels: Sequence[Kernel]) -> np.ndarray:
        """Predict kernels' microseconds alone, [n].

        Raises:
            SettingMismatch: a kernel's dtype isn't the setting's.
        """
        latency = np.empty(len(kernels))
        for op, at, batch in self._batches(kernels):
            us = self.op(op).latency_us(batch)
            for adjustment in self._adjusting:
                us = us * np.exp(adjustment.log_factor(self.op(op), batch, us))
            latency[at] = self._bounded(us, batch)
        return _rounded(latency)

    def remember(self, kernels: Iterable[Kernel]) -> dict[Kernel, Known]:
        """Return predictions by kernel for at least these kernels; good until the next call."""
        return self._remembered.get(kernels, self._known)

    def remember_costs(self, kernels: Iterable[Kernel]) -> dict[Kernel, Cost]:
        """Return costs by kernel for at least these kernels; good until the next call."""
        return self._costs.get(kernels, self._cost_each)

    def predict_net(self, net: Net, batch: int = 1) -> NetPrediction:
        """Predict a network at a batch size, with every kernel's share.

        Raises:
            ShapeError: shapes don't fit; the layer is named.
        """
        counts = self.launched(net, batch)
        total_us = self.nets.latency_us(self._cost(net, counts, self.remember(counts)))
        shares = sorted(self.shares(counts), key=lambda s: -s.latency_us * s.count)
        std_us = self._deviation_us(total_us, shares)
        inside = all(s.in_range for s in shares)
        opaque = Counter(p.layer.op for p in net.layers(batch) if isinstance(p.layer, Opaque))
        return NetPrediction(
            total_us / 1e3,
            std_us / 1e3,
            inside,
            batch,
            tuple(shares),
            tuple(opaque.most_common()),
        )

    def shares(self, counts: Mapping[Kernel, int]) -> list[KernelShare]:
        """Return what kernels contribute, by how often each is launched."""
        memory = self.remember(counts)
        waves, utilisation, profiled = self._seen(list(counts))
        return [
            KernelShare(
                kernel,
                count,
                *memory[kernel],
                int(waves[i]),
                float(utilisation[i]),
                bool(profiled[i]),
            )
            for i, (kernel, count) in enumerate(counts.items())
        ]

    def cost(self, net: Net, batch: int) -> NetCost:
        """Return what a network's latency is made of before calibration."""
        counts = self.launched(net, batch)
        return self._cost(net, counts, self.remember(counts))

    def require(self, setting: Setting, device: DeviceSpec | None, valid: Iterable[str]) -> None:
        """Check that the model predicts what is asked for.

        Args:
            setting: the one asked for.
            device: the device asked for, None for any.
            valid: names of the models that would do, for the message.

        Raises:
            SettingMismatch: it is fitted for another setting or device.
        """
        why = self.mismatches(setting, device)
        if why:
            names = ", ".join(sorted(valid)) or "none; 'latency_model: auto' learns one"
            raise SettingMismatch(
                f"latency model {self.name} is fitted for another setting: {'; '.join(why)}. "
                f"Models that would do: {names}."
            )

    def mismatches(self, setting: Setting, device: DeviceSpec | None = None) -> list[str]:
        """Say where the model's setting and device differ from those asked for."""
        why = self.setting.differences(setting)
        if self.device.kind == "gpu":
            why = [text for text in why if not text.startswith("threads ")]
        if device is not None and device.slug != self.device.slug:
            why.append(f"device {self.device.slug}, not {device.slug}")
        return why

    def op(self, op: str) -> OpModel:
        """Return what predicts an op, before adjustments."""
        return self._complete[op]

    def launched(self, net: Net, batch: int) -> Counter[Kernel]:
        """Return a network's kernels in the model's runtime, and how often each is launched."""
        runtime = find_runtime(self.setting.runtime)
        return Counter(lower_net(net, batch, self.setting.dtype, runtime))

    def _cost(
        self, net: Net, counts: Mapping[Kernel, int], memory: Mapping[Kernel, Known]
    ) -> NetCost:
        weight_mb = net.parameters * self.setting.weight_bytes / 1e6
        total = sum(memory[k][0] * count for k, count in counts.items())
        large = sum(large_mb(k, self.device) * n for k, n in counts.items())
        return NetCost(total, sum(counts.values()), weight_mb, large)

    def _deviation_us(self, total_us: float, shares: Sequence[KernelShare]) -> float:
        # One kernel launched twice errs twice the same way; different kernels err independently.
        # Those that physics alone prices err alike: one coefficient stands behind them all, unless
        # whole networks have told it. So do all kernels of a device that nobody measured: most of
        # what they err is the device.
        told = self.calibrated
        apart = [s for s in shares if told or (s.profiled and not self._strange(s.kernel.op))]
        variance = sum((s.std_us * s.count) ** 2 for s in apart)
        alike = sum(s.std_us * s.count for s in shares) - sum(s.std_us * s.count for s in apart)
        kernels = self.nets.scale**2 * (variance + alike**2)
        return math.sqrt(kernels + (self.nets.sigma * total_us) ** 2)

    def _strange(self, op: str) -> bool:
        """Tell whether no kernel and no network was measured on the device, for this op."""
        return self.device.slug not in self.op(op).devices and not self._adjusting

    def _bounded(self, us: np.ndarray, batch: KernelBatch) -> np.ndarray:
        # A network's share for a kernel may be less than the kernel takes alone: libraries fuse,
        # and what the last kernel wrote may lie in a cache. Whole timings see that.
        return us if self.calibrated else np.maximum(us, batch.least_us)

    def _known(self, kernels: Sequence[Kernel]) -> list[Known]:
        p = self.predict(kernels)
        columns = (p.latency_us.tolist(), p.std_us.tolist(), p.in_range.tolist())
        return list(zip(*columns, strict=True))

    def _cost_each(self, kernels: Sequence[Kernel]) -> list[Cost]:
        large = [large_mb(kernel, self.device) for kernel in kernels]
        return list(zip(self.predict_us(kernels).tolist(), large, strict=True))

    def _batches(self, kernels: Sequence[Kernel]) -> Iterator[tuple[str, list[int], KernelBatch]]:
        """Yield op, positions and batch of the kernels of each op (and dtype)."""
        by_op: dict[tuple[str, str], list[int]] = {}
        dtypes = self.setting.dtypes
        for i, kernel in enumerate(kernels):
            if kernel.dtype not in dtypes:
                raise SettingMismatch(
                    f"{self.name} predicts {self.setting.dtype} kernels; got {kernel.key}"
                )
            by_op.setdefault((kernel.op, kernel.dtype), []).append(i)
        for (op, _), at in by_op.items():
            batch = KernelBatch.of(
                [kernels[i] for i in at], self.device, self.setting.threads, self.setting.math
            )
            yield op, at, batch

    def _seen(self, kernels: Sequence[Kernel]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return waves, utilisation, and which kernels are of a kind that was measured; [n]."""
        waves, utilisation = np.empty(len(kernels)), np.empty(len(kernels))
        profiled = np.empty(len(kernels), dtype=bool)
        for op, at, batch in self._batches(kernels):
            waves[at], utilisation[at] = batch.occupancy
            profiled[at] = self.op(op).profiles(batch)
        return waves, utilisation, profiled


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return positive values to six significant digits.

    The last digits depend on which kernels are predicted together. A prediction mustn't: a
    resumed study sees them in other company than an undisturbed one, and goes the same way.
    """
    scale = 10.0 ** (5 - np.floor(np.log10(values)))
    rounded: np.ndarray = np.round(values * scale) / scale
    return rounded
