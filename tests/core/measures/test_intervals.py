"""The bootstrap against loops, and its levels against the series for Student's t."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from attnviz.core.measures import intervals
from attnviz.core.measures.intervals import average, bootstrap


def test_averages_leave_nan_out() -> None:
    nan = np.nan
    found = average(np.array([[1.0, nan, nan], [2.0, 4.0, nan], [6.0, nan, nan]]))
    np.testing.assert_array_equal(found, [3.0, 4.0, nan])
    assert average(np.array([-1.0, 1.0])) == 0.0


def spread(edge: float, n: int) -> float:
    """Student's t by Abramowitz and Stegun 26.7.5, two terms, back to a share of the normal."""
    z, nu = NormalDist().inv_cdf(edge), n - 1
    g1 = z**3 / 4 + z / 4
    g2 = 5 * z**5 / 96 + z**3 / 6 + z / 32
    return NormalDist().cdf((z + g1 / nu + g2 / nu**2) * (n / (n - 1)) ** 0.5)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
@pytest.mark.parametrize("edge", [0.025, 0.05, 0.25])
def test_levels_are_spread_as_students_t_asks(n: int, edge: float) -> None:
    assert intervals._spread_level(edge, n) == pytest.approx(spread(edge, n), rel=1e-12)
    assert intervals._spread_level(edge, n) < edge


def test_levels_of_one_text_and_of_many_are_the_plain_ones() -> None:
    assert intervals._spread_level(0.025, 1) == 0.025
    assert intervals._spread_level(0.025, 10**6) == pytest.approx(0.025, rel=1e-5)
    # t_9 at 2.5 % is −2.262157; stretched by √(10/9) it has 0.0085 of the normal below it
    assert intervals._spread_level(0.025, 10) == pytest.approx(
        NormalDist().cdf(-2.262157 * (10 / 9) ** 0.5), rel=2e-2
    )


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_interval_is_that_of_resampled_means(level: float) -> None:
    nan = np.nan
    samples = np.array([[1.0, nan], [2.0, 5.0], [4.0, nan], [8.0, 7.0], [nan, 6.5]])
    mean, low, high = bootstrap(samples, n_resamples=40, level=level, seed=3)
    times = np.random.Generator(np.random.Philox(3)).multinomial(5, [1 / 5] * 5, size=40)
    edge = spread((1 - level) / 2, 5)
    for column in range(2):
        means = []
        for row in times:
            drawn = [x for x, n in zip(samples[:, column], row, strict=True) for _ in range(n)]
            told = [x for x in drawn if not np.isnan(x)]
            means.append(sum(told) / len(told) if told else nan)
        ends = np.nanquantile(means, (edge, 1 - edge))
        assert (low[column], high[column]) == pytest.approx(tuple(ends), rel=1e-12)
        assert mean[column] == pytest.approx(np.nanmean(samples[:, column]))


def test_shapes_are_kept_and_one_text_is_its_own_interval() -> None:
    mean, low, high = bootstrap(np.arange(6.0).reshape(1, 2, 3))
    for found in (mean, low, high):
        np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3))
    mean, low, high = bootstrap(np.array([[np.nan, 0.25, 1.0], [np.nan, 0.25, 1.0]]))
    for found in (mean, low, high):
        np.testing.assert_array_equal(found, [np.nan, 0.25, 1.0])
    nothing = bootstrap(np.full((2, 3), np.nan))
    assert np.isnan(nothing).all()
    assert nothing[0].shape == (3,)
    assert intervals.N_RESAMPLES == 1000
    assert intervals.LEVEL == 0.95
    default, given = bootstrap(np.arange(9.0)), bootstrap(np.arange(9.0), n_resamples=1000, level=0.95, seed=0)  # fmt: skip
    assert default == given
    assert bootstrap(np.arange(9.0), seed=1) != default
    assert bootstrap(np.arange(9.0), n_resamples=999) != default
