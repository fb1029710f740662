"""Where a network's time goes to waste: every group's stair, and the edges next to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tadnn.latency import width_of
from tadnn.tail.cost import WideKernel
from tadnn.tail.measuring import Decision
from tadnn.tail.rewrite import Rewrite, Rewriter
from tadnn.tail.stairs import FREE, Stairs

_NOTHING: Final = 0.005
"""A share of the latency that isn't worth speaking of."""
_FEWEST_FOR_A_SLOPE: Final = 4


@dataclass(frozen=True)
class Edge:
    """An efficient width next to the present one.

    Attributes:
        width: channels, or heads.
        change_us: what the network's latency gains, everything else kept; negative: it saves.
        is_free: whether that is nothing that could be told from nothing.
    """

    width: int
    change_us: float
    is_free: bool = False


@dataclass(frozen=True)
class GroupReport:
    """One group of tied widths, as it stands.

    Attributes:
        name: of the first layer whose width it is.
        layers: all of them.
        width: channels, or heads.
        latency_us: of the kernels whose output it is.
        share: of the network's latency, 0 to 1.
        waves: of the slowest of these kernels.
        utilisation: of the same, 0 to 1.
        in_range: whether all of these kernels lie in the profiled range.
        edge_down: the next efficient width below.
        edge_up: the next efficient width above.
        normed: whether a layer norm reads it, so that new channels change what is computed.
        frozen: why the width can't change; empty where it can.
        stairs: latency against width; None where frozen.
        tail_us: what stepping to the better of both edges saves or gives beyond an even slope
            of the same stairs: time that buys no width.
    """

    name: str
    layers: tuple[str, ...]
    width: int
    latency_us: float
    share: float
    waves: int
    utilisation: float
    in_range: bool
    edge_down: Edge | None
    edge_up: Edge | None
    normed: bool
    frozen: str
    stairs: Stairs | None
    tail_us: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether the edge above costs nothing that can be told from nothing."""
        return self.edge_up is not None and self.edge_up.is_free and not self.normed

    @property
    def remark(self) -> str:
        """``stays``, ``normed``, ``free`` or nothing."""
        if self.frozen:
            return "stays"
        return "normed" if self.normed else "free" if self.is_free else ""


@dataclass(frozen=True)
class TailReport:
    """A network's groups, slowest first, and what could be gained."""

    latency_ms: float
    std_ms: float
    in_range: bool
    batch: int
    groups: tuple[GroupReport, ...]

    @property
    def frozen(self) -> tuple[GroupReport, ...]:
        """The groups that can't change."""
        return tuple(group for group in self.groups if group.frozen)

    def remarks(self) -> list[str]:
        """Say in plain words what the report comes to."""
        free = [group for group in self.groups if not group.frozen]
        if not free:
            return ["no width of this network can change alone: there is no tail to remove"]
        lost = self.gain_us / 1e3 / self.latency_ms
        if lost < _NOTHING:
            return [
                f"nothing to gain from the tail: {100 * lost:.1f} % of the latency (widths stand "
                f"near their edges, or many waves or large batches fill the hardware)"
            ]
        return [
            f"the tail takes up to {100 * lost:.0f} % of the latency: what the edges next to the "
            f"present widths save or give beyond an even slope, one by one"
        ]

    @property
    def gain_us(self) -> float:
        """What the tails of all groups take, one at a time, added up."""
        return sum(group.tail_us for group in self.groups)


def tail_report(rewriter: Rewriter) -> TailReport:
    """Return the tail report of a network."""
    prediction = rewriter.model.predict_net(rewriter.net, rewriter.batch)
    counts = {wide.kernel: wide.count for wide in rewriter.costs.kernels}
    shares = {share.kernel: share for share in rewriter.model.shares(counts)}
    mine: dict[int, list[WideKernel]] = {}
    for wide in rewriter.costs.kernels:
        mine.setdefault(_owner(wide), []).append(wide)
    groups = []
    names = [[f"{name}.{node.name}" for node in block.nodes] for name, block in rewriter.net.blocks]
    for index, group in enumerate(rewriter.flow.groups):
        kernels = mine.get(index, [])
        us = [w.count * shares[w.kernel].latency_us * rewriter.model.nets.scale for w in kernels]
        slowest = max(zip(us, kernels, strict=True), key=lambda pair: pair[0], default=None)
        share = shares[slowest[1].kernel] if slowest else None
        stairs = rewriter.stairs.get(index)
        down, up = _edges(stairs) if stairs is not None else (None, None)
        why = group.frozen
        if not why and index not in rewriter.costs.free:
            why = "other kernels would be launched"
        groups.append(
            GroupReport(
                group.name,
                tuple(dict.fromkeys(names[b][i] for (b, i), _ in group.setters)),
                group.width,
                sum(us),
                sum(us) / 1e3 / prediction.latency_ms,
                share.waves if share else 0,
                share.utilisation if share else 0.0,
                all(shares[w.kernel].in_range for w in kernels),
                down,
                up,
                group.normed,
                why,
                stairs,
                _tail_us(stairs, down, up) if stairs is not None else 0.0,
            )
        )
    groups.sort(key=lambda g: -g.latency_us)
    return TailReport(
        prediction.latency_ms,
        prediction.std_ms,
        prediction.in_range,
        rewriter.batch,
        tuple(groups),
    )


def _owner(wide: WideKernel) -> int:
    """Return the group whose width is a kernel's output, as far as its sizes tell."""
    size = width_of(wide.kernel)
    if size is not None:
        at = list(wide.kernel.dims).index(size)
        for group, slope in wide.slopes:
            if slope[at]:
                return group
    return wide.slopes[0][0]


def _edges(stairs: Stairs) -> tuple[Edge | None, Edge | None]:
    now = stairs.latency_us[stairs.present]
    edges = [i for i, efficient in enumerate(stairs.efficient) if efficient]
    down = max((i for i in edges if i < stairs.present), default=None)
    up = min((i for i in edges if i > stairs.present), default=None)

    def edge(i: int | None) -> Edge | None:
        if i is None:
            return None
        change = float(stairs.latency_us[i] - now)
        return Edge(int(stairs.widths[i]), change, change <= min(stairs.std_us[i], FREE * now))

    return edge(down), edge(up)


def _tail_us(stairs: Stairs, down: Edge | None, up: Edge | None) -> float:
    """Return what the better of two edges saves or gives beyond an even slope."""
    if len(stairs.widths) < _FEWEST_FOR_A_SLOPE:
        return 0.0
    slope = max(0.0, float(np.polyfit(stairs.widths, stairs.latency_us, 1)[0]))
    now = int(stairs.widths[stairs.present])
    edges = [edge for edge in (down, up) if edge is not None]
    beyond = (slope * (edge.width - now) - edge.change_us for edge in edges)
    return max(0.0, *beyond, 0.0)


def to_json(
    report: TailReport, rewrite: Rewrite | None, decision: Decision | None = None
) -> dict[str, Any]:
    """Return what ``tadnn tail --json`` prints."""
    return {
        "latency_ms": report.latency_ms,
        "std_ms": report.std_ms,
        "in_range": report.in_range,
        "batch": report.batch,
        "groups": [_group_to_json(group) for group in report.groups],
        "rewrite": None if rewrite is None else _rewrite_to_json(rewrite),
        "measured": None if decision is None else _decision_to_json(decision),
    }


def _group_to_json(group: GroupReport) -> dict[str, Any]:
    down, up = group.edge_down, group.edge_up
    return {
        "name": group.name,
        "layers": list(group.layers),
        "width": group.width,
        "latency_us": group.latency_us,
        "share": group.share,
        "waves": group.waves,
        "utilisation": group.utilisation,
        "in_range": group.in_range,
        "edge_down": None if down is None else {"width": down.width, "saves_us": -down.change_us},
        "edge_up": None if up is None else {"width": up.width, "costs_us": up.change_us},
        "tail_us": group.tail_us,
        "normed": group.normed,
        "frozen": group.frozen or None,
    }


def _rewrite_to_json(rewrite: Rewrite) -> dict[str, Any]:
    return {
        "latency_ms": rewrite.latency_ms,
        "widths": dict(rewrite.widths),
        "parameters": rewrite.parameters,
        "gain": rewrite.gain,
        "bound": rewrite.bound,
    }


def _decision_to_json(decision: Decision) -> dict[str, Any]:
    measured = decision.measured
    return {
        "original_ms": decision.original.latency_us / 1e3,
        "again_ms": decision.again.latency_us / 1e3,
        "latency_ms": None if measured is None else measured.latency_us / 1e3,
        "spread_ms": None if measured is None else measured.spread_us / 1e3,
    }
