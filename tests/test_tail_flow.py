"""Which widths move together, on networks that were made to show one tie each."""

from __future__ import annotations

import pytest
import torch
from nets_examples import head
from tail_examples import _net, conv, module_of, names, nets, output, scaled
from zoo import MEMBERS

from tadnn.errors import RequestError
from tadnn.nets import Net, trace
from tadnn.tail import carry_over, follow, importance, with_widths

NETS = nets()


def widths(net: Net) -> dict[str, int]:
    return {group.name: group.width for group in follow(net).groups if not group.frozen}


def test_a_chain_has_a_group_per_layer_and_its_output_stays():
    flow = follow(NETS["chain"])
    assert widths(NETS["chain"]) == {"b0.conv": 12, "b1.conv": 20}
    (last,) = (group for group in flow.groups if group.frozen)
    assert (last.name, last.frozen) == ("b2.classifier", "it is the network's output")


def test_what_is_added_has_one_width():
    found = widths(NETS["residual"])
    assert found == {
        "stem.conv": 8,
        "stage1_1.conv1": 8,
        "stage1_2.conv1": 8,
        "stage2_1.conv1": 16,
        "stage2_1.conv2": 16,
        "stage2_2.conv1": 16,
    }
    flow = follow(NETS["residual"])
    stem = flow.groups[names(flow)["stem.conv"]]
    assert len(stem.setters) == 3  # the stem, and the second convolutions of two blocks


def test_a_depthwise_convolution_follows_its_input():
    flow = follow(NETS["depthwise"])
    assert widths(NETS["depthwise"]) == {"b0.conv": 12, "b2.conv": 16}
    wider = with_widths(flow, {0: 15})
    layer = wider.blocks[1][1].nodes[0].layer
    assert (layer.out, layer.groups) == (15, 15)


def test_a_grouped_convolution_keeps_its_parts_alike():
    flow = follow(NETS["grouped"])
    grains = {group.name: group.grain for group in flow.groups if not group.frozen}
    assert grains == {"b0.conv": 4, "b1.conv": 4, "b2.conv": 1}
    with pytest.raises(RequestError, match=r"positive multiple of 4; got 18"):
        with_widths(flow, {0: 18})


def test_a_gate_is_as_wide_as_what_it_scales():
    assert widths(NETS["gate"]) == {"b0.conv": 16, "b1.reduce": 4, "b2.conv": 12}


def test_concatenated_widths_stay_apart():
    flow = follow(NETS["concat"])
    assert widths(NETS["concat"]) == {
        "b0.conv": 8, "b1.left": 8, "b1.right": 12, "b2.conv": 16,
    }  # fmt: skip
    index = names(flow)
    wider = with_widths(flow, {index["b1.left"]: 10, index["b1.right"]: 9})
    assert wider.chain()[2][2] == (1, 19, 8, 8)


def test_a_flattened_image_has_entries_for_every_channel():
    flow = follow(NETS["flatten"])
    wider = with_widths(flow, {0: 7})
    assert wider.parameters - NETS["flatten"].parameters == (3 * 9 + 1) + 2 + 16 * 10


def test_heads_are_a_width_of_their_own_and_tokens_are_normed():
    flow = follow(NETS["attention"])
    assert widths(NETS["attention"]) == {
        "b0.patches": 24, "b1.attention": 3, "b1.fc1": 40, "b2.attention": 2, "b2.fc1": 32,
    }  # fmt: skip
    assert [group.name for group in flow.groups if group.normed] == ["b0.patches"]
    wider = with_widths(flow, {names(flow)["b0.patches"]: 32})
    assert wider.chain()[1][2] == (1, 16, 32)


def test_stored_scales_follow_what_they_meet():
    flow = follow(_net((3, 8, 8), conv(12), scaled(12), head(10)))
    assert widths(flow.net) == {"b0.conv": 12}
    assert with_widths(flow, {0: 20}).blocks[1][1].nodes[0].layer.shape == (1, 20, 1, 1)


def test_a_frozen_width_says_why():
    flow = follow(NETS["chain"])
    with pytest.raises(RequestError, match="stays 10: it is the network's output; got 12"):
        with_widths(flow, {names(flow)["b2.classifier"]: 12})


@pytest.mark.parametrize("name", NETS)
def test_new_channels_change_nothing_that_is_computed(name):
    net = NETS[name]
    flow, module = follow(net), module_of(net)
    wanted = {
        g: flow.groups[g].width + (i % 3 + 1) * flow.groups[g].grain
        for i, g in enumerate(flow.free)
        if not flow.groups[g].normed
    }
    wider = with_widths(flow, wanted)
    assert wider.parameters > net.parameters
    carried = wider.to_module(0).eval()
    carried.load_state_dict(carry_over(flow, module.state_dict(), wanted))
    before, after = output(module, net), output(carried, wider)
    assert float((before - after).abs().max()) <= 1e-5 * float(before.abs().max())


@pytest.mark.parametrize("name", NETS)
def test_channels_that_were_new_are_the_first_to_go(name):
    """Widened and narrowed again: new filters are the smaller ones, old weights all positive."""
    net = NETS[name]
    flow, module = follow(net), module_of(net)
    wanted = {
        g: flow.groups[g].width + 2 * flow.groups[g].grain
        for g in flow.free
        if not flow.groups[g].normed
    }
    wider = with_widths(flow, wanted)
    state = carry_over(flow, module.state_dict(), wanted)
    back = follow(wider)
    narrow = with_widths(back, {g: flow.groups[g].width for g in wanted})
    assert narrow == net
    carried = narrow.to_module(0).eval()
    carried.load_state_dict(carry_over(back, state, {g: flow.groups[g].width for g in wanted}))
    assert torch.allclose(output(module, net), output(carried, net), atol=1e-5)


def test_pruning_drops_the_least_important_channels_exactly():
    """Channels whose filters are zero, norm and all, take nothing with them."""
    net = NETS["chain"]
    flow, module = follow(net), module_of(net)
    with torch.no_grad():
        for name in ("b0.conv.weight", "b0.conv.bias", "b0.norm.weight", "b0.norm.bias"):
            module.state_dict()[name][[2, 7, 11]] = 0.0
    scores = importance(flow, module.state_dict())[0]
    assert scores.argsort()[:3].tolist() == [2, 7, 11]
    narrow = with_widths(flow, {0: 9})
    pruned = narrow.to_module(0).eval()
    pruned.load_state_dict(carry_over(flow, module.state_dict(), {0: 9}))
    assert torch.allclose(output(module, net), output(pruned, narrow), atol=1e-6)


def test_every_part_of_a_grouped_convolution_gives_as_many_channels():
    flow = follow(NETS["grouped"])
    state = module_of(NETS["grouped"]).state_dict()
    narrow = with_widths(flow, {0: 12, 1: 16})
    pruned = narrow.to_module(0)
    pruned.load_state_dict(carry_over(flow, state, {0: 12, 1: 16}))
    assert output(pruned.eval(), narrow).shape == (3, 10)


def test_weights_that_are_not_finite_are_refused_with_their_name():
    net = NETS["chain"]
    state = module_of(net).state_dict()
    state["b1.conv.weight"][0, 0, 0, 0] = float("nan")
    with pytest.raises(RequestError, match=r"NaN or infinity in b1\.conv\.weight"):
        carry_over(follow(net), state, {0: 16})


def test_importance_is_one_on_average():
    for name, net in NETS.items():
        flow = follow(net)
        for index, scores in importance(flow, module_of(net).state_dict()).items():
            assert len(scores) == flow.groups[index].width, name
            assert scores.mean() == pytest.approx(1.0)


ZOO = ("resnet18", "mobilenetv2_035", "seresnet18", "convnext_atto", "vit_tiny_patch16_224")


@pytest.mark.parametrize("member", [m for m in MEMBERS if m.name in ZOO], ids=lambda m: m.name)
def test_networks_that_people_have_are_widened_without_a_change(member):
    module = member.build()
    traced = trace(module, member.input_shape)
    flow = follow(traced.net)
    wanted = {
        g: flow.groups[g].width + (1 + g % 2) * flow.groups[g].grain
        for g in flow.free
        if not flow.groups[g].normed
    }
    assert wanted
    wider = with_widths(flow, wanted)
    carried = wider.to_module(0).eval()
    carried.load_state_dict(carry_over(flow, traced.to_module().state_dict(), wanted))
    x = member.example(2)
    with torch.inference_mode():
        before, after = module(x), carried(x)
    assert float((before - after).abs().max()) <= 1e-5 * float(before.abs().max())
