from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from tadnn.latency import process
from tadnn.latency.learner import Learner
from tadnn.latency.learners import Blend, fit_learner, learner_from_arrays
from tadnn.latency.process import GaussianProcess
from tadnn.latency.trees import BoostedTrees


def data(n: int, seed: int = 0, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """A smooth part, a step, a feature that doesn't matter and one that never varies."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(-3, 3, (n, 3)), np.full(n, 7.0)])
    y = np.sin(x[:, 0]) + 0.5 * (x[:, 1] > 0) + noise * rng.standard_normal(n)
    return x, y


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_the_process_is_that_of_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, y = rng.standard_normal((25, 4)), rng.standard_normal(25)
    theta = np.concatenate([rng.uniform(-1, 2, 4), [0.3, -2.0]])

    def value(t: np.ndarray) -> float:
        return process.loss(t, z, y)[0]

    def gradient(t: np.ndarray) -> np.ndarray:
        return process.loss(t, z, y)[1]

    assert check_grad(value, gradient, theta) < 1e-5 * np.linalg.norm(gradient(theta))


def test_tuning_finds_a_stationary_point_and_what_matters() -> None:
    x, y = data(120)
    fitted = GaussianProcess.fit(x, y, 0)
    arrays = fitted.to_arrays()
    amplitude, noise, _ = arrays["scalars"]
    varies = arrays["lengths"] < 1e3
    assert varies.tolist() == [True, True, True, False]
    z = (x[:, varies] - arrays["mean"][varies]) / arrays["scale"][varies]
    theta = np.log([*arrays["lengths"][varies], amplitude, noise])
    assert np.abs(process.loss(theta, z, y - y.mean())[1]).max() < 0.1
    assert arrays["lengths"][2] > 2 * max(arrays["lengths"][:2]), "the third says nothing"
    assert 0.03 < np.sqrt(noise) < 0.15


def test_the_posterior_is_that_of_scikit_learn() -> None:
    (x, y), (new, _) = data(80), data(50, seed=1)
    fitted = GaussianProcess.fit(x, y, 0)
    arrays = fitted.to_arrays()
    amplitude, noise, offset = arrays["scalars"]
    kernel = ConstantKernel(amplitude, "fixed") * Matern(arrays["lengths"], "fixed", nu=2.5)
    kernel += WhiteKernel(noise, "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=1e-9, optimizer=None)
    theirs.fit((x - arrays["mean"]) / arrays["scale"], y - offset)
    mean, std = theirs.predict((new - arrays["mean"]) / arrays["scale"], return_std=True)
    got_mean, got_std = fitted.predict(new)
    np.testing.assert_allclose(got_mean, mean + offset, atol=1e-6)
    np.testing.assert_allclose(got_std, std, atol=1e-6)


def test_a_refit_keeps_the_tuned_scales() -> None:
    x, y = data(60)
    tuned = GaussianProcess.fit(x, y, 0)
    refit = GaussianProcess.fit(x[:40], y[:40], 0, like=tuned)
    for name in ("mean", "scale", "lengths"):
        assert (refit.to_arrays()[name] == tuned.to_arrays()[name]).all()
    assert len(refit.to_arrays()["x"]) == 40
    assert refit.to_arrays()["scalars"][2] == pytest.approx(y[:40].mean())


def test_a_process_knows_what_it_has_seen_and_not_what_it_has_not() -> None:
    x, y = data(80, noise=0.01)
    fitted = GaussianProcess.fit(x, y, 0)
    far = np.array([[30.0, -30.0, 0.0, 7.0]])
    assert fitted.predict(far)[1][0] > 5 * fitted.predict(x)[1].max()


def test_rows_that_are_all_alike_are_no_trouble() -> None:
    x = np.ones((15, 3))
    mean, std = GaussianProcess.fit(x, np.full(15, 2.0), 0).predict(x[:2])
    np.testing.assert_allclose(mean, 2.0, atol=1e-6)
    assert np.isfinite(std).all()


def test_more_rows_than_fit_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(60)
    fitted = GaussianProcess.fit(x, y, 0)
    whole = fitted.predict(x)
    monkeypatch.setattr(process, "_AT_A_TIME", 7)
    np.testing.assert_allclose(fitted.predict(x), whole, rtol=1e-9)
    np.testing.assert_allclose(fitted.mean(x), whole[0], rtol=1e-9)


@pytest.fixture(scope="module", params=[GaussianProcess, BoostedTrees, Blend])
def learner(request: pytest.FixtureRequest) -> Learner:
    x, y = data(130)
    made: Learner = request.param.fit(x, y, 0)
    return made


def test_learners_learn(learner: Learner) -> None:
    new, measured = data(400, seed=2)
    mean, std = learner.predict(new)
    error = np.abs(mean - measured)
    assert np.median(error) < 0.12, "the spread of what is to be predicted is 0.75"
    assert 0.5 < np.mean(error < std) < 0.95
    assert np.mean(error < 3 * std) > 0.9


def test_the_mean_alone_is_the_mean(learner: Learner) -> None:
    new, _ = data(50, seed=3)
    np.testing.assert_allclose(learner.mean(new), learner.predict(new)[0], rtol=1e-12)


def test_learners_survive_their_arrays(learner: Learner) -> None:
    new, _ = data(50, seed=3)
    arrays = learner.to_arrays()
    assert all(a.dtype in (np.float64, np.uint8) for a in arrays.values())
    again = learner_from_arrays(learner.kind, arrays)
    assert type(again) is type(learner)
    for got, wanted in zip(again.predict(new), learner.predict(new), strict=True):
        assert (got == wanted).all()
    assert again.to_arrays().keys() == arrays.keys()


def test_fitting_twice_gives_the_same(learner: Learner) -> None:
    x, y = data(130)
    again = type(learner).fit(x, y, 0).predict(x)
    for got, wanted in zip(again, learner.predict(x), strict=True):
        assert (got == wanted).all()


def test_a_blend_is_the_mean_of_both_and_as_unsure_as_they_disagree() -> None:
    x, y = data(130)
    blend = Blend.fit(x, y, 0)
    new, _ = data(20, seed=4)
    (a, sa), (b, sb) = blend._process.predict(new), blend._trees.predict(new)
    mean, std = blend.predict(new)
    np.testing.assert_allclose(mean, (a + b) / 2)
    np.testing.assert_allclose(std**2, (sa**2 + sb**2) / 2 + (a - b) ** 2 / 4)


def test_the_learner_suits_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(130)
    monkeypatch.setattr("tadnn.latency.learners.MOST_ROWS_OF_PROCESS", 120)
    kinds = [fit_learner(x[:n], y[:n], 0).kind for n in (30, 100, 130)]
    assert kinds == ["process", "blend", "trees"]


def test_a_refit_is_of_the_same_kind_while_rows_last() -> None:
    x, y = data(110)
    blend, trees = Blend.fit(x, y, 0), BoostedTrees.fit(x, y, 0)
    assert fit_learner(x[:60], y[:60], 0, blend).kind == "blend"
    assert fit_learner(x[:60], y[:60], 0, trees).kind == "trees"
    few = fit_learner(x[:10], y[:10], 0, blend)
    assert few.kind == "process"
    lengths = blend.to_arrays()["process.lengths"]
    assert (few.to_arrays()["lengths"] == lengths).all()
    assert fit_learner(x[:10], y[:10], 0, trees).kind == "process"


@pytest.mark.parametrize("kind", ["process", "trees", "blend"])
def test_missing_arrays_are_key_errors(kind: str) -> None:
    with pytest.raises(KeyError):
        learner_from_arrays(kind, {})
    with pytest.raises(KeyError, match="forest"):
        learner_from_arrays("forest", {})


def test_what_is_no_tree_is_refused() -> None:
    texts = {f"text{i}": np.frombuffer(b"no tree", dtype=np.uint8) for i in range(6)}
    with pytest.raises(ValueError, match="no trees"):
        learner_from_arrays("trees", texts)
