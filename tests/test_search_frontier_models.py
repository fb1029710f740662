"""The parts of the frontier sampler against closed forms and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from search_fakes import deep_space

from tadnn.pareto import hypervolume
from tadnn.search.frontier.candidates import SpaceCandidates
from tadnn.search.frontier.encoding import Encoding, Variable
from tadnn.search.frontier.improvement import Improvement
from tadnn.search.frontier.judging import _thinned
from tadnn.search.frontier.parameters import ParameterCandidates
from tadnn.search.frontier.surrogate import Surrogate, _best_fit, _Spectrum, _stacked


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_known_point_gains_exactly_the_hypervolume_it_adds(d):
    rng = np.random.default_rng(d)
    points, new = rng.random((12, d)), rng.random((30, d)) * 1.2
    reference = np.ones(d)
    gains = Improvement(points, reference).expected(new, np.zeros_like(new))
    before = hypervolume(points, reference)
    expected = [hypervolume(np.vstack([points, row]), reference) - before for row in new]
    assert gains == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_an_unsure_point_gains_what_simulation_finds(d):
    rng = np.random.default_rng(0)
    points, reference = rng.random((6, d)), np.ones(d)
    mean, deviation = np.full((1, d), 0.4), np.full((1, d), 0.3)
    improvement = Improvement(points, reference)
    draws = mean + deviation * rng.standard_normal((40_000, d))
    simulated = improvement.expected(draws, np.zeros_like(draws))
    error = simulated.std() / 200
    assert improvement.expected(mean, deviation)[0] == pytest.approx(
        simulated.mean(), abs=4 * error
    )


def test_without_a_front_the_gain_is_the_box_below_the_reference():
    improvement = Improvement(np.empty((0, 2)), np.array([2.0, 3.0]))
    assert improvement.expected(np.array([[1.0, 1.0]]), np.zeros((1, 2))) == pytest.approx([2.0])


def encoded(n, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 5, size=(n, 6))
    encoding = Encoding([Variable.of_values(f"v{j}", range(5)) for j in range(6)])
    return values, encoding([{f"v{j}": int(x) for j, x in enumerate(row)} for row in values])


def test_leaving_one_out_in_closed_form_is_leaving_one_out():
    _, x = encoded(15)
    kernel = x.mixed @ x.mixed.T + np.exp(-((x.mixed[:, None] - x.mixed[None]) ** 2).sum(axis=2))
    y = np.random.default_rng(1).standard_normal(15)
    fit = _best_fit(_Spectrum.of(kernel), y)
    # The noise that was chosen, from the precisions 1 / (eigenvalue + noise).
    noise = 1.0 / fit.precision[0] - np.maximum(np.linalg.eigvalsh(kernel)[0], 0.0)
    for i in (0, 7, 14):
        rest = np.delete(np.arange(15), i)
        k = kernel[np.ix_(rest, rest)] + noise * np.eye(14)
        weights = np.linalg.solve(k, kernel[rest, i])
        mean = fit.mean + weights @ (y[rest] - fit.mean)
        variance = fit.scale * (kernel[i, i] + noise - weights @ kernel[rest, i])
        assert fit.errors[i] == pytest.approx(y[i] - mean, rel=1e-6)
        assert fit.variances[i] == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize("kind", ["sum", "pairs", "product"])
def test_functions_of_different_shapes_are_learned_with_honest_deviations(kind):
    values, x = encoded(120)
    f = {
        "sum": values @ np.array([1.0, -2.0, 0.5, 0.0, 0.0, 0.0]) + 20,
        "pairs": values[:, 0] * values[:, 1] + values[:, 2] + 1.0,
        "product": np.exp(values @ np.array([0.3, 0.2, -0.4, 0.1, 0.0, 0.0])),
    }[kind]
    surrogate = Surrogate(x[:80], f[:80, None])
    mean, deviation = surrogate.predict(x[80:])
    error = mean[:, 0] - f[80:]
    assert np.mean(error**2) < 0.05 * f.var()
    # Some of the errors may be large for their deviation, the mean square must not be.
    assert np.mean((error / deviation[:, 0]) ** 2) < 4


def test_noise_alone_is_not_believed():
    _, x = encoded(100)
    y = np.random.default_rng(5).standard_normal((60, 1))
    mean, _ = Surrogate(x[:60], y).predict(x[60:])
    assert mean.std() < 0.5 * y.std()


def test_roughly_is_exact_in_the_means_and_close_in_the_deviations():
    values, x = encoded(120)
    y = np.stack([values.sum(axis=1), values[:, 0] * values[:, 1]], axis=1).astype(float)
    surrogate = Surrogate(x[:60], y[:60])
    (mean, deviation), (rough, about) = surrogate.predict(x), surrogate.predict(x, roughly=True)
    assert rough == pytest.approx(mean)
    assert about[60:] == pytest.approx(deviation[60:], rel=1.0)


def test_the_shape_that_foretells_gets_the_weight():
    rng = np.random.default_rng(0)
    good, bad = rng.normal(-1.0, 0.1, 50), rng.normal(-4.0, 0.1, 50)
    assert _stacked(np.stack([bad, good], axis=1)).tolist() == [0.0, 1.0]


def test_encoding_treats_every_variable_alike():
    variables = [
        Variable.of_values("n", range(4)),
        Variable.of_values("c", ["x", "y", "z"]),
        Variable("f", (), 0.01, 1.0, is_number=True, is_log=True),
    ]
    draws = [
        {"n": n, "c": c, "f": 10.0 ** (-2 * (i + 0.5) / 50)}
        for n in range(4)
        for c in "xyz"
        for i in range(50)
    ]
    code = Encoding(variables)(draws)
    assert code.mixed.shape == (600, 1 + 3 + 1)
    assert code.full.shape == (600, 5 + 3 + 1)
    assert code.mixed.mean(axis=0) == pytest.approx(np.zeros(5), abs=1e-12)
    share = np.square(code.mixed).sum(axis=1).mean()
    assert share == pytest.approx(1.0, abs=0.3)
    # What is absent is neutral.
    assert not Encoding(variables)([{}]).mixed.any()


def test_many_texts_that_list_values_are_taken_apart_others_are_names():
    texts = [f"{a} {b},x{a}" for a in range(5) for b in range(4)]
    encoding = Encoding([Variable.of_values("t", texts)])
    code = encoding([{"t": text} for text in texts])
    # Two numbers and five texts.
    assert code.mixed.shape[1] == 1 + 1 + 5
    names = [f"n{i}" for i in range(300)]
    assert Encoding([Variable.of_values("t", names)])([{"t": "n7"}]).mixed.shape == (1, 0)


def test_parameters_are_drawn_within_their_distributions():
    distributions = {
        "i": IntDistribution(3, 11, step=4),
        "l": IntDistribution(1, 1000, log=True),
        "f": FloatDistribution(0.5, 2.0, step=0.25),
        "g": FloatDistribution(1e-4, 1.0, log=True),
        "c": CategoricalDistribution(("a", None, True)),
    }
    candidates = ParameterCandidates(distributions)
    rng = np.random.default_rng(0)
    drawn = [c.point for c in candidates.draw(rng, 200)]
    near = [c.point for c in candidates.near(rng, drawn[:5], 200)]
    for point in drawn + near:
        for name, distribution in distributions.items():
            assert distribution._contains(distribution.to_internal_repr(point[name])), (name, point)
    assert {p["i"] for p in drawn} == {3, 7, 11}
    assert candidates.size == float("inf")
    finite = ParameterCandidates({n: distributions[n] for n in ("i", "c", "f")})
    assert finite.size == 3 * 3 * 7 == len(list(finite.enumerate()))


def test_neighbours_in_a_space_are_architectures_of_it():
    space = deep_space()
    candidates = SpaceCandidates(space)
    rng = np.random.default_rng(0)
    parents = [c.point for c in candidates.draw(rng, 4)]
    for candidate in candidates.near(rng, parents, 100):
        assert space.canonical(candidate.point) == candidate.point


def test_of_many_rows_the_front_stays():
    rng = np.random.default_rng(0)
    values = rng.random((1000, 2))
    kept = _thinned(values, 256)
    assert len(kept) == 256
    from tadnn.pareto import front_mask

    assert set(np.flatnonzero(front_mask(values))) <= set(kept.tolist())
