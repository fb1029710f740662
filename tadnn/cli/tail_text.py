"""What ``tadnn tail`` prints and draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tadnn.cli.output import print_table

if TYPE_CHECKING:
    from pathlib import Path

    from tadnn.latency import LatencyModel
    from tadnn.search import Target
    from tadnn.tail import Decision, Rewrite, TailReport

_SHOWN = 40


def draw_stairs(report: TailReport, name: str, path: Path) -> None:
    """Draw every free group's staircase with its present position."""
    from tadnn.report import save_figure, tail_figure, tail_view

    save_figure(tail_figure(tail_view(name, report)), path)


def show_report(found: Target, model: LatencyModel, report: TailReport) -> None:
    """Print the groups, slowest first, and what they come to."""
    print_table(
        ["width of", "now", "us", "share %", "waves", "used", "edge below", "saves us",
         "edge above", "costs us", ""],
        [
            (
                ("" if g.in_range else "? ") + g.name,
                g.width,
                g.latency_us,
                100 * g.share,
                g.waves,
                g.utilisation,
                g.edge_down.width if g.edge_down else None,
                -g.edge_down.change_us if g.edge_down else None,
                g.edge_up.width if g.edge_up else None,
                g.edge_up.change_us if g.edge_up else None,
                g.remark,
            )
            for g in report.groups[:_SHOWN]
        ],
    )  # fmt: skip
    if any(g.is_free for g in report.groups):
        print("free: the edge above costs nothing that can be told from nothing (--widen)")
    if len(report.groups) > _SHOWN:
        print(f"and {len(report.groups) - _SHOWN} more, each of a smaller share (--json has all)")
    if any(g.normed and not g.frozen for g in report.groups):
        print("normed: a layer norm reads it, so new channels would change what is computed")
    for group in report.frozen[:_SHOWN]:
        print(f"stays: {group.name}: {group.frozen}")
    if not report.in_range:
        print("?: outside of the profiled range; --measure profiles this network's own stairs")
    for line in report.remarks():
        print(line)
    print(
        f"{found.name} on {model.name}, batch {report.batch}: "
        f"{report.latency_ms:.3f} ± {report.std_ms:.3f} ms predicted"
    )


def show_rewrite(
    found: Target, report: TailReport, rewrite: Rewrite | None, decision: Decision | None
) -> None:
    """Print the widths that changed, and what was predicted and measured of them."""
    if rewrite is None:
        assert decision is not None
        print("no proposal kept what was asked when it was measured; the network stays as it is")
        return
    parameters = found.net.parameters
    changed = {g.name: g.width for g in report.groups if rewrite.widths.get(g.name) != g.width}
    print_table(
        ["width of", "was", "is"],
        [(n, was, rewrite.widths[n]) for n, was in changed.items() if n in rewrite.widths],
        "rewritten",
    )
    share = rewrite.latency_ms / report.latency_ms
    print(
        f"predicted {rewrite.latency_ms:.3f} ms, {share:.3f} of the network's; parameters "
        f"{rewrite.parameters:,}, {rewrite.parameters / parameters:.3f} of them"
    )
    if rewrite.bound is not None:
        print(f"gain {rewrite.gain:,.0f}; no widths on these edges gain over {rewrite.bound:,.0f}")
    if decision is not None and decision.measured is not None:
        was, now = decision.original.latency_us, decision.measured.latency_us
        print(
            f"measured {now / 1e3:.3f} ms against {was / 1e3:.3f} ms, {now / was:.3f} of it "
            f"(the network against itself: {100 * decision.noise:.1f} %)"
        )
