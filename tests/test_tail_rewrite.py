"""Rewriting onto edges under a budget, and the report; the device's stairs are known."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from nets_examples import small_net
from tail_examples import (
    clock,
    model_of_net,
    module_of,
    names,
    nets,
    residual_model,
    residual_net,
)

from tadnn.errors import RequestError
from tadnn.latency import LatencyModel
from tadnn.nets import Net
from tadnn.profiling import FakeClock, NetRun
from tadnn.profiling.fake_clock import BASE_US, GAP_US
from tadnn.tail import (
    Goal,
    Rewriter,
    budget,
    candidate_widths,
    decide,
    flops_gain,
    follow,
    importance,
    parameter_gain,
    refine,
    tail_report,
    to_json,
    variants,
    width_costs,
    with_widths,
)


def rewriter(**options) -> Rewriter:
    return Rewriter(residual_net(), residual_model(), **options)


def some_changes(flow, seed: int) -> dict[int, int]:
    rng = np.random.default_rng(seed)
    return {g: int(rng.integers(-3, 9)) * flow.groups[g].grain for g in flow.free}


@pytest.mark.parametrize("name", nets())
def test_counted_parameters_and_flops_are_those_of_the_network(name):
    net = nets()[name]
    flow = follow(net)
    costs = width_costs(flow, residual_model())
    parameters, flops = parameter_gain(flow), flops_gain(costs)
    for seed in range(3):
        changes = {
            g: max(c, flow.groups[g].grain - flow.groups[g].width)
            for g, c in some_changes(flow, seed).items()
        }
        other = with_widths(flow, {g: flow.groups[g].width + c for g, c in changes.items()})
        assert parameters.at(changes) == other.parameters - net.parameters
        regular = {g: c for g, c in changes.items() if g in costs.free}
        other = with_widths(flow, {g: flow.groups[g].width + c for g, c in regular.items()})
        assert flops.at(regular) == pytest.approx(other.flops() - net.flops())


@pytest.mark.parametrize("seed", range(3))
def test_predicted_latency_of_changed_widths_is_that_of_the_lowered_network(seed):
    made = rewriter()
    changes = some_changes(made.flow, seed)
    widths = {g: made.flow.groups[g].width + c for g, c in changes.items()}
    other = with_widths(made.flow, widths)
    priced = made.pricer.total_us(made.costs, changes)
    priced += made.pricer.parameters_us() * other.parameters
    assert priced / 1e3 == pytest.approx(residual_model().predict_net(other).latency_ms, rel=1e-4)


@pytest.mark.parametrize("budget", [0.6, 0.75, 0.9, 1.0])
def test_budgets_are_met_and_the_bound_holds(budget):
    made = rewriter()
    found = made.within(budget)
    share = found.latency_ms / (made.present_us / 1e3)
    assert budget - 0.05 <= share <= budget * 1.001
    assert found.bound is not None
    assert found.gain <= found.bound
    assert found.parameters == found.net.parameters
    assert found.gain == found.parameters - residual_net().parameters
    lowered = residual_model().predict_net(found.net).latency_ms
    assert found.latency_ms == pytest.approx(lowered)


def test_more_time_buys_more_capacity():
    gains = [rewriter().within(budget).gain for budget in (0.6, 0.7, 0.8, 0.9, 1.0)]
    assert gains == sorted(gains)


def test_a_rewrite_is_the_best_of_all_combinations_where_they_can_be_counted():
    net = nets()["chain"]
    model = model_of_net(net)
    made = Rewriter(net, model)
    found = made.within(0.8)
    free = made.costs.free
    edges = made._edges()
    best = -np.inf
    for widths in itertools.product(*[edges[g] for g in free]):
        changes = {g: w - made.flow.groups[g].width for g, w in zip(free, widths, strict=True)}
        total = made.pricer.total_us(made.costs, changes)
        if total <= 0.8 * made.present_us:
            best = max(best, made.capacity.at(changes))
    assert found.gain == pytest.approx(best, abs=0.02 * net.parameters)
    assert found.bound is not None
    assert found.bound >= best - 1e-6


def test_widening_never_narrows_and_takes_no_more_time():
    made = rewriter()
    found = made.widened()
    for group in made.flow.groups:
        assert found.widths.get(group.name, group.width) >= group.width
    assert found.latency_ms <= 1.001 * made.present_us / 1e3
    assert found.gain >= 0


def test_widening_leaves_what_is_normed():
    net = nets()["attention"]
    made = Rewriter(net, model_of_net(net))
    assert made.widened().widths["b0.patches"] == 24


def test_the_fastest_keeps_its_capacity():
    made = rewriter()
    found = made.fastest()
    assert found.parameters >= residual_net().parameters
    assert found.latency_ms <= made.present_us / 1e3


def test_a_budget_that_nothing_meets_names_the_least_that_is():
    made = rewriter(narrowest=0.9)
    with pytest.raises(RequestError, match=r"needs, (0\.\d+) of the latency; got 0\.3") as error:
        made.within(0.3)
    least = float(str(error.value).split("needs, ")[1].split(" ")[0])
    found = made.within(least + 0.002)
    assert found.latency_ms <= (least + 0.003) * made.present_us / 1e3


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_budgets_are_positive(budget):
    with pytest.raises(RequestError, match="positive share"):
        rewriter().within(budget)


@pytest.mark.parametrize(("narrowest", "widest"), [(1.2, 2.0), (0.5, 0.9), (-1, 2), (0.5, 100)])
def test_bounds_of_widths_are_checked(narrowest, widest):
    with pytest.raises(RequestError, match="widths go from"):
        rewriter(narrowest=narrowest, widest=widest)


def test_capacities_are_named():
    with pytest.raises(RequestError, match="parameters, flops, importance; got 'beauty'"):
        rewriter(capacity="beauty")
    with pytest.raises(RequestError, match="needs weights"):
        rewriter(capacity="importance")


@pytest.mark.parametrize("capacity", ["flops", "importance"])
def test_other_capacities(capacity):
    net = residual_net()
    scores = importance(follow(net), module_of(net).state_dict())
    made = rewriter(capacity=capacity, importance=scores)
    found = made.within(0.8)
    assert found.latency_ms <= 0.801 * made.present_us / 1e3
    if capacity == "flops":
        assert found.gain == pytest.approx(found.net.flops() - net.flops())
    else:
        kept = [
            np.sort(scores[g])[::-1][: found.changed[g]].sum() - scores[g].sum()
            for g in made.costs.free
        ]
        assert found.gain == pytest.approx(sum(kept))


def test_networks_are_priced_in_the_dtype_of_the_model():

    model = residual_model()
    setting = replace(model.setting, dtype="fp16")
    half = LatencyModel(replace(model.card, setting=setting), model.ops, model.nets, model.device)
    # Networks have none of their own.
    assert all(w.kernel.dtype == "fp16" for w in Rewriter(residual_net(), half).costs.kernels)


# The report.


def test_the_report_speaks_of_every_group():
    report = tail_report(rewriter())
    assert {group.name for group in report.groups} == set(names(follow(residual_net())))
    shares = [group.share for group in report.groups]
    assert shares == sorted(shares, reverse=True)
    assert 0.4 < sum(shares) <= 1.001
    for group in report.groups:
        assert (group.stairs is None) == bool(group.frozen)
        if group.stairs is not None:
            assert 0 < group.utilisation <= 1
            assert group.waves >= 1
        if group.edge_down is not None:
            assert group.edge_down.width < group.width
        if group.edge_up is not None:
            assert group.edge_up.width > group.width


def test_edges_cost_what_the_rewritten_network_does():
    made = rewriter()
    report = tail_report(made)
    index = names(made.flow)
    for group in report.groups:
        for edge in (group.edge_down, group.edge_up):
            if edge is None:
                continue
            other = with_widths(made.flow, {index[group.name]: edge.width})
            changed = residual_model().predict_net(other).latency_ms * 1e3 - made.present_us
            assert edge.change_us == pytest.approx(changed, abs=0.02)


def test_a_network_off_its_stairs_has_something_to_gain():
    """24 channels where blocks are of 16: the second block is half empty."""
    report = tail_report(rewriter())
    (line,) = report.remarks()
    assert line.startswith("the tail takes up to ")
    assert report.gain_us > 0


def test_a_network_on_its_edges_has_less():
    """32 channels fill two blocks of 16."""
    off = tail_report(rewriter())
    index = names(rewriter().flow)
    widths = {i: 32 if "stage2" not in name else 64 for name, i in index.items()}
    on = with_widths(rewriter().flow, {i: widths[i] for i in rewriter().flow.free})
    share = tail_report(Rewriter(on, residual_model())).gain_us / on.flops()
    assert share < 0.5 * off.gain_us / residual_net().flops()


def test_nothing_to_gain_is_said():
    report = tail_report(rewriter())
    full = replace(report, groups=tuple(replace(g, tail_us=0.0) for g in report.groups))
    assert full.remarks()[0].startswith("nothing to gain from the tail")


def test_a_network_without_freedom_is_no_error():
    net = Net.checked((3, 8, 8), nets()["chain"].blocks[:1])
    made = Rewriter(net, residual_model())
    report = tail_report(made)
    assert all(group.frozen for group in report.groups)
    assert report.remarks() == [
        "no width of this network can change alone: there is no tail to remove"
    ]
    assert made.widened().net == net
    assert made.within(1.0).net == net
    with pytest.raises(RequestError, match=r"needs, 1\.000 of the latency; got 0\.8"):
        made.within(0.8)


def test_the_record_has_the_keys_of_the_contract():
    made = rewriter()
    record = json.loads(json.dumps(to_json(tail_report(made), made.within(0.8))))
    assert {"latency_ms", "groups", "rewrite"} <= set(record)
    keys = ["name", "layers", "width", "latency_us", "share", "waves", "utilisation"]
    for group in record["groups"]:
        assert list(group)[: len(keys)] == keys
        assert group["edge_down"] is None or list(group["edge_down"]) == ["width", "saves_us"]
        assert group["edge_up"] is None or list(group["edge_up"]) == ["width", "costs_us"]
    assert {"latency_ms", "widths", "parameters", "bound"} <= set(record["rewrite"])
    assert to_json(tail_report(made), None)["rewrite"] is None


# Measuring.


def test_variants_are_the_network_with_other_candidate_widths():
    net = residual_net()
    flow = follow(net)
    made = variants(flow, 10, seed=3)
    assert made[0] == net
    assert len(made) == 10
    assert made == variants(flow, 10, seed=3)
    allowed = {g: candidate_widths(flow.groups[g], 0.4, 1.6) for g in flow.free}
    for other in made[1:]:
        found = follow(other)
        for g in flow.free:
            assert found.groups[g].width in allowed[g]


def test_half_of_the_variants_fill_vectors_on_both_sides_of_their_layers():
    net = small_net(40)
    flow = follow(net)
    made = variants(flow, 25)
    widths = np.array([[follow(o).groups[g].width for g in flow.free] for o in made])
    assert widths[0].tolist() == [flow.groups[g].width for g in flow.free]
    assert np.all(widths[2::4] % 8 == 0)
    assert np.all(widths[4::4] % 16 == 0)
    assert np.any(widths[1::2] % 8)


@pytest.mark.parametrize("step", [8, 16])
def test_rounding_as_people_do(step):
    made = Rewriter(small_net(20), residual_model())
    now = {g.name: g.width for g in made.flow.groups}
    for up in (True, False):
        found = made.rounded(step, up)
        assert all(width % step == 0 for width in found.widths.values())
        for name, width in found.widths.items():
            assert abs(width - now[name]) < step
            assert (width >= now[name]) is up or width in (now[name], step)
        assert found.gain == found.parameters - made.net.parameters
        assert found.latency_ms == residual_model().predict_net(found.net).latency_ms
    normed = Rewriter(nets()["attention"], residual_model())
    widths = normed.rounded(16, up=True).widths
    assert widths["b0.patches"] == 24, "a layer norm reads it"
    assert (widths["b1.attention"], widths["b1.fc1"]) == (3, 48)


def test_coarse_rewrites_have_whole_vectors_only():
    made = rewriter().coarse(16)
    for found in (made.within(0.8), made.widened(1.3), made.fastest()):
        assert all(width % 16 == 0 or width == 24 for width in found.widths.values())
    assert made.within(0.8).gain <= rewriter().within(0.8).gain
    with pytest.raises(RequestError, match="at least 1; got 0"):
        rewriter().coarse(0)


class Stepwise(FakeClock):
    """A device that the model is wrong about: widths that don't fill half vectors cost double."""

    def true_us(self, subject):
        us = super().true_us(subject)
        if isinstance(subject, NetRun):
            flow = follow(subject.net)
            uneven = any(flow.groups[g].width % 8 for g in flow.free)
            return us * (2 if uneven else 1)
        return us


def test_rounded_widths_are_tried_where_the_model_sees_no_edges():
    net = small_net(20)
    device = Stepwise(clock().setting, clock().device, noise=0.002)
    goals = (FASTEST, BUDGET, Goal("widen"))
    made = Rewriter(net, residual_model())
    refined = refine(made, goals, device, lambda nets: residual_model())
    for goal, decision in refined.decisions.items():
        assert decision.rewrite is not None, goal
        assert all(width % 8 == 0 for width in decision.rewrite.widths.values()), goal
    assert device.true_us(NetRun(refined.decisions[FASTEST].rewrite.net)) < device.true_us(
        NetRun(made.rounded(8, up=True).net)
    )


BUDGET, FASTEST = Goal("budget", 0.8), Goal("fastest")


def test_the_clock_takes_the_proposal_of_the_most_gain_that_it_finds_fast_enough():
    made = rewriter()
    proposals = [made.within(0.8), *made.around((1.2, 0.7))]
    decisions = decide(clock(), residual_net(), {BUDGET: proposals, FASTEST: proposals}, 1)
    decision = decisions[BUDGET]
    assert decision.rewrite is not None
    assert decision.measured is not None
    level = decision.level_us
    assert decision.measured.latency_us <= (0.8 + decision.noise) * level
    assert decision.rewrite.gain == max(
        p.gain for p in proposals if clock().true_us(NetRun(p.net)) < 0.8 * level
    )
    fastest = decisions[FASTEST]
    assert fastest.rewrite is not None
    assert fastest.rewrite.net == proposals[-1].net
    few = Goal("budget", 0.1)
    assert decide(clock(), residual_net(), {few: proposals}, 1)[few].rewrite is None
    with pytest.raises(RequestError, match="at least one proposal"):
        decide(clock(), residual_net(), {BUDGET: []}, 1)


def test_what_is_proposed_is_measured_and_aimed_at_anew():
    """A model that knows nothing of launches thinks that all time follows widths."""
    hopeful = residual_model()
    added = replace(hopeful.nets, base_us=BASE_US, gap_us=GAP_US)
    honest = LatencyModel(hopeful.card, hopeful.ops, added, hopeful.device)
    made = Rewriter(residual_net(), hopeful)
    learned: list[Net] = []

    def relearn(nets):
        learned.extend(nets)
        return honest

    goals = (BUDGET, Goal("widen"), FASTEST)
    refined = refine(made, goals, clock(), relearn, rounds=3)
    assert refined.rewriter.model is honest
    assert made.within(0.8).net in learned
    true = clock().true_us
    level = true(NetRun(residual_net()))
    for goal, decision in refined.decisions.items():
        assert decision.rewrite is not None, goal
        share = true(NetRun(decision.rewrite.net)) / level
        assert share <= goal.share * 1.01
        if goal.kind == "budget":
            assert share > 0.95 * goal.share
            hoped = true(NetRun(made.within(0.8).net)) / level
            assert abs(share - 0.8) < abs(hoped - 0.8)
        if goal.kind == "widen":
            assert decision.rewrite.gain >= 0
            now = {g.name: g.width for g in refined.rewriter.flow.groups}
            assert all(decision.rewrite.widths[n] >= now[n] for n in decision.rewrite.widths)
    with pytest.raises(RequestError, match="a budget is at least"):
        refine(rewriter(), [Goal("budget", 0.01)], clock(), relearn)


def test_what_must_be_approximated_keeps_what_was_asked(monkeypatch):
    """As for a concatenation of many widths: no kernel may make a table."""
    exact = rewriter().fastest()
    monkeypatch.setattr(budget, "_MOST_KERNELS", 1)
    made = rewriter()
    fastest, within = made.fastest(), made.within(0.8)
    assert fastest.parameters >= residual_net().parameters
    assert exact.latency_ms * 0.999 <= fastest.latency_ms <= made.present_us / 1e3
    assert within.latency_ms <= 0.8001 * made.present_us / 1e3
    assert within.bound is fastest.bound is None
