"""Patterns: a head that does only one thing scores 1 on it, and near its null on the others."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.core.measures.intervals import bootstrap
from attnviz.core.measures.patterns import PATTERNS, Facts, excess, ideal, score, stability

POSITIONS = ("previous", "next", "self", "first", "local")
# patterns that share keys by what they are: a previous-token head is local and positional
KIN = {
    "previous": {"local", "positional"}, "next": {"local", "positional"}, "self": {"positional"},
    "first": {"positional"}, "local": {"previous", "next", "positional", "uniform"},
    "special": {"uniform"}, "same": {"uniform"}, "induction": set(), "rare": set(),
    "uniform": set(), "positional": {"self"},
}  # fmt: skip


def make_facts(n: int, seed: int = 0) -> Facts:
    """Random tokens, half of them repeated once, a few special ones."""
    draw = np.random.Generator(np.random.Philox(seed))
    ids = draw.integers(0, max(2, n // 2), n)
    return Facts(ids, draw.random(n) < 0.1, draw.random(n))


def views(n: int) -> dict[str, np.ndarray]:
    return {"both": np.ones((n, n), bool), "causal": np.tri(n, dtype=bool)}


CAUSAL = [name for name in PATTERNS if name != "next"]
"""Patterns that a causal head can have: no causal query sees a later key."""


@pytest.mark.parametrize(
    ("name", "direction"),
    [*((name, "both") for name in PATTERNS), *((name, "causal") for name in CAUSAL)],
)
def test_a_head_that_does_only_this_scores_1(name: str, direction: str) -> None:
    facts, visible = make_facts(64), views(64)[direction]
    weights = ideal(name, visible, facts)
    assert np.allclose(weights.sum(-1), 1)
    if name == "positional":
        other = make_facts(50, seed=1)
        found = stability(
            weights, visible[None], ideal(name, visible[:50, :50], other), visible[None, :50, :50]
        )
    else:
        found = score(weights, visible[None], facts)[name]
    assert found.scores[0] == pytest.approx(1.0, abs=1e-12)
    assert found.n_rows > 0


@pytest.mark.parametrize("direction", ["both", "causal"])
@pytest.mark.parametrize("name", PATTERNS)
def test_and_is_near_the_null_on_the_others(name: str, direction: str) -> None:
    n, visible = 96, views(96)[direction]
    sums: dict[str, list[float]] = {}
    for seed in range(12):
        facts = make_facts(n, seed)
        weights = ideal(name, visible, facts)
        found = dict(score(weights, visible[None], facts))
        other = make_facts(n, seed + 100)
        found["positional"] = stability(
            weights, visible[None], ideal(name, visible, other), visible[None]
        )
        for key, value in found.items():
            if value.n_rows:
                sums.setdefault(key, []).append(float(excess(value.scores, value.nulls)[0]))
    for key, values in sums.items():
        if key not in KIN[name] | {name, "uniform"}:
            assert abs(np.mean(values)) < 0.2, (key, np.mean(values))


def test_random_weights_cover_the_null() -> None:
    """Heads of random matrices over random texts: at least 90 % of intervals hold the null.

    The trace of W_Q·W_Kᵀ gives each random head a true liking for itself, of 4 % of the null: over
    many long texts its interval would rightly leave the null.
    """
    n_texts, n_heads, n, d, d_k = 16, 60, 14, 512, 64
    draw = np.random.Generator(np.random.Philox(3))
    w_q, w_k = draw.normal(size=(2, n_heads, d, d_k)) / np.sqrt(d)
    visible = np.tri(n, dtype=bool)[None]
    rows: dict[str, list[np.ndarray]] = {name: [] for name in PATTERNS}
    nulls: dict[str, list[np.ndarray]] = {name: [] for name in PATTERNS}
    before = None
    for seed in range(n_texts):
        facts = make_facts(n, seed)
        x = draw.normal(size=(n, d))
        scores = (x @ w_q) @ (x @ w_k).transpose(0, 2, 1) / np.sqrt(d_k)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found = dict(score(weights, visible, facts))
        if before is not None:
            found["positional"] = stability(weights, visible, before, visible)
        before = weights
        for name, value in found.items():
            rows[name].append(value.scores)
            nulls[name].append(value.nulls)
    for name in PATTERNS:
        if name == "next":
            assert np.isnan(rows[name]).all()
            continue
        _, low, high = bootstrap(np.array(rows[name]) - np.array(nulls[name]))
        covered = ((low <= 1e-12) & (high >= -1e-12)).mean()
        assert covered >= 0.9, (name, covered)


def test_by_hand() -> None:
    facts = Facts(np.array([7, 8, 7, 9]), np.array([True, False, False, False]), np.arange(4.0))
    visible = np.tri(4, dtype=bool)[None]
    weights = np.array(
        [[[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0.1, 0.2, 0.3, 0.4]]]
    )
    found = score(weights, visible, facts)
    assert found["previous"].scores[0] == pytest.approx((0.5 + 0.5 + 0.3) / 3)
    assert found["previous"].nulls[0] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found["self"].scores[0] == pytest.approx((0.5 + 0.25 + 0.4) / 3)
    assert found["first"].scores[0] == pytest.approx((0.5 + 0.25 + 0.1) / 3)
    assert found["special"].scores[0] == pytest.approx((0.5 + 0.25 + 0.1) / 3)
    assert (found["same"].scores[0], found["same"].n_rows) == (pytest.approx(0.25), 1)
    assert (found["induction"].scores[0], found["induction"].n_rows) == (pytest.approx(0.5), 1)
    assert found["rare"].scores[0] == pytest.approx((0.5 + 0.25 + 0.4) / 3)
    assert found["next"].n_rows == 0
    assert np.isnan(found["next"].scores).all()


def test_heads_may_see_different_keys() -> None:
    facts = make_facts(12)
    both = np.stack([np.ones((12, 12), bool), np.tri(12, dtype=bool)])
    weights = np.concatenate([ideal("previous", seen, facts) for seen in both])
    found = score(weights, both, facts)["previous"]
    assert found.scores == pytest.approx([1.0, 1.0])
    assert found.nulls[0] == pytest.approx(1 / 12)
    assert found.nulls[1] > found.nulls[0]


def test_shuffled_keys_give_the_null() -> None:
    facts, visible = make_facts(20), np.ones((1, 20, 20), bool)
    draw = np.random.Generator(np.random.Philox(0))
    weights = draw.dirichlet(np.full(20, 0.2), size=(1, 20))
    shuffled = [score(draw.permuted(weights, axis=-1), visible, facts) for _ in range(400)]
    for name in ("previous", "special", "same", "local", "rare", "uniform"):
        mean = np.mean([found[name].scores[0] for found in shuffled])
        expected = score(weights, visible, facts)[name].nulls[0]
        assert mean == pytest.approx(expected, abs=0.02), name


def test_the_bootstrap() -> None:
    draw = np.random.Generator(np.random.Philox(1))
    hits = 0
    for seed in range(200):
        low, high = bootstrap(draw.normal(size=(30, 1)), seed=seed)[1:]
        hits += bool(low[0] <= 0 <= high[0])
    assert 0.9 <= hits / 200 <= 0.99
    mean, low, high = bootstrap(np.array([[0.5, np.nan], [0.5, np.nan]]))
    assert (mean[0], low[0], high[0]) == (0.5, 0.5, 0.5)
    assert np.isnan([mean[1], low[1], high[1]]).all()
    again = bootstrap(np.arange(5.0)), bootstrap(np.arange(5.0))
    assert again[0] == again[1]
