from __future__ import annotations

import numpy as np
import pytest

from tadnn.kernels import Kernel
from tadnn.latency.likeness import UNKNOWN, Likeness, fit_likeness
from tadnn.tail import Group, candidate_widths, efficient_widths


@pytest.mark.parametrize("seed", range(30))
def test_efficient_widths_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    latency = np.cumsum(rng.normal(0.3, 1, n)) + 20
    deviation = rng.uniform(0, 0.5, (n, n))
    efficient = efficient_widths(latency, deviation)
    assert efficient[-1], "there is no wider one"
    for i, is_edge in enumerate(efficient[:-1]):
        above = i + 1 + int(np.argmax(efficient[i + 1 :]))
        noise = min(deviation[i, above], 0.01 * latency[i])
        assert is_edge == (latency[above] - latency[i] > noise)
    edges = latency[efficient]
    assert np.all(np.diff(edges) > 0), "every efficient one above is slower"


def stairs_of(widths):
    return 5.0 + np.ceil(widths / 32)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.9])
def test_the_right_edges_of_a_staircase_are_efficient(noise):
    widths = np.arange(8, 129, 8)
    efficient = efficient_widths(stairs_of(widths), np.full((16, 16), noise))
    assert widths[efficient].tolist() == [32, 64, 96, 128]


def test_steps_that_cannot_be_told_from_nothing_are_no_edges():
    widths = np.arange(8, 129, 8)
    slanting = stairs_of(widths) + 0.0005 * widths
    efficient = efficient_widths(slanting, np.full((16, 16), 0.5))
    assert widths[efficient].tolist() == [32, 64, 96, 128]


def test_a_slope_is_efficient_as_finely_as_it_can_be_told():
    latency = 10 + 0.04 * np.arange(10)
    assert efficient_widths(latency, np.zeros((10, 10))).all()
    told = efficient_widths(latency, np.full((10, 10), 0.1))  # the third one above is slower
    assert told.tolist() == [True, False, False] * 3 + [True]
    # Whatever the model knows, nobody takes a hundredth for nothing.
    unknown = efficient_widths(latency, np.full((10, 10), 5.0))
    assert unknown.tolist() == told.tolist()


def group(width: int, grain: int = 1) -> Group:
    return Group("conv", width, grain, False, "", ())


@pytest.mark.parametrize(
    ("width", "grain"), [(64, 1), (1, 1), (3, 1), (7, 1), (90, 1), (96, 32), (2048, 1), (30, 3)]
)
def test_candidates_are_multiples_of_the_grain_around_the_present_width(width, grain):
    found = candidate_widths(group(width, grain))
    assert width in found
    assert found == sorted(set(found))
    assert all(value % grain == 0 and value >= 1 for value in found)
    assert found[-1] <= 2 * width
    assert found[0] >= width // 2
    assert len(found) <= 80


def test_a_width_of_one_may_stay_one():
    assert candidate_widths(group(1)) == [1, 2]


def conv(k: int) -> Kernel:
    sizes = {"n": 1, "c": 16, "h": 8, "w": 8, "k": k, "r": 3, "s": 3, "stride": 1, "pad": 1}
    return Kernel.of("conv2d", **sizes, dilation=1, groups=1)


def test_the_deviation_of_a_difference_in_closed_form():
    likeness = Likeness(0.8, 2.0)
    alike = 0.8 * np.exp(-1 / 2.0)  # one octave apart
    assert likeness.difference(conv(32), conv(64), 3.0, 4.0) == pytest.approx(
        np.sqrt(9 + 16 - 2 * alike * 12)
    )
    assert Likeness(1.0, 2.0).difference(conv(32), conv(32), 3.0, 3.0) == 0.0


def test_likeness_is_recovered_from_errors_that_have_one():
    """Errors drawn from a process whose correlation is known."""
    rng = np.random.default_rng(0)
    sizes = np.stack([np.round(2 ** rng.uniform(3, 9, 1500)), np.full(1500, 7.0)], axis=1)
    together = np.arange(1500) % 5
    octaves = np.log2(sizes[:, 0])
    apart = np.abs(octaves[:, None] - octaves[None])
    covariance = 0.7 * np.exp(-apart / 1.0) + 0.3 * np.eye(1500)
    fits = []
    for _ in range(6):
        z = np.linalg.cholesky(covariance) @ rng.normal(size=1500)
        fits.append(fit_likeness(sizes, z, together))
    at_half = [fit.nearest * np.exp(-0.5 / fit.length) for fit in fits]
    assert np.mean(at_half) == pytest.approx(0.7 * np.exp(-0.5), abs=0.15)


def test_errors_without_likeness_have_none():
    rng = np.random.default_rng(1)
    sizes = np.stack([np.round(2 ** rng.uniform(3, 6, 600))], axis=1)
    found = fit_likeness(sizes, rng.normal(size=600), np.zeros(600, dtype=int))
    assert found.nearest < 0.2


def test_few_rows_tell_no_likeness():
    assert fit_likeness(np.ones((5, 2)), np.ones(5), np.zeros(5, dtype=int)) == UNKNOWN
