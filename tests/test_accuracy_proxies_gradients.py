"""snip, grad_norm and zico: against closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from accuracy_examples import dataset, linear, small_cnn
from torch import nn
from torch.nn import functional

from tadnn.accuracy import Split, evaluate_proxy, load_dataset
from tadnn.accuracy.proxies import Zico
from tadnn.accuracy.proxies.grad_norm import sum_of_norms
from tadnn.accuracy.proxies.gradients import draw_minibatches, weight_gradients
from tadnn.accuracy.proxies.snip import connection_sensitivity
from tadnn.accuracy.proxies.zico import inverse_variation
from tadnn.errors import DataError, RequestError, WorkFailed

NAMES = ("snip", "grad_norm", "zico")


def some_data(count=12, inputs=5, classes=3):
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(count, 1, 1, inputs, generator=draw)
    return dataset(images, torch.arange(count) % classes)


def classifier(*widths, seed=0):
    """Linear layers with a ReLU between each two, no biases."""
    draw = torch.Generator().manual_seed(seed)
    layers = [nn.Flatten()]
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        rows = torch.randn(after, before, generator=draw).tolist()
        layers += [nn.ReLU()] * (i > 0) + [linear(*rows)]
    return nn.Sequential(*layers)


def cross_entropy_gradient(weight, images, labels):
    """Of one linear layer: the mean over images of (softmax - one-hot) times the image."""
    logits = images @ weight.T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    return shares.T @ images / len(images)


def as_arrays(split):
    return split.images.flatten(1).double().numpy(), split.labels.numpy()


# By hand


def test_two_linear_layers_with_squared_loss_by_hand():
    # x = (1, 2), h = W1 x = (-3, -1), y = W2 h = (-2, -10), L = |y|^2 / 2, so dL/dy = y.
    # dL/dW2 = y h' = (6 2; 30 10); dL/dh = W2' y = (-34, -2); dL/dW1 = (-34 -68; -2 -4).
    module = nn.Sequential(
        nn.Flatten(), linear([1.0, -2.0], [-3.0, 1.0]), linear([2.0, -4.0], [3.0, 1.0])
    )
    image = Split(torch.tensor([1.0, 2.0]).reshape(1, 1, 1, 2), torch.zeros(1, dtype=torch.int64))
    [found] = weight_gradients("test", module, [image], lambda y, _: y.square().sum() / 2)
    assert found["1.weight"][1].tolist() == [[-34, -68], [-2, -4]]
    assert found["2.weight"][1].tolist() == [[6, 2], [30, 10]]
    assert connection_sensitivity(found.values()) == (34 + 136 + 6 + 4) + (12 + 8 + 90 + 10)
    expected = math.sqrt(34**2 + 68**2 + 2**2 + 4**2) + math.sqrt(6**2 + 2**2 + 30**2 + 10**2)
    assert sum_of_norms(g for _, g in found.values()) == pytest.approx(expected, rel=1e-12)


def test_a_linear_classifier_has_a_closed_form():
    data, module = some_data(), classifier(5, 3)
    weight = module[1].weight.detach().double().numpy()
    gradient = cross_entropy_gradient(weight, *as_arrays(data.splits["train"]))
    snip = evaluate_proxy("snip", None, module, data, 0)
    assert snip == pytest.approx(np.abs(weight * gradient).sum(), rel=1e-5)
    norm = evaluate_proxy("grad_norm", None, module, data, 0)
    assert norm == pytest.approx(np.sqrt((gradient**2).sum()), rel=1e-5)


def test_zico_by_hand():
    # Sizes 1 and 3 (mean 2, deviation 1), 2 and 6 (4, 2); the other layer's 1 and 2 (1.5, 0.5)
    # beside a weight that does not vary.
    first = torch.tensor([[1.0, -2.0], [-3.0, 6.0]])
    second = torch.tensor([[[1.0], [5.0]], [[2.0], [-5.0]]])
    still = torch.ones(2, 4)
    expected = math.log(2 + 2) + math.log(3)
    assert inverse_variation([first, second, still]) == pytest.approx(expected, rel=1e-12)


def test_zico_against_a_slow_computation():
    data, module = some_data(count=20), classifier(5, 3)
    weight = module[1].weight.detach().double().numpy()
    drawn = draw_minibatches("zico", data, 2, 64, seed=3)
    assert [len(part) for part in drawn] == [10, 10]
    gradients = [cross_entropy_gradient(weight, *as_arrays(part)) for part in drawn]
    total = 0.0
    for row in range(3):
        for column in range(5):
            sizes = [abs(gradient[row, column]) for gradient in gradients]
            mean = sum(sizes) / len(sizes)
            variance = sum((size - mean) ** 2 for size in sizes) / len(sizes)
            total += mean / math.sqrt(variance)
    value = evaluate_proxy("zico", None, module, data, 3)
    assert value == pytest.approx(math.log(total), rel=1e-5)
    three = Zico(batch_size=4, minibatches=3).score(None, module, data, 3)
    assert three != pytest.approx(value, rel=0.01)


# What the papers say


def test_only_grad_norm_feels_how_scale_is_shared_between_layers():
    """A rectified network computes the same with 4 W1 and W2 / 4; snip and zico do not change."""
    data, module, other = some_data(), classifier(5, 8, 3), classifier(5, 8, 3)
    with torch.no_grad():
        other[1].weight *= 4
        other[3].weight /= 4
    for name in ("snip", "zico"):
        value = evaluate_proxy(name, None, module, data, 0)
        assert evaluate_proxy(name, None, other, data, 0) == pytest.approx(value, rel=1e-4)
    value = evaluate_proxy("grad_norm", None, module, data, 0)
    assert evaluate_proxy("grad_norm", None, other, data, 0) != pytest.approx(value, rel=0.1)


def test_snip_is_the_derivative_by_a_mask():
    data, module = some_data(), classifier(5, 3).double()
    images, labels = data.splits["train"].images.flatten(1).double(), data.splits["train"].labels
    mask = torch.ones(3, 5, dtype=torch.float64, requires_grad=True)
    weight = module[1].weight.detach()
    functional.cross_entropy(images @ (mask * weight).T, labels).backward()
    value = evaluate_proxy("snip", None, module, data, 0)
    assert value == pytest.approx(float(mask.grad.abs().sum()), rel=1e-5)


def test_zico_ignores_the_losss_scale_and_prefers_steady_gradients():
    gradients = torch.tensor([[1.0, 2.0, -3.0], [1.5, -2.5, 4.0]])
    value = inverse_variation([gradients])
    assert inverse_variation([100 * gradients]) == pytest.approx(value, rel=1e-6)
    steady = gradients.abs().mean(dim=0) + 0.1 * (gradients.abs() - gradients.abs().mean(dim=0))
    assert inverse_variation([steady]) == pytest.approx(value + math.log(10), rel=1e-5)


def test_zico_grows_with_width():
    data = load_dataset("digits")
    values = [
        evaluate_proxy("zico", None, classifier(64, width, 10), data, 0) for width in (8, 32, 128)
    ]
    assert values == sorted(values)


# What counts


def test_weights_count_frozen_ones_too_and_nothing_else_does():
    module = small_cnn()
    drawn = draw_minibatches("test", load_dataset("digits"), 1, 16, 0)
    [found] = weight_gradients("test", module, drawn)
    assert sorted(found) == ["conv.weight", "conv2.weight", "head.weight"]
    module.requires_grad_(False)
    [again] = weight_gradients("test", module, drawn)
    for name, (_, gradient) in found.items():
        assert torch.equal(again[name][1], gradient)


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_and_dropout_have_no_effect(name):
    module, digits = small_cnn(), load_dataset("digits")
    value = evaluate_proxy(name, None, module, digits, 0)
    module.norm.running_mean.fill_(3.0)
    module.drop.p = 0.0
    module.train()
    assert evaluate_proxy(name, None, module, digits, 0) == value


@pytest.mark.parametrize("name", NAMES)
def test_what_draws_regardless_of_its_mode_draws_the_same(name):
    class Noisy(nn.Module):
        def forward(self, images):
            return functional.dropout(images, 0.5, training=True)

    digits, module = load_dataset("digits"), nn.Sequential(Noisy(), classifier(64, 10))
    random = torch.get_rng_state()
    values = {evaluate_proxy(name, None, module, digits, 0) for _ in range(2)}
    assert len(values) == 1
    assert torch.equal(torch.get_rng_state(), random)


def test_a_weight_that_is_not_used_has_no_gradient():
    module = classifier(5, 3)
    module.spare = linear([1.0])
    module.forward = lambda images: module[1](images.flatten(1))
    [found] = weight_gradients("test", module, [some_data().splits["train"]])
    assert found["spare.weight"][1].tolist() == [[0.0]]


def test_minibatches_are_disjoint_and_depend_on_the_seed():
    images = torch.arange(10.0).reshape(10, 1, 1, 1)
    data = dataset(images, torch.arange(10))
    first, again, other = (draw_minibatches("test", data, 3, 64, seed) for seed in (0, 0, 1))
    drawn = [int(image) for part in first for image in part.images.flatten()]
    assert len(drawn) == len(set(drawn)) == 9
    for part in first:
        assert len(part) == 3
        assert part.images.flatten().tolist() == part.labels.tolist()
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a.images, b.images) for a, b in zip(first, other, strict=True))


# Bad input


@pytest.mark.parametrize("name", NAMES)
def test_refusals(name):
    with pytest.raises(RequestError, match="has none"):
        evaluate_proxy(name, None, nn.Flatten(), load_dataset("digits"), 0)
    with pytest.raises(RequestError, match="gives 2, and there is a label 2"):
        evaluate_proxy(name, None, classifier(5, 2), some_data(), 0)
    with pytest.raises(DataError, match="at least two images; received a split of 1 "):
        evaluate_proxy(name, None, classifier(5, 3), some_data(count=1), 0)


def test_one_minibatch_cannot_vary():
    with pytest.raises(RequestError, match="at least 2 minibatches; received 1"):
        Zico(minibatches=1)


@pytest.mark.parametrize("name", NAMES)
def test_what_overflows_fails_with_the_reason(name):
    images = dataset(torch.ones(4, 1, 1, 1), torch.ones(4, dtype=torch.int64))
    module = nn.Sequential(nn.Flatten(), linear([1e30]), linear([1e30], [0.0]))
    with pytest.raises(WorkFailed, match="finite logits"):
        evaluate_proxy(name, None, module, images, 0)
    # Logits (1e15, 0) for the label 1; the first layer's gradient is 1e25 * 1e20.
    images = dataset(torch.full((4, 1, 1, 1), 1e20), torch.ones(4, dtype=torch.int64))
    module = nn.Sequential(nn.Flatten(), linear([1e-30]), linear([1e25], [0.0]))
    with pytest.raises(WorkFailed, match=r"finite gradients; that of '1\.weight'"):
        evaluate_proxy(name, None, module, images, 0)


def test_zico_of_gradients_that_vanish_fails():
    data = dataset(torch.zeros(8, 1, 1, 5))
    with pytest.raises(WorkFailed, match="every gradient of this network is zero"):
        evaluate_proxy("zico", None, classifier(5, 3), data, 0)
    assert evaluate_proxy("snip", None, classifier(5, 3), data, 0) == 0.0
