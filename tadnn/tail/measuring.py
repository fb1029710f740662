"""The clock decides: a network's own stairs profiled, and rewrites measured, in rounds.

A rewrite is the best of very many predictions, so it stands where the model is too hopeful. What
is proposed is therefore measured, kernel by kernel and whole; the model learns from it, aims anew,
and proposes again. In the end all proposals are measured beside the network, and the best of
those that keep what was asked is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from tadnn.errors import RequestError
from tadnn.latency import LatencyModel
from tadnn.nets import Net
from tadnn.profiling import Clock, Measurement, NetRun, measure
from tadnn.progress import SILENT, Progress
from tadnn.tail.flow import Flow
from tadnn.tail.rewrite import Rewrite, Rewriter
from tadnn.tail.stairs import candidate_widths
from tadnn.tail.widths import with_widths

_VARIANTS: Final = 48
_NARROWEST, _WIDEST = 0.4, 1.6
ROUNDS: Final = 2
_AROUND: Final = (1.0, 1.02, 0.97, 0.94)
"""Budgets around the one aimed at, the last proposals."""
_MOST_WRONG: Final = 1.5
"""A model is corrected by at most this factor: more is a disturbed measurement."""

Relearn = Callable[[Sequence[Net]], LatencyModel]
"""Measures networks and their kernels; returns the latency model that knows them."""


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
class Goal:
    """What a network is rewritten for.

    Attributes:
        kind: the most capacity within a budget, the widest network, or the fastest one of the
            same capacity.
        share: of the network's latency, that the rewritten one may take.
    """

    kind: Literal["budget", "widen", "fastest"]
    share: float = 1.0

    def propose(self, rewriter: Rewriter, share: float | None = None) -> Rewrite:
        """Return the rewrite for this goal, on the rewriter's latency model.

        Args:
            rewriter: of the network.
            share: of the predicted latency, where it isn't the goal's own.

        Raises:
            RequestError: the share isn't positive, or the narrowest network needs more.
        """
        aim = self.share if share is None else share
        match self.kind:
            case "budget":
                return rewriter.within(aim)
            case "widen":
                return rewriter.widened(aim)
            case "fastest":
                return rewriter.fastest()

    def around(self, rewriter: Rewriter, share: float) -> list[Rewrite]:
        """Return rewrites for shares around one, those that can be met."""
        if self.kind == "fastest":
            return [rewriter.fastest()]
        shares = [share * factor for factor in _AROUND]
        if self.kind == "widen":
            return [rewriter.widened(aim) for aim in shares]
        return rewriter.around(shares)


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

    @property
    def level_us(self) -> float:
        """The network's latency: the mean of both measurements."""
        return (self.original.latency_us + self.again.latency_us) / 2


@dataclass(frozen=True)
class Refined:
    """What some rounds of proposing and measuring came to.

    Attributes:
        rewriter: on the latency model that the rounds left.
        decisions: by goal.
    """

    rewriter: Rewriter
    decisions: Mapping[Goal, Decision]


def refine(
    rewriter: Rewriter,
    goals: Sequence[Goal],
    clock: Clock,
    relearn: Relearn,
    rounds: int = ROUNDS,
    progress: Progress = SILENT,
) -> Refined:
    """Propose, measure and learn in rounds; return what the clock decides in the end.

    Args:
        rewriter: on a latency model of the network's own stairs.
        goals: what to rewrite for, one or several at once.
        clock: device and setting.
        relearn: measures proposals and their kernels, and returns the model that knows them.
        rounds: how often; it ends earlier where nothing new is proposed.
        progress: told about measuring.

    Raises:
        RequestError: a goal's share isn't positive, or the narrowest network needs more.
    """
    aims = {goal: goal.share for goal in goals}
    tried: dict[Goal, list[Rewrite]] = {goal: [] for goal in goals}
    for _ in range(rounds):
        proposed = {goal: _proposal(goal, rewriter, aims[goal]) for goal in goals}
        new = {goal: p for goal, p in proposed.items() if not _is_known(p, tried[goal])}
        if not new:
            break
        for goal, proposal in new.items():
            tried[goal].append(proposal)
        nets = list({p.net.key: p.net for p in new.values()}.values())
        runs = [NetRun(net, rewriter.batch) for net in (rewriter.net, *nets)]
        level, *times = measure(clock, runs, progress=progress)
        seen = {
            net.key: time.latency_us / level.latency_us
            for net, time in zip(nets, times, strict=True)
        }
        rewriter = rewriter.on(relearn(nets))
        for goal, proposal in new.items():
            latency = rewriter.model.predict_net(proposal.net, rewriter.batch).latency_ms
            said = latency * 1e3 / rewriter.present_us
            wrong = float(np.clip(seen[proposal.net.key] / said, 1 / _MOST_WRONG, _MOST_WRONG))
            aims[goal] = goal.share / wrong
    proposals = {
        goal: [*(_told(p, rewriter) for p in tried[goal]), *goal.around(rewriter, aims[goal])]
        for goal in goals
    }
    return Refined(rewriter, decide(clock, rewriter.net, proposals, rewriter.batch, progress))


def _proposal(goal: Goal, rewriter: Rewriter, aim: float) -> Rewrite:
    try:
        return goal.propose(rewriter, aim)
    except RequestError:
        if aim == goal.share:
            raise
        return goal.propose(rewriter)  # corrected, the model says that there is none


def _is_known(proposal: Rewrite, among: Sequence[Rewrite]) -> bool:
    return any(proposal.net.key == other.net.key for other in among)


def _told(proposal: Rewrite, rewriter: Rewriter) -> Rewrite:
    """Return a proposal as the latency model of now tells it; it knows no bound of it."""
    latency = rewriter.model.predict_net(proposal.net, rewriter.batch).latency_ms
    return replace(proposal, latency_ms=latency, bound=None)


def decide(
    clock: Clock,
    net: Net,
    proposals: Mapping[Goal, Sequence[Rewrite]],
    batch: int,
    progress: Progress = SILENT,
) -> dict[Goal, Decision]:
    """Measure proposals beside the network, all in turns; return the best that fits each goal.

    That is the fastest, or the one of the most gain that takes the goal's share of the network's
    measured latency; the difference of the network from itself is forgiven.

    Args:
        clock: device and setting.
        net: the network as it is.
        proposals: rewrites of it by goal, at least one each.
        batch: the batch size.
        progress: told about measuring.

    Raises:
        RequestError: a goal has no proposals.
    """
    if not proposals or not all(proposals.values()):
        raise RequestError("a decision takes at least one proposal for every goal; got none")
    distinct = {p.net.key: p.net for rewrites in proposals.values() for p in rewrites}
    runs = [NetRun(net, batch), NetRun(net, batch)]
    runs += [NetRun(other, batch) for other in distinct.values()]
    original, again, *times = measure(clock, runs, progress=progress)
    measured = dict(zip(distinct, times, strict=True))
    nothing = Decision(None, None, original, again)
    return {
        goal: _decided(goal, rewrites, measured, nothing) for goal, rewrites in proposals.items()
    }


def _decided(
    goal: Goal, rewrites: Sequence[Rewrite], measured: Mapping[str, Measurement], nothing: Decision
) -> Decision:
    most = nothing.level_us * (goal.share + nothing.noise)
    fitting = [p for p in rewrites if measured[p.net.key].latency_us <= most]
    if not fitting:
        return nothing
    if goal.kind == "fastest":
        best = min(fitting, key=lambda p: measured[p.net.key].latency_us)
    else:
        best = max(fitting, key=lambda p: p.gain)
    return replace(nothing, rewrite=best, measured=measured[best.net.key])
