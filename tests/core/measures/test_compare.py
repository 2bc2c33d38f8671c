"""Divergence, cosine, alignment and blame, by hand and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.core.measures.compare import align_words, blame, cosine, jensen_shannon_bits, spread

seeds = st.integers(0, 2**32 - 1)


def rows(seed: int, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.Generator(np.random.Philox(seed))
    p, q = draw.dirichlet(np.full(n, 0.3), size=(2, 7))
    return p, q


def test_jensen_shannon_by_hand() -> None:
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    middle = np.array([0.75, 0.25])
    by_hand = (0.5 * np.log2(0.5 / middle[0]) + 0.5 * np.log2(0.5 / middle[1])) / 2
    by_hand += np.log2(1 / 0.75) / 2
    assert jensen_shannon_bits(p, q) == pytest.approx(by_hand, abs=1e-15)


@given(seeds)
def test_jensen_shannon_is_symmetric_bounded_and_0_for_equals(seed: int) -> None:
    p, q = rows(seed)
    found = jensen_shannon_bits(p, q)
    assert np.array_equal(found, jensen_shannon_bits(q, p))
    assert ((found >= 0) & (found <= 1)).all()
    assert (jensen_shannon_bits(p, p) == 0.0).all()
    assert np.allclose(jensen_shannon_bits(p[:, ::-1], q[:, ::-1]), found, atol=1e-12)
    # the square root is a metric
    r = rows(seed + 1)[0]
    root = np.sqrt(jensen_shannon_bits(p, r)) + np.sqrt(jensen_shannon_bits(r, q))
    assert (np.sqrt(found) <= root + 1e-9).all()


def test_what_a_sink_takes_counts() -> None:
    with_sink = np.array([0.2, 0.0])
    assert jensen_shannon_bits(with_sink, np.array([1.0, 0.0])) > 0.3
    assert jensen_shannon_bits(with_sink, with_sink) == 0.0


def test_cosine() -> None:
    a = np.array([0.1, 0.2, 0.3])
    assert cosine(a, a) == 1.0
    assert cosine(a, -2 * a) == pytest.approx(-1.0)
    assert np.isnan(cosine(a, 0 * a))


@pytest.mark.parametrize(
    ("a", "b", "pairs"),
    [
        ("the bear ate honey", "I cannot bear the noise",
         [(0, 3), (1, 2), (2, None), (3, None), (None, 0), (None, 1), (None, 4)]),
        ("a b c", "a b c", [(0, 0), (1, 1), (2, 2)]),
        ("a", "b c", [(0, None), (None, 0), (None, 1)]),
        ("A B a", "a b", [(0, 0), (1, 1), (2, None)]),
    ],
)  # fmt: skip
def test_the_same_words_stand_side_by_side(a: str, b: str, pairs: list[tuple[int, int]]) -> None:
    assert align_words(a.split(), b.split()) == pairs
    swapped = align_words(b.split(), a.split())
    assert {(j, i) for i, j in swapped} == set(pairs)


def test_spread_keeps_every_weight() -> None:
    pairs = align_words(["the", "bear", "ate"], ["a", "bear"])
    row = np.array([0.2, 0.5, 0.3])
    assert spread(row, pairs, 0).sum() == pytest.approx(1.0)
    assert spread(np.array([0.4, 0.6]), pairs, 1).sum() == pytest.approx(1.0)


@given(seeds)
def test_blame_sums_to_1_and_changes_sides_alike(seed: int) -> None:
    draw = np.random.Generator(np.random.Philox(seed))
    a, b = draw.normal(size=(2, 4, 3))
    found = blame(a, b)
    assert found.sum() == pytest.approx(1.0)
    assert np.allclose(found, blame(b, a))
    assert (blame(a, a) == 0).all()


def test_blame_by_hand() -> None:
    a = np.array([[1.0, 0.0], [0.0, 1.0]])
    b = np.array([[1.0, 0.0], [2.0, 1.0]])
    assert blame(a, b).tolist() == [0.0, 1.0]
