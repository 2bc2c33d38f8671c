"""Rounding shows as a bound, and never decides an order or a largest place."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.rounding import bound, by_size, check_floors, largest

TIED = np.repeat([0.5, 0.25, 0.125, 0.03], [3, 5, 2, 40])


@pytest.mark.parametrize("noise", [0.0, 1e-16, 1e-7, 1e-6])
@pytest.mark.parametrize("seed", range(20))
def test_noise_changes_no_order(noise: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(TIED)
    noisy = shuffled * (1 + noise * draw.standard_normal(len(TIED)))
    exact = np.argsort(-shuffled, kind="stable")
    assert by_size(noisy).tolist() == exact.tolist()
    assert by_size(noisy, 7).tolist() == exact[:7].tolist()
    assert int(largest(noisy)) == exact[0]


def test_noise_around_any_number_changes_no_order() -> None:
    """Equal numbers stay together wherever they lie: no grid of roundings runs between them."""
    draw = np.random.default_rng(0)
    centers = draw.uniform(0.1, 1, 20_000)
    pairs = centers[:, None] * (1 + 1e-7 * draw.standard_normal((20_000, 2)))
    assert (by_size(pairs) == [0, 1]).all()
    assert (largest(pairs, axis=1) == 0).all()


def test_a_long_chain_of_near_numbers_stays_in_order() -> None:
    """Neighbours within the tolerance do not make all of a dense list equal."""
    falling = np.linspace(1, 0, 200_000)
    order = by_size(falling[::-1])
    found = falling[::-1][order]
    assert (np.diff(found) <= 2.0**-16).all()
    assert abs(found - falling).max() <= 2.0**-16


def test_what_is_clearly_larger_comes_first_in_every_row() -> None:
    rows = np.random.default_rng(1).permuted(np.tile(np.arange(12.0), (5, 7, 1)), axis=-1)
    assert (by_size(rows) == np.argsort(-rows, axis=-1)).all()
    assert (by_size(rows, 3) == np.argsort(-rows, axis=-1)[..., :3]).all()
    assert (largest(rows, axis=-1) == rows.argmax(-1)).all()
    assert (largest(rows, axis=0) == rows.argmax(0)).all()
    assert by_size(rows, 99).shape == rows.shape


def test_numbers_that_are_not_finite() -> None:
    assert by_size([-np.inf, 1.0, np.nan, np.inf, 2.0]).tolist() == [3, 4, 1, 0, 2]
    assert int(largest([np.nan, 1.0, 2.0])) == 2
    assert int(largest([-np.inf, -np.inf])) == 0
    assert int(largest([0.0, np.inf, np.inf])) == 1
    assert by_size([]).tolist() == []


@pytest.mark.parametrize(
    ("error", "floor", "shown"),
    [
        (0.0, 0.0, "0"), (0.0, 1e-15, "1e-15"), (9e-16, 0.0, "1e-15"), (1e-3, 0.0, "1e-3"),
        (1.1e-3, 0.0, "1e-2"), (1e-3, 1e-5, "1e-3"), (3e-7, 1e-5, "1e-5"), (7.0, 0.0, "1e1"),
        (1.0, 0.0, "1e0"), (float("inf"), 1e-5, "inf"), (float("nan"), 1e-5, "nan"),
    ],
)  # fmt: skip
def test_a_bound_is_the_power_of_ten_above(error: float, floor: float, shown: str) -> None:
    assert bound(error, floor) == shown
    if np.isfinite(error):
        assert float(shown) >= error


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n_keys", "d_k"), [(1, 1), (6, 64), (300, 16)])
def test_floors_lie_above_what_rounding_gives(dtype: str, n_keys: int, d_k: int) -> None:
    """Sums in any order stay below the floors, so what a screen shows is the floor's power."""
    draw = np.random.default_rng(2)
    q, k, v = (draw.standard_normal((n_keys, d_k)).astype(dtype) for _ in "qkv")
    floors = check_floors(dtype, n_keys=n_keys, d_k=d_k)

    def attend(order_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = (q @ k[order_S].T) / np.sqrt(np.float64(d_k)).astype(dtype)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return weights.sum(-1), weights @ v[order_S]

    results = [attend(draw.permutation(n_keys)) for _ in range(5)]
    assert max(abs(sums - 1).max() for sums, _ in results) <= floors["row_sum_error"]
    assert max(abs(z - results[0][1]).max() for _, z in results) <= floors["loop_error"]
