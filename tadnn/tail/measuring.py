"""The clock decides: a network's own stairs profiled, and rewrites measured, in rounds.

A rewrite is the best of very many predictions, so it stands where the model is too hopeful. What
is proposed is therefore measured, kernel by kernel and whole, and what plain rounding gives beside
it; the model learns from it, aims anew, and proposes again. In the end all proposals are measured
beside the network, and the best of those that keep what was asked is taken.
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
from tadnn.tail.candidates import candidate_widths, coarse_step
from tadnn.tail.flow import Flow, Group
from tadnn.tail.rewrite import Rewrite, Rewriter
from tadnn.tail.widths import with_widths

_VARIANTS: Final = 48
_VECTOR: Final = 16
"""Channels that fill whole vectors on every device of today."""
_NARROWEST, _WIDEST = 0.4, 1.6
ROUNDS: Final = 2
_MULTIPLES: Final = (8, 16, 32)
"""Of channels, that widths are rounded to by hand."""
_AROUND: Final = (1.0, 1.02, 0.97, 0.94)
"""Budgets around the one aimed at, the last proposals."""
_MOST_WRONG: Final = 1.5
"""A model is corrected by at most this factor: more is a disturbed measurement."""

Relearn = Callable[[Sequence[Net]], LatencyModel]
"""Measures networks and their kernels; returns the latency model that knows them."""


def variants(flow: Flow, count: int = _VARIANTS, seed: int = 0) -> list[Net]:
    """Return the network with random widths around its own, the network itself first.

    Every variant is narrower or wider as a whole, each group a little differently, at widths
    that a rewrite may choose: what a latency model learns on them is the network's stairs. In
    every second one all widths fill half or whole vectors, at which a runtime may launch less:
    of widths drawn one by one, hardly any layer would have such on both of its sides.
    """
    rng = np.random.default_rng(seed)
    choices = [
        {group: np.array(_choices(flow.groups[group], vector)) for group in flow.free}
        for vector in (1, _VECTOR // 2, 1, _VECTOR)
    ]
    nets = [flow.net]
    for n in range(count - 1 if flow.free else 0):
        scale = rng.uniform(_NARROWEST, _WIDEST)
        widths = {}
        for group, values in choices[n % len(choices)].items():
            wanted = flow.groups[group].width * scale * rng.uniform(0.8, 1.25)
            widths[group] = int(values[np.argmin(np.abs(values - wanted))])
        nets.append(with_widths(flow, widths))
    return nets


def _choices(group: Group, vector: int) -> list[int]:
    if vector == 1:
        return candidate_widths(group, _NARROWEST, _WIDEST)
    step = coarse_step(group, vector)
    found = candidate_widths(group, _NARROWEST, _WIDEST, step)
    return [width for width in found if width % step == 0] or found


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

    def rounded(self, rewriter: Rewriter) -> list[Rewrite]:
        """Return the network with widths rounded as people do, where that may meet the goal."""
        found = [rewriter.rounded(step, up) for step in _MULTIPLES for up in (True, False)]
        return [p for p in found if self.kind == "budget" or self._keeps(rewriter, p)]

    def _keeps(self, rewriter: Rewriter, proposal: Rewrite) -> bool:
        if self.kind == "fastest":
            return proposal.gain >= 0
        now = {group.name: group.width for group in rewriter.flow.groups}
        return all(width >= now[name] for name, width in proposal.widths.items())

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
    # The second line is insurance: where the model sees no edges, whole vectors are a fair guess.
    lines = [_Line(goal, vector, goal.share) for goal in goals for vector in (1, _VECTOR // 2)]
    tried = {goal: {p.net.key: p for p in goal.rounded(rewriter)} for goal in goals}
    coarse = {line.vector: rewriter.coarse(line.vector) for line in lines}
    measured: set[str] = set()
    for _ in range(rounds):
        proposed = [(line, line.proposal(coarse[line.vector])) for line in lines]
        for line, proposal in proposed:
            if proposal is not None:
                tried[line.goal].setdefault(proposal.net.key, proposal)
        nets = {key: p.net for found in tried.values() for key, p in found.items()}
        new = [net for key, net in nets.items() if key not in measured]
        if not new:
            break
        measured |= nets.keys()
        runs = [NetRun(net, rewriter.batch) for net in (rewriter.net, *new)]
        level, *times = measure(clock, runs, progress=progress)
        seen = {
            net.key: time.latency_us / level.latency_us
            for net, time in zip(new, times, strict=True)
        }
        rewriter = rewriter.on(relearn(new))
        coarse = {vector: rewriter.coarse(vector) for vector in coarse}
        for line, proposal in proposed:
            if proposal is not None and proposal.net.key in seen:
                line.correct(proposal, seen[proposal.net.key], rewriter)
    proposals = {
        goal: [
            *(_told(p, rewriter) for p in tried[goal].values()),
            *(p for line in lines if line.goal == goal for p in line.around(coarse[line.vector])),
        ]
        for goal in goals
    }
    return Refined(rewriter, decide(clock, rewriter.net, proposals, rewriter.batch, progress))


@dataclass
class _Line:
    """A goal aimed at in rounds, among widths that are multiples of a vector's channels."""

    goal: Goal
    vector: int
    aim: float

    def proposal(self, rewriter: Rewriter) -> Rewrite | None:
        """Return the next proposal; None where no widths of the vector's meet the goal.

        Args:
            rewriter: of the vector's widths.

        Raises:
            RequestError: the narrowest network of any widths needs more.
        """
        # Corrected, the model may say that there is none: what it said at first then stands.
        for aim in dict.fromkeys((self.aim, self.goal.share)):
            try:
                return self.goal.propose(rewriter, aim)
            except RequestError:
                if aim == self.goal.share and self.vector == 1:
                    raise
        return None

    def correct(self, proposal: Rewrite, seen: float, rewriter: Rewriter) -> None:
        """Aim anew, after a proposal took a share ``seen`` of the network's latency."""
        latency = rewriter.model.predict_net(proposal.net, rewriter.batch).latency_ms
        said = latency * 1e3 / rewriter.present_us
        wrong = float(np.clip(seen / said, 1 / _MOST_WRONG, _MOST_WRONG))
        self.aim = self.goal.share / wrong

    def around(self, rewriter: Rewriter) -> list[Rewrite]:
        """Return the last proposals, of a rewriter of the vector's widths."""
        return self.goal.around(rewriter, self.aim)


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
    measured latency; where none does, the difference of the network from itself is forgiven.

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
    for forgiven in (0.0, nothing.noise):
        most = nothing.level_us * (goal.share + forgiven)
        fitting = [p for p in rewrites if measured[p.net.key].latency_us <= most]
        if fitting:
            break
    else:
        return nothing
    if goal.kind == "fastest":
        best = min(fitting, key=lambda p: measured[p.net.key].latency_us)
    else:
        best = max(fitting, key=lambda p: p.gain)
    return replace(nothing, rewrite=best, measured=measured[best.net.key])
