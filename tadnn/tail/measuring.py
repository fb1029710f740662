"""The clock decides: a network's own stairs profiled, and the best rewrite measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tadnn.errors import RequestError
from tadnn.nets import Net
from tadnn.profiling import Clock, Measurement, NetRun, measure
from tadnn.progress import SILENT, Progress
from tadnn.tail.flow import Flow
from tadnn.tail.rewrite import Rewrite
from tadnn.tail.stairs import candidate_widths
from tadnn.tail.widths import with_widths

_VARIANTS: Final = 48
_NARROWEST, _WIDEST = 0.4, 1.6


def variants(flow: Flow, count: int = _VARIANTS, seed: int = 0) -> list[Net]:
    """Return the network with random widths around its own, the network itself first.

    Every variant is narrower or wider as a whole, each group a little differently, at widths
    that a rewrite may choose: what a latency model learns on them is the network's stairs.
    """
    rng = np.random.default_rng(seed)
    choices = {
        group: np.array(candidate_widths(flow.groups[group], _NARROWEST, _WIDEST))
        for group in flow.free
    }
    nets = [flow.net]
    for _ in range(count - 1 if choices else 0):
        scale = rng.uniform(_NARROWEST, _WIDEST)
        widths = {}
        for group, values in choices.items():
            wanted = flow.groups[group].width * scale * rng.uniform(0.8, 1.25)
            widths[group] = int(values[np.argmin(np.abs(values - wanted))])
        nets.append(with_widths(flow, widths))
    return nets


@dataclass(frozen=True)
class Decision:
    """What the clock said.

    Attributes:
        rewrite: the best of the proposals that kept what was asked; None where none did.
        measured: of that proposal.
        original: of the network as it was.
        again: of the same network once more: what a difference is worth.
    """

    rewrite: Rewrite | None
    measured: Measurement | None
    original: Measurement
    again: Measurement

    @property
    def noise(self) -> float:
        """How far a network is from itself, a share of its latency."""
        return abs(self.again.latency_us / self.original.latency_us - 1)


def decide(
    clock: Clock,
    net: Net,
    proposals: Sequence[Rewrite],
    batch: int,
    allowed: float,
    progress: Progress = SILENT,
) -> Decision:
    """Measure proposals beside the network; return the one of the most gain that fits.

    Args:
        clock: device and setting.
        net: the network as it is.
        proposals: rewrites of it, at least one.
        batch: the batch size.
        allowed: the share of the network's measured latency that a proposal may take; the
            difference of the network from itself is forgiven.
        progress: told about measuring.

    Raises:
        RequestError: there are no proposals.
    """
    if not proposals:
        raise RequestError("a decision takes at least one proposal; got none")
    distinct = list({proposal.net.key: proposal for proposal in proposals}.values())
    runs = [NetRun(net, batch), NetRun(net, batch)]
    runs += [NetRun(proposal.net, batch) for proposal in distinct]
    original, again, *rest = measure(clock, runs, progress=progress)
    level = (original.latency_us + again.latency_us) / 2
    noise = abs(again.latency_us / original.latency_us - 1)
    fitting = [
        (proposal, measured)
        for proposal, measured in zip(distinct, rest, strict=True)
        if measured.latency_us <= level * (allowed + noise)
    ]
    if not fitting:
        return Decision(None, None, original, again)
    best, measured = max(fitting, key=lambda pair: pair[0].gain)
    return Decision(best, measured, original, again)
