"""AZ-NAS after its paper: closed forms, hand-computed values, ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from accuracy_examples import dataset, small_cnn
from torch import nn

from tadnn.accuracy import ENSEMBLES, PROXIES, aggregate, evaluate_proxy, rank_among, shared_passes
from tadnn.accuracy.proxies import Expressivity, Progressivity, Trainability
from tadnn.accuracy.proxies.az_nas import jacobian_norm, spectral_entropy
from tadnn.accuracy.proxies.blocks import block_features
from tadnn.errors import RequestError, UnknownName, WorkFailed

IMAGES = dataset(torch.zeros(4, 3, 8, 8))


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def conv(channels, width, stride=1):
    return nn.Conv2d(channels, width, 3, stride=stride, padding=1)


def head(width):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


class Same(nn.Module):
    def forward(self, x):
        return x * 1.0


# Expressivity and progressivity


def test_entropy_of_equal_orthogonal_directions_is_the_logarithm_of_their_number():
    # Samples +-e_i of three channels: covariance 1/3 on the diagonal, three shares of 1/3.
    rows = torch.cat([torch.eye(3), -torch.eye(3)])
    features = rows.T.reshape(1, 3, 2, 3)
    assert spectral_entropy(features) == pytest.approx(math.log(3), abs=1e-6)


def test_entropy_by_hand():
    # Two channels, (4, 0), (-4, 0), (0, 2), (0, -2): variances 8 and 2, shares 0.8 and 0.2.
    features = torch.tensor([[4.0, -4, 0, 0], [0, 0, 2, -2]]).reshape(1, 2, 2, 2)
    expected = -0.8 * math.log(0.8) - 0.2 * math.log(0.2)
    assert spectral_entropy(features) == pytest.approx(expected, abs=1e-6)


def test_entropy_is_the_same_by_either_product_and_of_tokens():
    wide = noise(2, 40, 3, 3)  # 18 positions, 40 channels
    rows = wide.permute(0, 2, 3, 1).reshape(18, 40).double().numpy()
    spectrum = np.linalg.eigvalsh(np.cov(rows, rowvar=False, bias=True)).clip(0)
    shares = spectrum / spectrum.sum()
    expected = -(shares * np.log(shares + 1e-8)).sum()
    assert spectral_entropy(wide) == pytest.approx(expected, rel=1e-9)
    tokens = wide.flatten(2).transpose(1, 2)
    assert spectral_entropy(tokens) == pytest.approx(expected, rel=1e-9)


def test_scores_are_sum_and_least_step_of_the_blocks_entropies():
    module = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 16), conv(16, 4), head(4))
    generator = torch.Generator().manual_seed(5)
    features = block_features("test", module, (16, 3, 8, 8), generator)
    assert [f.shape[1] for f in features] == [8, 16, 4]
    entropies = [spectral_entropy(f) for f in features]
    values = {n: evaluate_proxy(n, None, module, IMAGES, 5) for n in ENSEMBLES["az_nas"][:3]}
    assert values["expressivity"] == pytest.approx(sum(entropies))
    steps = [entropies[1] - entropies[0], entropies[2] - entropies[1]]
    assert values["progressivity"] == pytest.approx(min(steps))
    assert values["progressivity"] < 0 < values["expressivity"]


def test_dead_features_have_no_value():
    class Zero(nn.Module):
        def forward(self, x):
            return 0 * x

    module = nn.Sequential(conv(3, 4), Zero(), head(4))
    for name in ("expressivity", "progressivity"):
        with pytest.raises(WorkFailed, match="do not vary"):
            evaluate_proxy(name, None, module, IMAGES, 0)


def test_one_block_is_too_few():
    with pytest.raises(WorkFailed, match=r"at least two blocks; this network has 1"):
        evaluate_proxy("progressivity", None, nn.Sequential(conv(3, 4), head(4)), IMAGES, 0)


# Trainability


def test_a_block_that_doubles_has_norm_two():
    # back = 2 signs, so the matrix is 2 S'S / n with S'S = n I + what chance leaves.
    signs = torch.tensor([[1.0, 1, -1, -1], [1, -1, 1, -1]]).reshape(1, 2, 2, 2)
    assert jacobian_norm(2 * signs, signs) == pytest.approx(2.0)


def test_trainability_by_the_formula():
    module = nn.Sequential(conv(3, 4), Double(), head(4))
    value = evaluate_proxy("trainability", None, module, IMAGES, 0)
    features = noise(1)  # the same signs are drawn after weights and inputs
    generator = torch.Generator().manual_seed(0)
    features = block_features("test", module, (16, 3, 8, 8), generator)
    signs = torch.randint(0, 2, features[1].shape, generator=generator).double() * 2 - 1
    rows = signs.permute(0, 2, 3, 1).reshape(-1, 4).numpy()
    norm = np.linalg.norm(2 * rows.T @ rows / len(rows), 2)
    assert value == pytest.approx(2 - norm - 1 / (norm + 1e-6), rel=1e-9)
    assert value == pytest.approx(-0.5, abs=0.2)  # 2 - 2 - 1/2, but for chance


def test_a_block_that_halves_the_image_is_folded():
    # Each output pixel is the sum of its four input pixels: the Jacobian is 1, 1, 1, 1: norm 2.
    pool = nn.AvgPool2d(2, divisor_override=1)
    images = noise(8, 1, 8, 8).requires_grad_()
    pooled = pool(images)
    signs = torch.randint(0, 2, pooled.shape, generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    [back] = torch.autograd.grad(pooled, images, signs)
    assert jacobian_norm(back, signs) == pytest.approx(2.0)


def test_odd_edges_are_padded():
    module = nn.Sequential(conv(3, 4), conv(4, 4, stride=2), conv(4, 4, stride=2), head(4))
    odd = dataset(torch.zeros(4, 3, 13, 13))
    assert math.isfinite(evaluate_proxy("trainability", None, module, odd, 0))


def test_large_matrices_have_the_norm_that_all_singular_values_tell():
    back, signs = noise(4, 96, 6, 6), noise(4, 80, 6, 6, seed=1).sign()
    rows = [t.permute(0, 2, 3, 1).reshape(144, -1).double().numpy() for t in (back, signs)]
    expected = np.linalg.svd(rows[0].T @ rows[1] / 144, compute_uv=False)[0]
    assert jacobian_norm(back, signs) == pytest.approx(expected, rel=1e-6)


def test_an_identity_has_no_value():
    module = nn.Sequential(conv(3, 4), Same(), head(4))
    with pytest.raises(WorkFailed, match="is an identity"):
        evaluate_proxy("trainability", None, module, IMAGES, 0)


# Weights and sharing


def test_weights_and_inputs_are_the_seeds_not_the_callers():
    module = small_cnn()
    digits = dataset(torch.zeros(4, 1, 8, 8))
    before = evaluate_proxy("expressivity", None, module, digits, 0)
    with torch.no_grad():
        module.conv.weight.mul_(-3)
    assert evaluate_proxy("expressivity", None, module, digits, 0) == before
    assert evaluate_proxy("expressivity", None, module, digits, 1) != before


def test_sharing_passes_changes_no_value():
    module, digits = small_cnn(), dataset(noise(256, 1, 8, 8), torch.arange(256) % 10)
    names = [name for name, proxy in PROXIES.items() if "module" in proxy.needs]
    alone = {name: evaluate_proxy(name, None, module, digits, 0) for name in names}
    with shared_passes() as passes:
        together = {name: evaluate_proxy(name, None, module, digits, 0) for name in names}
    assert together == alone
    assert passes.saved_s > 0


# Ranks


def test_aggregation_by_hand():
    # Ranks of 3: (1, 2, 3) and (3, 1.5, 1.5).
    scores = aggregate([[0.1, 0.2, 0.9], [5.0, -math.inf, -math.inf]])
    third = [math.log(r / 3) for r in (1, 2, 3)]
    half = math.log(1.5 / 3)
    assert scores == pytest.approx([third[0] + third[2], third[1] + half, third[2] + half])


def test_one_bad_rank_weighs_more_than_good_ones():
    scores = aggregate([[1, 2, 3, 4], [4, 3, 2, 1]])
    assert scores[1] == scores[2] > scores[0] == scores[3]


@pytest.mark.parametrize("components", [[], [[]], [[1.0], [1.0, 2.0]]])
def test_what_cannot_be_ranked_is_refused(components):
    with pytest.raises(RequestError, match="same networks"):
        aggregate(components)


def test_a_newcomer_is_ranked_as_if_it_were_of_the_sample():
    sample = [0.3, 0.1, 0.1, -math.inf]
    for value in (-math.inf, 0.0, 0.1, 0.2, 0.3, 1.0):
        assert rank_among(value, sample) == pytest.approx(aggregate([[*sample, value]])[-1])


def test_an_ensemble_has_no_value_for_one_network():
    with pytest.raises(RequestError, match="az_nas ranks networks among others"):
        evaluate_proxy("az_nas", None, None, None, 0)
    with pytest.raises(UnknownName, match="did you mean 'expressivity'"):
        evaluate_proxy("expresivity", None, None, None, 0)
    kinds = (Expressivity, Progressivity, Trainability)
    assert all(isinstance(PROXIES[kind.name], kind) for kind in kinds)
