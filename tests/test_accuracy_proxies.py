from __future__ import annotations

import math

import pytest
import torch
from accuracy_examples import dataset, linear, small_cnn, state, unusual_cnn
from torch import nn

from tadnn import nets
from tadnn.accuracy import PROXIES, Split, evaluate_proxy, load_dataset
from tadnn.accuracy.proxies.naswot import (
    Naswot,
    agreement_kernel,
    distinct_images,
    log_determinant,
)
from tadnn.accuracy.proxies.synflow import synaptic_flow
from tadnn.errors import DataError, RequestError, UnknownName, WorkFailed

MODULE_PROXIES = sorted(name for name, proxy in PROXIES.items() if "module" in proxy.needs)


def linear_net(input_shape: tuple[int, int, int], classes: int) -> nets.Net:
    nodes = (
        nets.Node("flatten", nets.Flatten(), (nets.INPUT,)),
        nets.Node("logits", nets.Linear(classes), (0,)),
    )
    return nets.Net(input_shape, (("head", nets.Block("classifier", nodes)),))


class TestEveryProxy:
    """The contract in `Proxy`'s docstring."""

    @pytest.fixture(params=sorted(PROXIES))
    def name(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    def net(self) -> nets.Net:
        return linear_net((1, 8, 8), 10)

    def test_is_named_and_described(self, name):
        assert PROXIES[name].name == name
        assert PROXIES[name].description
        assert PROXIES[name].needs

    def test_equal_arguments_give_an_equal_finite_value(self, name, net):
        digits = load_dataset("digits")
        values = {evaluate_proxy(name, net, small_cnn(), digits, 3) for _ in range(2)}
        assert len(values) == 1
        assert all(math.isfinite(value) for value in values)
        if name not in ("progressivity", "trainability"):  # differences
            assert min(values) > 0

    def test_leaves_module_and_random_state_alone(self, name, net):
        module = unusual_cnn()
        before, random = state(module), torch.get_rng_state()
        evaluate_proxy(name, net, module, load_dataset("digits"), 0)
        assert state(module) == before
        assert torch.equal(torch.get_rng_state(), random)

    def test_works_where_gradients_are_off(self, name, net):
        digits = load_dataset("digits")
        expected = evaluate_proxy(name, net, small_cnn(), digits, 0)
        for switch in (torch.no_grad, torch.inference_mode):
            with switch():
                assert evaluate_proxy(name, net, small_cnn(), digits, 0) == expected

    def test_needs_only_what_it_says(self, name, net):
        given = {"net": net, "module": small_cnn(), "dataset": load_dataset("digits")}
        needs = PROXIES[name].needs
        evaluate_proxy(
            name, **{key: value if key in needs else None for key, value in given.items()}
        )
        for missing in needs:
            with pytest.raises(RequestError, match=f"{name!r} needs a {missing}"):
                evaluate_proxy(name, **{**given, missing: None})


def test_unknown_proxies_show_near_ones():
    with pytest.raises(UnknownName, match="did you mean 'naswot'"):
        evaluate_proxy("nasswot", None, None, None, 0)


@pytest.mark.parametrize("name", MODULE_PROXIES)
def test_a_failing_forward_pass_is_named_and_leaves_the_module_alone(name):
    module = unusual_cnn()
    before = state(module)
    with pytest.raises(WorkFailed, match=r"failed on a batch of shape \[\d+, 3, 8, 8\]"):
        evaluate_proxy(name, None, module, load_dataset("digits", (3, 8, 8)), 0)
    assert state(module) == before


@pytest.mark.parametrize("name", MODULE_PROXIES)
def test_what_is_no_classifier_is_refused(name):
    with pytest.raises(RequestError, match="must return one tensor"):
        evaluate_proxy(name, None, nn.Conv2d(1, 1, 3), load_dataset("digits"), 0)


@pytest.mark.parametrize("name", MODULE_PROXIES)
def test_nan_is_never_a_score(name):
    module = small_cnn()
    with torch.no_grad():
        module.conv.weight[0] = math.nan
    with pytest.raises(WorkFailed, match="finite"):
        evaluate_proxy(name, None, module, load_dataset("digits"), 0)


def test_counts_are_the_nets():
    net = linear_net((1, 2, 2), 5)
    assert evaluate_proxy("parameters", net, None, None, 0) == 4 * 5 + 5
    assert evaluate_proxy("flops", net, None, None, 0) == net.flops(batch=1)


# naswot


def test_naswot_by_hand():
    # Codes 111, 100 and 011: they agree on 1, 2 and 0 of three units.
    images = torch.tensor([[1.0, 1.0], [1.0, -2.0], [-1.0, 2.0]]).reshape(3, 1, 1, 2)
    module = nn.Sequential(nn.Flatten(), linear([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]), nn.ReLU())
    kernel = agreement_kernel(module, images)
    assert kernel.tolist() == [[3, 1, 2], [1, 3, 0], [2, 0, 3]]
    assert evaluate_proxy("naswot", None, module, dataset(images), 0) == pytest.approx(math.log(12))


def test_naswot_adds_up_layers_and_calls():
    relu = nn.ReLU(inplace=True)
    flip = linear([-1.0, 0.0], [0.0, -1.0])
    images = torch.tensor([[1.0, 1.0], [1.0, -2.0]]).reshape(2, 1, 1, 2)
    # First call: 11 and 10. Flipped after the cut, nothing is positive: 00 and 00.
    module = nn.Sequential(nn.Flatten(), relu, flip, relu)
    assert agreement_kernel(module, images).tolist() == [[4, 3], [3, 4]]


def test_naswot_normalises_by_the_minibatch_and_keeps_running_statistics():
    norm = nn.BatchNorm1d(2)
    module = nn.Sequential(nn.Flatten(), norm, nn.ReLU()).eval()
    images = torch.tensor([[1.0, 5.0], [2.0, 4.0]]).reshape(2, 1, 1, 2)
    # All are positive, but they lie on opposite sides of the mean (1.5, 4.5).
    assert agreement_kernel(module, images).tolist() == [[2, 0], [0, 2]]
    assert norm.running_mean.tolist() == [0.0, 0.0]
    assert int(norm.num_batches_tracked) == 0


def test_naswot_counts_agreement():
    module = small_cnn()
    images = load_dataset("digits").splits["train"].images[:6]
    codes = []
    module.eval()
    module.norm.train()
    for unit in (module.relu, module.relu2):
        unit.register_forward_hook(lambda _, __, output: codes.append((output > 0).flatten(1)))
    with torch.no_grad():
        module(images)
    whole = torch.cat(codes, dim=1)
    expected = [[int((a == b).sum()) for b in whole] for a in whole]
    assert agreement_kernel(module, images).tolist() == expected


def test_a_singular_kernel_scores_the_least():
    codes = torch.rand(32, 5000, generator=torch.Generator().manual_seed(0)) > 0.5
    codes[7] = codes[3]
    signs = codes.double() * 2 - 1
    kernel = (5000 + signs @ signs.T) / 2
    # Rounding may hide it from the determinant (it does in some BLAS), so the rank is asked.
    assert log_determinant(kernel) == 0.0
    assert log_determinant(kernel[:7, :7]) > 0.0


def test_fewer_units_than_images_score_the_least():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.ReLU(), nn.Linear(2, 10))
    assert evaluate_proxy("naswot", None, module, load_dataset("digits"), 0) == 0.0


def test_naswot_without_a_relu_module_is_refused():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Sigmoid())
    with pytest.raises(RequestError, match="calls none"):
        evaluate_proxy("naswot", None, module, load_dataset("digits"), 0)


def test_the_minibatch_has_distinct_images_and_depends_on_the_seed():
    images = torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0]).reshape(5, 1, 1, 1)
    split = Split(images, torch.zeros(5, dtype=torch.int64))
    assert sorted(distinct_images(split, 32, seed=0).flatten().tolist()) == [0.0, 1.0, 2.0]
    assert len(distinct_images(split, 2, seed=0)) == 2
    train = load_dataset("digits").splits["train"]
    first, again, other = (distinct_images(train, 32, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_one_distinct_image_is_not_enough():
    with pytest.raises(DataError, match="two distinct images"):
        evaluate_proxy("naswot", None, small_cnn(), dataset(torch.ones(4, 1, 8, 8)), 0)


def test_naswot_prefers_the_wider_network():
    # Twice the units double every entry's scale: n ln 2 more, about.
    def wide(units: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU())

    digits = load_dataset("digits")
    scores = [Naswot(batch_size=8).score(None, wide(units), digits, 0) for units in (2000, 4000)]
    assert scores[1] - scores[0] == pytest.approx(8 * math.log(2), rel=0.1)


# synflow


def test_synflow_of_two_linear_layers():
    # R = 1'|W2||W1|1 = (2 + 3) * (1 + 2) + (4 + 1) * (3 + 1) = 35, once through each layer.
    module = nn.Sequential(
        nn.Flatten(), linear([1.0, -2.0], [-3.0, 1.0]), linear([2.0, -4.0], [3.0, 1.0])
    )
    images = torch.rand(2, 1, 1, 2)
    assert float(synaptic_flow(module, (1, 1, 2))) == 70.0
    value = evaluate_proxy("synflow", None, module, dataset(images), 0)
    assert value == pytest.approx(math.log(71), rel=1e-12)


def test_synflow_lets_biases_flow_but_does_not_count_them():
    # First layer: 1'|W2||W1|1 = 35. Second: 1'|W2|(|W1|1 + |b1|) = 35 + 5 * 1 + 5 * 2.
    module = nn.Sequential(
        nn.Flatten(),
        linear([1.0, -2.0], [-3.0, 1.0], bias=[-1.0, 2.0]),
        nn.ReLU(),
        linear([2.0, -4.0], [3.0, 1.0], bias=[5.0, 5.0]),
    )
    assert float(synaptic_flow(module, (1, 1, 2))) == 35.0 + 50.0


def test_synflow_skips_batch_normalisation():
    def net(*between: nn.Module) -> nn.Module:
        first = nn.Conv2d(1, 2, 1, bias=False)
        with torch.no_grad():
            first.weight.copy_(torch.tensor([1.0, -2.0]).reshape(2, 1, 1, 1))
        return nn.Sequential(first, *between, nn.Flatten(), linear([1.0] * 8))

    norm = nn.BatchNorm2d(2)
    with torch.no_grad():
        norm.weight.zero_()
        norm.running_mean.fill_(100.0)
    assert float(synaptic_flow(net(), (1, 2, 2))) == 2 * 4 * (1 + 2)
    assert float(synaptic_flow(net(norm), (1, 2, 2))) == 2 * 4 * (1 + 2)


def test_synflow_of_dead_weights_is_zero():
    module = nn.Sequential(nn.Flatten(), linear([0.0, 0.0]))
    assert evaluate_proxy("synflow", None, module, dataset(torch.rand(2, 1, 1, 2)), 0) == 0.0


def test_synflow_that_overflows_fails():
    layers = [linear([1e30]) for _ in range(11)]
    module = nn.Sequential(nn.Flatten(), *layers)
    with pytest.raises(WorkFailed, match="too deep and wide"):
        evaluate_proxy("synflow", None, module, dataset(torch.rand(2, 1, 1, 1)), 0)
    value = evaluate_proxy("synflow", None, module[:11], dataset(torch.rand(2, 1, 1, 1)), 0)
    assert value == pytest.approx(300 * math.log(10) + math.log(10), rel=1e-6)


def test_synflow_of_weights_that_are_not_used():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = linear([3.0]), linear([5.0])

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.used(images.flatten(1))

    assert float(synaptic_flow(Half(), (1, 1, 1))) == 3.0


def test_synflow_without_weights_is_refused():
    with pytest.raises(RequestError, match="has none"):
        evaluate_proxy("synflow", None, nn.Flatten(), load_dataset("digits"), 0)
