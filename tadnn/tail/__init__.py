"""The tail effect in networks that people have: stairs, edges, and rewriting onto them."""

from __future__ import annotations

from tadnn.tail.budget import Chosen, WidthProblem
from tadnn.tail.capacity import CAPACITIES, flops_gain, parameter_gain
from tadnn.tail.cost import Pricer, WidthCosts, width_costs
from tadnn.tail.flow import Flow, Group, follow
from tadnn.tail.stairs import Stairs, candidate_widths, efficient_widths, stairs
from tadnn.tail.widths import with_widths

__all__ = [
    "CAPACITIES",
    "Chosen",
    "Flow",
    "Group",
    "Pricer",
    "Stairs",
    "WidthCosts",
    "WidthProblem",
    "candidate_widths",
    "efficient_widths",
    "flops_gain",
    "follow",
    "parameter_gain",
    "stairs",
    "width_costs",
    "with_widths",
]
