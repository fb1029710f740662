"""The tail effect in networks that people have: stairs, edges, and rewriting onto them."""

from __future__ import annotations

from tadnn.tail.budget import Chosen, WidthProblem
from tadnn.tail.candidates import candidate_widths
from tadnn.tail.capacity import CAPACITIES, flops_gain, parameter_gain
from tadnn.tail.cost import Pricer, WidthCosts, width_costs
from tadnn.tail.flow import Flow, Group, follow
from tadnn.tail.measuring import Decision, Goal, Refined, decide, refine, variants
from tadnn.tail.report import Edge, GroupReport, TailReport, tail_report, to_json
from tadnn.tail.rewrite import Rewrite, Rewriter
from tadnn.tail.snapping import Snapper
from tadnn.tail.stairs import Stairs, efficient_widths, stairs
from tadnn.tail.sweeping import Sweep, sweep_kernel, sweep_values
from tadnn.tail.weights import carry_over, importance
from tadnn.tail.widths import with_widths

__all__ = [
    "CAPACITIES",
    "Chosen",
    "Decision",
    "Edge",
    "Flow",
    "Goal",
    "Group",
    "GroupReport",
    "Pricer",
    "Refined",
    "Rewrite",
    "Rewriter",
    "Snapper",
    "Stairs",
    "Sweep",
    "TailReport",
    "WidthCosts",
    "WidthProblem",
    "candidate_widths",
    "carry_over",
    "decide",
    "efficient_widths",
    "flops_gain",
    "follow",
    "importance",
    "parameter_gain",
    "refine",
    "stairs",
    "sweep_kernel",
    "sweep_values",
    "tail_report",
    "to_json",
    "variants",
    "width_costs",
    "with_widths",
]
