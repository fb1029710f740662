"""A network rewritten onto the edges of its stairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from tadnn.errors import RequestError
from tadnn.latency import LatencyModel
from tadnn.nets import Net
from tadnn.tail.budget import Chosen, WidthProblem
from tadnn.tail.candidates import NARROWEST, WIDEST, candidate_widths, coarse_step
from tadnn.tail.capacity import CAPACITIES, Capacity, Importance, flops_gain, parameter_gain
from tadnn.tail.cost import Pricer, width_costs
from tadnn.tail.flow import Flow, follow
from tadnn.tail.stairs import Stairs, stairs
from tadnn.tail.widths import with_widths

_MOST_EDGES: Final = 36
_MOST_NEAR: Final = 12
_WIDEST_EVER: Final = 16


@dataclass(frozen=True)
class Rewrite:
    """A network with other widths.

    Attributes:
        net: the network.
        widths: by the name of the group; those that stayed too.
        changed: the new width by the group's index, for carrying weights over.
        latency_ms: predicted.
        parameters: of the network.
        gain: of capacity, against the network it was made from.
        bound: no widths among the candidates gain more; None where none is known.
    """

    net: Net
    widths: Mapping[str, int]
    changed: Mapping[int, int]
    latency_ms: float
    parameters: int
    gain: float
    bound: float | None


class Rewriter:
    """Finds widths for one network on one latency model.

    Args:
        net: the network.
        model: the latency model.
        batch: the batch size.
        capacity: what is to be kept: ``parameters``, ``flops`` or ``importance``.
        importance: of every channel by group, for that capacity.
        narrowest: the least share of its width that a group may keep, 0 to 1.
        widest: the greatest multiple of its width that a group may get, at least 1.

    Raises:
        RequestError: an unknown capacity, ``importance`` without any, or bounds out of order.
    """

    def __init__(
        self,
        net: Net,
        model: LatencyModel,
        batch: int = 1,
        capacity: str = "parameters",
        importance: Mapping[int, np.ndarray] | None = None,
        narrowest: float = NARROWEST,
        widest: float = WIDEST,
    ) -> None:
        if not 0 <= narrowest <= 1 <= widest <= _WIDEST_EVER:
            raise RequestError(
                f"widths go from a share of at most 1 to a multiple of 1 to {_WIDEST_EVER}; "
                f"got {narrowest} and {widest}"
            )
        if capacity not in CAPACITIES:
            raise RequestError(f"capacity is one of {', '.join(CAPACITIES)}; got {capacity!r}")
        if capacity == "importance" and importance is None:
            raise RequestError("capacity 'importance' needs weights; this network has none")
        self.net, self.model, self.batch = net, model, batch
        self.flow: Flow = follow(net)
        self.pricer = Pricer(model)
        self.costs = width_costs(self.flow, model, batch)
        self._kind, self._importance = capacity, importance
        self._range, self._vector = (narrowest, widest), 1

    @cached_property
    def weights(self) -> Capacity:
        """The number of parameters as a function of the widths."""
        return parameter_gain(self.flow)

    @cached_property
    def capacity(self) -> Capacity:
        """What is to be kept."""
        if self._kind == "flops":
            return flops_gain(self.costs)
        if self._kind == "importance":
            assert self._importance is not None
            return Importance(self.flow, self._importance)
        return self.weights

    @cached_property
    def stairs(self) -> dict[int, Stairs]:
        """The stairs of every group that may change."""
        return {
            group: stairs(
                self.costs,
                self.pricer,
                group,
                candidate_widths(self.flow.groups[group], *self._range, self._step(group)),
            )
            for group in self.costs.free
        }

    @cached_property
    def present_us(self) -> float:
        """The predicted latency of the network as it is."""
        return self.model.predict_net(self.net, self.batch).latency_ms * 1e3

    def on(self, model: LatencyModel) -> Rewriter:
        """Return the same on another latency model of the same setting.

        Raises:
            RequestError: the model is of another setting.
        """
        if model.setting != self.model.setting:
            raise RequestError(
                f"a rewrite goes on in its setting, {self.model.setting.label}; got a latency "
                f"model of {model.setting.label}"
            )
        made = self._without("stairs", "present_us")
        made.model, made.pricer = model, Pricer(model)
        return made

    def coarse(self, vector: int) -> Rewriter:
        """Return the same with widths that are multiples of a vector's channels only, heads aside.

        Raises:
            RequestError: no vector.
        """
        if vector < 1:
            raise RequestError(f"vector is a number of channels, at least 1; got {vector}")
        if vector == self._vector:
            return self
        made = self._without("stairs")
        made._vector = vector
        return made

    def _without(self, *derived: str) -> Rewriter:
        """Return a copy that works out again what is named; what is launched stays known."""
        made = copy(self)
        for name in derived:
            made.__dict__.pop(name, None)
        return made

    def widened(self, share: float = 1.0) -> Rewrite:
        """Return the widest network that is no slower; no group gets narrower.

        Groups that a layer norm reads stay: a new channel would change what it computes.

        Args:
            share: of the present latency that it may take, where the model is known to err.
        """
        candidates = {}
        for group, edges in self._edges().items():
            now = self.flow.groups[group].width
            candidates[group] = [width for width in edges if width >= now] or [now]
        chosen = self._chosen(candidates, lambda p: p.choose(share * self.present_us))
        return self._rewrite(chosen) if chosen is not None else self._unchanged()

    def within(self, budget: float) -> Rewrite:
        """Return the network of the most capacity within a share of the present latency.

        Raises:
            RequestError: the budget isn't positive, or the narrowest network needs more.
        """
        if not budget > 0:
            raise RequestError(f"a budget is a positive share of the latency; got {budget}")
        edges = self._edges()
        chosen = self._chosen(edges, lambda p: p.choose(budget * self.present_us))
        if chosen is None:
            least = self._problem(edges).cheapest_us() / self.present_us
            raise RequestError(
                f"a budget is at least what the fastest network with widths from "
                f"{self._range[0]} times the present ones needs, {least:.3f} of the latency; "
                f"got {budget}"
            )
        return self._rewrite(chosen)

    def around(self, budgets: Sequence[float]) -> list[Rewrite]:
        """Return the rewrites for several budgets, those that can be met."""
        problem = self._problem(self._edges())
        found = (problem.choose(budget * self.present_us) for budget in budgets)
        return [self._rewrite(chosen) for chosen in found if chosen is not None]

    def fastest(self) -> Rewrite:
        """Return the fastest network with at least the present capacity."""
        chosen = self._chosen(self._edges(), lambda p: p.fastest(0.0))
        if chosen is None or chosen.latency_us >= self.present_us:
            return self._unchanged()
        return self._rewrite(chosen)

    def rounded(self, step: int, up: bool) -> Rewrite:
        """Return the network with all widths at multiples of a number of channels, as people do.

        Heads stay, and what a layer norm reads doesn't grow.

        Args:
            step: the number of channels.
            up: to the next multiple above; below otherwise.
        """
        widths = {}
        for group in self.costs.free:
            now, unit = self.flow.groups[group].width, coarse_step(self.flow.groups[group], step)
            width = -(-now // unit) * unit if up else max(unit, now // unit * unit)
            widths[group] = now if width > now and self._normed(group) else width
        changes = {group: width - self.flow.groups[group].width for group, width in widths.items()}
        return self._rewrite(Chosen(widths, 0.0, self.capacity.at(changes), None))

    def _edges(self) -> dict[int, list[int]]:
        """Return the widths of every group that are worth choosing; normed ones don't grow.

        Those are the ones of which every wider one is expected to be slower. The present width
        is one of them, unless the runtime launches more there than at widths that fill its
        vectors: it isn't priced rightly, and worth leaving.
        """
        edges = {}
        for group, found in self.stairs.items():
            most = found.present if self._normed(group) else len(found.widths)
            kept = _steepest(np.flatnonzero(found.undominated[:most]), found.latency_us)
            if self._may_stay(found) or not kept:
                kept.append(found.present)
            edges[group] = [int(found.widths[i]) for i in sorted(set(kept))]
        return edges

    def _may_stay(self, found: Stairs) -> bool:
        others = np.delete(found.widths, found.present)
        if not len(others) or (self.costs.exact and self._vector == 1):
            return True
        return bool(found.widths[found.present] % np.gcd.reduce(others) == 0)

    def _step(self, group: int) -> int:
        coarse = coarse_step(self.flow.groups[group], self._vector)
        return math.lcm(self.costs.steps[group], coarse)

    def _normed(self, group: int) -> bool:
        return self.flow.groups[group].normed

    def _chosen(
        self, candidates: Mapping[int, list[int]], choose: Callable[[WidthProblem], Chosen | None]
    ) -> Chosen | None:
        """Choose among candidates, and once more among all widths next to those chosen.

        Wide groups have candidates far apart, and what lies between may fit a budget better.
        """
        problem = self._problem(candidates)
        chosen = choose(problem)
        if chosen is None or not problem.is_exact:
            return chosen
        near = {g: self._near(g, width, candidates[g]) for g, width in chosen.widths.items()}
        # The choice itself is among them, so none of what is found is worse.
        finer = choose(self._problem(near))
        if finer is None or chosen.bound is None:
            return finer or chosen
        return replace(finer, bound=max(chosen.bound, finer.gain))

    def _near(self, group: int, width: int, candidates: Sequence[int]) -> list[int]:
        at = candidates.index(width)
        low, high = candidates[max(0, at - 1)], candidates[min(at + 1, len(candidates) - 1)]
        step = self._step(group)
        while (high - low) // step > _MOST_NEAR:
            step *= 2
        between = range(-(-low // step) * step, high + 1, step)
        return sorted({low, width, high, *between})

    def _problem(self, candidates: Mapping[int, list[int]]) -> WidthProblem:
        return WidthProblem(self.costs, self.pricer, self.capacity, self.weights, candidates)

    def _unchanged(self) -> Rewrite:
        now = {group: self.flow.groups[group].width for group in self.costs.free}
        return self._rewrite(Chosen(now, self.present_us, 0.0, None))

    def _rewrite(self, chosen: Chosen) -> Rewrite:
        net = with_widths(self.flow, chosen.widths)
        latency = self.model.predict_net(net, self.batch).latency_ms
        names = {self.flow.groups[g].name: width for g, width in chosen.widths.items()}
        return Rewrite(
            net, names, chosen.widths, latency, net.parameters, chosen.gain, chosen.bound
        )


def _steepest(kept: np.ndarray, latency_us: np.ndarray) -> list[int]:
    """Return at most ``_MOST_EDGES`` of some widths: before the greatest steps, and evenly spread.

    A smooth slope is as good at fewer places; an edge isn't.

    Args:
        kept: indices of undominated widths, ascending.
        latency_us: of all widths.
    """
    if len(kept) <= _MOST_EDGES:
        return [int(i) for i in kept]
    steps = np.append(np.diff(latency_us[kept]), np.inf)
    edges = np.argsort(-steps, kind="stable")[: _MOST_EDGES // 2]
    spread = np.linspace(0, len(kept) - 1, _MOST_EDGES - len(edges)).round().astype(int)
    return [int(kept[i]) for i in sorted({*edges.tolist(), *spread.tolist()})]
