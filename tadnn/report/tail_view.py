"""Where a network stands on its stairs, as records of what ``tadnn.tail`` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tadnn.report.views import StairView, TailView

if TYPE_CHECKING:
    from tadnn.tail import Edge, GroupReport, Stairs, TailReport


@dataclass(frozen=True)
class EdgeView:
    """An efficient width next to the present one, and what it adds to the network's latency."""

    width: int
    change_us: float


@dataclass(frozen=True)
class GroupView:
    """Layers whose widths are one number.

    Args:
        name: the first of them, ``block.layer``.
        layers: all of them.
        width: channels, or heads.
        latency_us: of the kernels whose output the width is.
        share: of the network's latency, 0 to 1.
        waves: of the slowest of these kernels.
        utilisation: the share of the waves' slots that work, 0 to 1.
        in_range: whether all of these kernels lie in the profiled range.
        below: the next efficient width below; None where there is none.
        above: the next efficient width above.
        remark: ``free`` where the edge above costs nothing, ``normed``, ``stays`` or nothing.
        frozen: why the width can't change; empty where it can.
        stair: latency of everything that follows the width; None where it can't change.
    """

    name: str
    layers: tuple[str, ...]
    width: int
    latency_us: float
    share: float
    waves: int
    utilisation: float
    in_range: bool
    below: EdgeView | None
    above: EdgeView | None
    remark: str
    frozen: str
    stair: StairView | None


def group_views(report: TailReport) -> tuple[GroupView, ...]:
    """Return every group of a tail report, the costliest first."""
    return tuple(_group(group) for group in report.groups)


def tail_view(name: str, report: TailReport) -> TailView:
    """Return the stairs of every group that may change, the costliest first.

    Args:
        name: of the network.
        report: its tail report.
    """
    views = (group.stair for group in group_views(report))
    text = (
        f"latency of all kernels that follow a width · batch {report.batch} · "
        f"predicted {report.latency_ms:.3f} ms together"
    )
    return TailView(
        f"{name}: the stairs of its widths", text, tuple(v for v in views if v is not None)
    )


def _group(group: GroupReport) -> GroupView:
    return GroupView(
        group.name,
        group.layers,
        group.width,
        group.latency_us,
        group.share,
        group.waves,
        group.utilisation,
        group.in_range,
        _edge(group.edge_down),
        _edge(group.edge_up),
        group.remark,
        group.frozen,
        None if group.stairs is None else _stair(group.name, group.width, group.stairs),
    )


def _edge(edge: Edge | None) -> EdgeView | None:
    return None if edge is None else EdgeView(edge.width, edge.change_us)


def _stair(name: str, width: int, stairs: Stairs) -> StairView:
    widths = [int(w) for w in stairs.widths]
    return StairView(
        title=name,
        subtitle="",
        axis="width",
        widths=tuple(widths),
        latency_us=tuple(float(v) for v in stairs.latency_us),
        std_us=tuple(float(v) for v in stairs.std_us),
        present=width,
        efficient=tuple(w for w, good in zip(widths, stairs.efficient, strict=True) if good),
    )
