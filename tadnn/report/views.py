"""What the plots show: frozen records made from plain data.

The plain data is what studies store and what ``tadnn latency --json`` prints. Nothing here
computes a network or a latency. The front's view is in ``front_view``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tadnn.errors import RequestError
from tadnn.report.text import kernel_text

Record = Mapping[str, Any]


@dataclass(frozen=True)
class PairView:
    """One network's predicted and measured latency."""

    name: str
    predicted_ms: float
    std_ms: float
    measured_ms: float
    spread_ms: float


@dataclass(frozen=True)
class PredictionView:
    """How well latencies were predicted."""

    title: str
    subtitle: str
    pairs: tuple[PairView, ...]

    @classmethod
    def from_front(cls, front: Record, phase: str | None = None) -> PredictionView:
        """Make the view of a front's re-measured members; of one of their phases where named."""
        seen = [(m["trial"], m if phase is None else m["phases"][phase]) for m in front["members"]]
        pairs = tuple(
            PairView(
                f"#{trial}",
                m["predicted"]["latency_ms"],
                m["predicted"]["std_ms"],
                m["measured"]["latency_ms"],
                m["measured"]["spread_ms"],
            )
            for trial, m in seen
            if m["measured"] and m["predicted"]
        )
        of = "" if phase is None else f", {phase}"
        return cls(f"{front['study']}{of}: predicted and measured", setting_text(front), pairs)

    @property
    def mape(self) -> float | None:
        """The mean absolute error in percent of the measurement; None without pairs."""
        if not self.pairs:
            return None
        errors = [abs(p.predicted_ms - p.measured_ms) / p.measured_ms for p in self.pairs]
        return 100 * sum(errors) / len(errors)

    @property
    def ordered(self) -> float | None:
        """The share of the pairs measured more than 10 % apart that are ordered rightly.

        None where no two are that far apart.
        """
        right = []
        for a, b in combinations(self.pairs, 2):
            low, high = sorted((a, b), key=lambda p: p.measured_ms)
            if high.measured_ms > 1.1 * low.measured_ms:
                right.append(high.predicted_ms > low.predicted_ms)
        return sum(right) / len(right) if right else None


@dataclass(frozen=True)
class ShareView:
    """Equal launches: microseconds of all ``count`` together, with standard deviation.

    ``is_kernel`` is false for what passes between launches. ``waves`` of one launch, and the
    share of their slots that work (``utilisation``), are None where unknown.
    """

    label: str
    count: int
    latency_us: float
    std_us: float
    in_range: bool = True
    is_kernel: bool = True
    waves: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True)
class BreakdownView:
    """Where a network's predicted latency goes; ``shares`` from the largest."""

    title: str
    subtitle: str
    total_us: float
    shares: tuple[ShareView, ...]

    @classmethod
    def from_prediction(cls, title: str, subtitle: str, prediction: Record) -> BreakdownView:
        """Make the view of what ``tadnn latency --json`` prints.

        ``latency_us`` and ``std_us`` of its kernels are those of one launch. Errors of equal
        launches are the same error, so they add up without cancelling. What the total has
        beyond its kernels is a share of its own. Operators that were not understood are
        named in the subtitle.
        """
        shares = [
            ShareView(
                kernel_text(k["kernel"]),
                k["count"],
                k["count"] * k["latency_us"],
                k["count"] * k["std_us"],
                k["in_range"],
                waves=k.get("waves"),
                utilisation=k.get("utilisation"),
            )
            for k in prediction["kernels"]
        ]
        total = 1000 * prediction["latency_ms"]
        rest = total - sum(share.latency_us for share in shares)
        if rest > 0.001 * total:
            shares.append(ShareView("between kernels", 1, rest, 0.0, is_kernel=False))
        shares.sort(key=lambda share: -share.latency_us)
        opaque = ", ".join(f"{o['count']} × {o['op']}" for o in prediction["opaque"])
        if opaque:
            subtitle = "; ".join(filter(None, (subtitle, f"not understood: {opaque}")))
        return cls(title, subtitle, total, tuple(shares))


@dataclass(frozen=True)
class StairView:
    """One layer's latency against one of its widths.

    Args:
        title: what layer of what network.
        subtitle: the setting, or empty.
        axis: what varies, such as ``"output channels"``.
        widths: ascending.
        latency_us: predicted at each width.
        std_us: standard deviation at each width.
        present: the width that the network has; None where it has none.
        label: what to write at the present width, such as ``"quickstart #57"``.
        measured_us: measured at each width; None where nothing was.
        efficient: those of the widths where every wider one is slower; see ``tadnn.tail``.

    Raises:
        RequestError: lengths differ, widths do not ascend, or an efficient one is none of them.
    """

    title: str
    subtitle: str
    axis: str
    widths: tuple[int, ...]
    latency_us: tuple[float, ...]
    std_us: tuple[float, ...]
    present: int | None = None
    label: str = "this network"
    measured_us: tuple[float, ...] | None = None
    efficient: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        measured = self.widths if self.measured_us is None else self.measured_us
        lengths = {len(self.widths), len(self.latency_us), len(self.std_us), len(measured)}
        if len(lengths) > 1:
            raise RequestError(
                f"a staircase has one latency and deviation per width; got {lengths}"
            )
        if any(b <= a for a, b in zip(self.widths, self.widths[1:], strict=False)):
            raise RequestError(f"the widths of a staircase ascend; got {list(self.widths)}")
        strangers = sorted(set(self.efficient) - set(self.widths))
        if strangers:
            raise RequestError(f"efficient widths are widths of the staircase; got {strangers}")

    @property
    def present_us(self) -> float | None:
        """The latency at the present width; None where that width was not predicted."""
        if self.present not in self.widths:
            return None
        return self.latency_us[self.widths.index(self.present)]

    @property
    def efficient_us(self) -> tuple[float, ...]:
        """The latencies at the efficient widths."""
        known = dict(zip(self.widths, self.latency_us, strict=True))
        return tuple(known[width] for width in self.efficient)


@dataclass(frozen=True)
class TailView:
    """The stairs of a network's groups of widths, slowest first."""

    title: str
    subtitle: str
    stairs: tuple[StairView, ...]


def setting_text(front: Record) -> str:
    """Return device, runtime, dtype, threads, batch and input of a front in one line."""
    threads = front.get("threads")
    parts = [
        front.get("device"),
        " ".join(str(front[k]) for k in ("runtime", "dtype") if front.get(k)),
        f"{threads} thread{'' if threads == 1 else 's'}" if threads else None,
        f"batch {front['batch']}" if front.get("batch") else None,
        "input " + "×".join(map(str, front["input_shape"])) if front.get("input_shape") else None,
    ]
    return " · ".join(str(part) for part in parts if part)
