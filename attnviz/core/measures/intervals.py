"""Averages over texts, with an interval: the bootstrap.

What lives here: resampling. What does not: what is averaged (``core.patterns``).

Sources: Efron, Tibshirani, "An Introduction to the Bootstrap" (1993), the percentile interval;
Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), section 4.3: percentile
intervals of few samples are too short; the levels are spread as Student's t asks.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from attnviz.records import Array

N_RESAMPLES = 1000
LEVEL = 0.95


def average(samples: Array) -> Array:
    """Return the mean over the first axis, NaN left out: (…) float64, NaN where all are.

    Examples
    --------
    >>> average(np.array([[1.0, np.nan], [2.0, np.nan]])).tolist()
    [1.5, nan]
    """
    values = np.asarray(samples, np.float64)
    tells = ~np.isnan(values)
    n_tell = tells.sum(axis=0)
    sums = np.where(tells, values, 0.0).sum(axis=0)
    return np.divide(sums, n_tell, out=np.full(sums.shape, np.nan), where=n_tell > 0)


def bootstrap(
    samples: Array, *, n_resamples: int = N_RESAMPLES, level: float = LEVEL, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Return mean, low and high end of the mean over the first axis, NaN left out.

    Parameters
    ----------
    samples : (n_texts, …) float; NaN where a text says nothing
    level
        Share of resampled means inside the interval, between 0 and 1.
    seed
        The same seed gives the same interval.

    Returns
    -------
    mean, low, high : (…) float64; NaN where no text says anything; the interval of a single
        text is its value

    Examples
    --------
    >>> mean, low, high = bootstrap(np.array([0.0, 1.0, 1.0, 0.0]))
    >>> float(mean), bool(low < mean < high)
    (0.5, True)
    """
    values = np.asarray(samples, np.float64)
    tells = ~np.isnan(values)
    filled = np.where(tells, values, 0.0)
    flat, counted = filled.reshape(len(values), -1), tells.reshape(len(values), -1).astype(float)
    draw = np.random.Generator(np.random.Philox(seed))
    times = draw.multinomial(len(values), np.full(len(values), 1 / len(values)), size=n_resamples)
    sums, counts = times @ flat, times @ counted
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    n_tell = counted.sum(axis=0)
    mean = average(values.reshape(len(values), -1))
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    if (n_tell > 0).any():
        edge = _spread_level((1 - level) / 2, len(values))
        ends = np.nanquantile(means[:, n_tell > 0], (edge, 1 - edge), axis=0)
        low[n_tell > 0], high[n_tell > 0] = ends
    shape = values.shape[1:]
    return mean.reshape(shape), low.reshape(shape), high.reshape(shape)


def _spread_level(edge: float, n: int) -> float:
    """Return the share below an end of the expanded percentile interval of ``n`` samples."""
    if n < 2:
        return edge
    z, dof = NormalDist().inv_cdf(edge), n - 1
    t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    return NormalDist().cdf(t * (n / (n - 1)) ** 0.5)
