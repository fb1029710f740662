"""Networks that people have, pruned as they would, and every way of choosing their widths anew."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from typing import Final

import numpy as np
from smooth_model import SmoothModel

from tadnn.errors import RequestError
from tadnn.latency import LatencyModel
from tadnn.nets import Net, trace
from tadnn.tail import Flow, Goal, Rewriter, follow, with_widths

NETWORKS: Final = (
    "resnet18",
    "resnet50",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "regnetx_008",
    "mnasnet_100",
    "convnext_atto",
    "densenet121",
    "deit_tiny_patch16_224",
)
INPUT: Final = (3, 224, 224)
PRUNED: Final = 0.7
BUDGET: Final = 0.8
_ANY_WIDTHS: Final = 37


def published(name: str) -> Net:
    """Return one of timm's networks."""
    from tadnn.nets.published.torchvision_ops import make_torchvision_importable

    make_torchvision_importable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's own deprecations
        import timm

        return trace(timm.create_model(name).eval(), INPUT).net


def uniform(flow: Flow, share: float, step: int = 1, up: bool | None = None) -> Net:
    """Return the network with every free width a share of its own, rounded to multiples.

    Args:
        flow: the network's groups.
        share: of every width.
        step: widths become multiples of it (of the least one above, the group's grain).
        up: rounded up or down; to the nearest when None.
    """
    widths = {}
    for index in flow.free:
        group = flow.groups[index]
        unit = int(np.lcm(group.grain, step))
        steps = share * group.width / unit
        rounded = round(steps) if up is None else np.ceil(steps - 1e-9) if up else np.floor(steps)
        widths[index] = max(unit, int(rounded) * unit)
    return with_widths(flow, widths)


class AnyWidth(Rewriter):
    """Chooses among whole widths spread evenly: it knows of no edges."""

    def _edges(self) -> dict[int, list[int]]:
        edges = {}
        for group, found in self.stairs.items():
            grain, now = self.flow.groups[group].grain, self.flow.groups[group].width
            low, high = found.widths[0], now if self._normed(group) else found.widths[-1]
            spread = np.linspace(low, high, _ANY_WIDTHS) // grain * grain
            edges[group] = sorted({now, *(max(grain, int(width)) for width in spread)})
        return edges


GOALS: Final = {
    "tadnn": Goal("fastest"),
    "widened": Goal("widen"),
    "budget": Goal("budget", BUDGET),
}


def controls(net: Net, pruned: Net, smooth_model: SmoothModel, batch: int) -> dict[str, Net]:
    """Return the pruned network and every simpler way, by what made them.

    Args:
        net: as published.
        pruned: after uniform pruning.
        smooth_model: a latency model without stairs.
        batch: the batch size.
    """
    flow = follow(net)
    smooth = AnyWidth(pruned, smooth_model, batch).fastest()
    found = {"pruned": pruned}
    for step in (8, 16, 32):
        for word, up in (("up", True), ("down", False)):
            found[f"{step} {word}"] = uniform(flow, PRUNED, step, up)
    found["smooth"] = smooth.net
    found["smooth, to 8"] = uniform(follow(smooth.net), 1.0, 8)
    return found


def rewritten(
    pruned: Net, model: LatencyModel, batch: int
) -> tuple[dict[str, Net], dict[str, float]]:
    """Return the pruned network rewritten for every goal, and the seconds that each took.

    A budget below what the narrowest network needs has none.
    """
    found, seconds = {}, {}
    for label, goal in GOALS.items():
        start = time.process_time()
        with suppress(RequestError):
            found[label] = goal.propose(Rewriter(pruned, model, batch)).net
        seconds[label] = round(time.process_time() - start, 2)
    return found, seconds
