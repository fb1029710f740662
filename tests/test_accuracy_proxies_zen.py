from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from accuracy_examples import small_cnn
from torch import nn

from tadnn.accuracy import evaluate_proxy, load_dataset
from tadnn.accuracy.modules import working_copies
from tadnn.accuracy.proxies import Zen
from tadnn.accuracy.proxies.features import watched
from tadnn.accuracy.proxies.zen import gaussian_tensors, zen_score
from tadnn.errors import WorkFailed


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pair(*shape, alpha=0.01):
    images = noise(*shape)
    return images, images + alpha * noise(*shape, seed=1)


def drawn(module, seed=0):
    return gaussian_tensors(module, torch.Generator().manual_seed(seed))


def cnn(depth=2, width=4, norm=True):
    layers, channels = [], 1
    for _ in range(depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width)] * norm + [nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


# Closed forms


def test_linear_and_batch_normalisation_by_the_formula():
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 10)
    )
    images, changed = pair(8, 1, 2, 3)
    tensors = drawn(module)
    weight = tensors["1.weight"].double().numpy()

    def features(batch):
        hidden = batch.flatten(1).double().numpy() @ weight.T
        variance = hidden.var(axis=0)
        return (hidden - hidden.mean(axis=0)) / np.sqrt(variance + 1e-5), variance

    (before, variance), (after, _) = features(images), features(changed)
    response = np.mean([np.linalg.norm(a - b) for a, b in zip(before, after, strict=True)])
    expected = math.log(response) + 0.5 * math.log(variance.mean())
    assert zen_score(module, tensors, images, changed) == pytest.approx(expected, rel=1e-4)


def test_one_linear_layer_responds_by_its_weights():
    # f(x) = x itself is what the only linear layer receives: ln mean |alpha e|.
    images, changed = pair(4, 1, 1, 3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 10))
    expected = float((changed - images).flatten(1).norm(dim=1).mean().log())
    assert zen_score(module, drawn(module), images, changed) == pytest.approx(expected, rel=1e-5)


# What the paper says


@pytest.mark.parametrize("norm", [False, True])
def test_scale_counts_although_normalisation_hides_it(norm):
    module, (images, changed) = cnn(norm=norm), pair(8, 1, 6, 6)
    tensors = drawn(module)
    value = zen_score(module, tensors, images, changed)
    tensors["0.weight"] *= 8
    scaled = zen_score(module, tensors, images, changed)
    assert scaled - value == pytest.approx(math.log(8), abs=1e-4)


def test_normalisation_of_equal_channels_changes_nothing():
    """One channel: the score is that of the network without normalisation."""
    images, changed = pair(64, 1, 8, 8)
    plain = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Flatten(), nn.Linear(36, 10))
    normed = nn.Sequential(plain[0], nn.BatchNorm2d(1), *plain[1:])
    values = [zen_score(net, drawn(net), images, changed) for net in (plain, normed)]
    assert values[1] == pytest.approx(values[0], abs=0.01)
    assert abs(values[0]) > 0.1


def test_deeper_and_wider_networks_respond_more():
    digits = load_dataset("digits")
    for nets in (
        [cnn(depth=depth) for depth in (1, 2, 4)],
        [cnn(width=width) for width in (2, 8, 32)],
    ):
        values = [evaluate_proxy("zen", None, net, digits, 0) for net in nets]
        assert values == sorted(values)
        assert values[2] > values[0] + 1


def test_the_callers_weights_do_not_count():
    digits, module = load_dataset("digits"), small_cnn()
    value = evaluate_proxy("zen", None, module, digits, 0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(5).add_(0.1)
    assert evaluate_proxy("zen", None, module, digits, 0) == value
    assert evaluate_proxy("zen", None, module, digits, 1) != value


def test_draws_agree():
    """Else four of them would not tell networks apart."""
    digits, module = load_dataset("digits"), cnn(depth=4, width=16)
    values = [Zen(draws=1).score(None, module, digits, seed) for seed in range(4)]
    assert np.std(values) < 0.3
    four = Zen(draws=4).score(None, module, digits, 0)
    assert min(values) - 0.3 < four < max(values) + 0.3


# How


def test_weights_become_gaussian_and_the_rest_neutral():
    module = nn.Sequential(
        nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.LayerNorm([4, 5]), nn.Linear(50, 40)
    )
    module.scale = nn.Parameter(torch.full((2,), 7.0))
    with torch.no_grad():
        module[2].weight.fill_(3.0)
    tensors = drawn(module)
    for name in ("0.weight", "3.weight"):
        assert float(tensors[name].mean()) == pytest.approx(0, abs=0.1)
        assert float(tensors[name].std()) == pytest.approx(1, abs=0.1)
    for name in ("0.bias", "1.bias", "2.bias", "3.bias"):
        assert not tensors[name].any()
    for name in ("1.weight", "2.weight"):
        assert bool((tensors[name] == 1).all())
    assert tensors["scale"].tolist() == [7.0, 7.0]
    assert sorted(tensors) == sorted(working_copies(module))


def test_features_are_those_before_the_last_pooling():
    module, images = cnn(width=4), noise(2, 1, 6, 6)
    with watched(module) as watch:
        output = module(images)
    assert watch.features(output).shape == (2, 4, 6, 6)
    assert len(watch.variances) == 2
    hidden = module[0](images)
    expected = hidden.detach().transpose(0, 1).flatten(1).var(dim=1, correction=0).mean()
    assert watch.variances[0] == pytest.approx(float(expected), rel=1e-5)


def test_a_gates_pooling_is_not_the_last():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.gate = nn.AdaptiveAvgPool2d((1, 1)), nn.Conv2d(1, 1, 1)
            self.head = nn.Linear(1, 10)

        def forward(self, images):
            gated = images * torch.sigmoid(self.gate(self.pool(images)))
            return self.head(gated.mean(dim=(2, 3)))

    module = Gated()
    with watched(module) as watch:
        output = module(noise(2, 1, 4, 4))
    assert watch.features(output).shape == (2, 1)


def test_without_linear_layer_and_pooling_the_output_is_what_responds():
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.AdaptiveAvgPool1d(2))
    with watched(module) as watch:
        output = module(noise(3, 1, 4, 4))
    assert watch.features(output) is output


# Bad input


def test_features_that_do_not_respond_fail():
    module = nn.Sequential(nn.Flatten(), nn.Threshold(1e9, 0.0), nn.Linear(64, 10))
    with pytest.raises(WorkFailed, match=r"zen must be finite; the features respond .* by 0,"):
        evaluate_proxy("zen", None, module, load_dataset("digits"), 0)


def test_deep_networks_without_normalisation_overflow_and_fail():
    layers = [nn.Linear(64, 64) for _ in range(50)]
    module = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    with pytest.raises(WorkFailed, match="zen must be finite"):
        evaluate_proxy("zen", None, module, load_dataset("digits"), 0)
    normed = [part for layer in layers for part in (layer, nn.BatchNorm1d(64))]
    module = nn.Sequential(nn.Flatten(), *normed, nn.Linear(64, 10))
    assert evaluate_proxy("zen", None, module, load_dataset("digits"), 0) > 50
