"""Which widths a runtime launches the same kernels for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from nets_examples import head
from tail_examples import conv, depthwise, gate, names, nets, residual_model

from tadnn.latency import LatencyModel
from tadnn.nets import Net, NetBuilder
from tadnn.runtimes import find_runtime, lower_net
from tadnn.tail import Rewriter, candidate_widths, follow, width_costs, with_widths
from tadnn.tail.candidates import coarse_step


def on(runtime: str) -> LatencyModel:
    model = residual_model()
    setting = replace(model.setting, runtime=runtime)
    return LatencyModel(replace(model.card, setting=setting), model.ops, model.nets, model.device)


def gated(width: int = 40) -> Net:
    """A squeeze-excite between convolutions, wide enough for widths between whole vectors."""
    builder = NetBuilder((3, 16, 16))
    for i, made in enumerate([conv(width), depthwise(width), gate(width, 8), conv(48), head(10)]):
        builder.add(f"b{i}", made)
    return builder.build()


def test_onnxruntime_pools_gates_in_blocks_at_whole_vectors_only():
    flow = follow(gated())
    where = names(flow)
    costs = width_costs(flow, on("onnxruntime"))
    assert costs.steps[where["b0.conv"]] == 16, "it feeds the pooling of the gate"
    assert costs.steps[where["b3.conv"]] == 16, "so does the last one, that of the head"
    plain = width_costs(flow, on("torch-eager"))
    assert plain.steps[where["b0.conv"]] == 4
    assert set(plain.steps) == set(costs.steps) == set(costs.free)


# Of a grouped convolution, ONNX Runtime lays 16 channels a group out in blocks where both of its
# sides have such: no step of one width tells that.
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        (name, runtime)
        for name in (*nets(), "gated")
        for runtime in ("onnxruntime", "torch-eager")
        if (name, runtime) != ("grouped", "onnxruntime")
    ],
)
def test_multiples_of_the_steps_launch_what_is_priced(name, runtime):
    net = gated() if name == "gated" else nets()[name]
    flow = follow(net)
    costs = width_costs(flow, on(runtime))
    rng = np.random.default_rng(0)
    for _ in range(6):
        widths = {
            g: max(16, step) // step * step + int(rng.integers(0, 12)) * step
            for g, step in costs.steps.items()
        }
        changes = {g: width - flow.groups[g].width for g, width in widths.items()}
        priced = Counter(costs.still)
        for wide in costs.kernels:
            priced[wide.at(changes)] += wide.count
        other = with_widths(flow, widths)
        assert priced == Counter(lower_net(other, 1, "fp32", find_runtime(runtime)))


def test_rewrites_choose_widths_that_launch_what_was_priced():
    made = Rewriter(gated(40), on("onnxruntime"))
    assert not made.costs.exact, "40 channels aren't pooled in blocks"
    where = names(made.flow)
    assert all(width % 16 == 0 for width in made.stairs[where["b0.conv"]].widths if width != 40)
    assert made.within(0.9).changed[where["b0.conv"]] % 16 == 0


def test_coarse_steps_fill_vectors_and_leave_heads():
    flow = follow(nets()["attention"])
    steps = {group.name: coarse_step(group, 8) for group in flow.groups}
    assert steps["b1.attention"] == 1
    assert steps["b1.fc1"] == 8
    grouped = follow(nets()["grouped"])
    assert {coarse_step(g, 8) % g.grain for g in grouped.groups} == {0}
    group = flow.groups[names(flow)["b1.fc1"]]
    assert candidate_widths(group, step=8) == [24, 32, 40, 48, 56, 64, 72, 80]
