"""Patterns against loops that follow each formula, and stability against numpy's correlation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attnviz.core.measures.patterns import (
    LOCAL_WIDTH,
    PATTERNS,
    Facts,
    excess,
    ideal,
    score,
    stability,
)


def targets(name: str, facts: Facts, seen: Any, i: int) -> list[int]:
    """The keys a pattern is about for one query, by its formula, the visible ones only."""
    n = len(facts)
    ids, special, rarity = (list(np.asarray(x)) for x in (facts.ids, facts.special, facts.rarity))
    visible = [j for j in range(n) if seen[i, j]]
    rarest = max((rarity[j] for j in visible), default=0)
    found = {
        "previous": [i - 1],
        "next": [i + 1],
        "self": [i],
        "first": [0] if i > 0 else [],
        "special": [j for j in range(n) if j != i and special[j]],
        "same": [j for j in range(n) if j != i and ids[j] == ids[i]],
        "induction": [j for j in range(1, i) if ids[j - 1] == ids[i]],
        "local": [j for j in range(n) if 0 < abs(i - j) <= 4],
        "rare": [j for j in visible if rarity[j] == rarest][-1:],
    }[name]
    return [j for j in found if j in visible]


def by_loops(name: str, weights: Any, seen: Any, facts: Facts) -> tuple[float, float, int]:
    scores, nulls = [], []
    for i in range(len(facts)):
        n_seen = int(seen[i].sum())
        if name == "uniform":
            if n_seen > 1:
                bits = -sum(w * math.log2(w) for w in weights[i] if w > 0)
                scores.append(bits / math.log2(n_seen))
                nulls.append(scores[-1])
            continue
        wanted = targets(name, facts, seen, i)
        if 0 < len(wanted) < n_seen:
            scores.append(sum(weights[i, j] for j in wanted))
            nulls.append(len(wanted) / n_seen)
    if not scores:
        return math.nan, math.nan, 0
    return sum(scores) / len(scores), sum(nulls) / len(nulls), len(scores)


def case(seed: int, n: int, *, causal: bool) -> tuple[Any, Any, Facts]:
    draw = np.random.Generator(np.random.Philox(seed))
    seen = np.tri(n, dtype=bool) if causal else draw.random((n, n)) > 0.2
    seen[:, 0] |= ~seen.any(-1)
    weights = np.where(seen, draw.random((3, n, n)) ** 4, 0.0)
    weights /= weights.sum(-1, keepdims=True)
    facts = Facts(draw.integers(0, 4, n), draw.random(n) < 0.3, draw.integers(0, 5, n) / 4)
    return weights, seen, facts


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [1, 2, 11])
def test_every_pattern_of_every_head(n: int, causal: bool) -> None:
    for seed in range(6):
        weights, seen, facts = case(seed, n, causal=causal)
        found = score(weights, seen[None], facts)
        assert set(found) == set(PATTERNS) - {"positional"}
        for name, value in found.items():
            for head in range(3):
                share, null, n_rows = by_loops(name, weights[head], seen, facts)
                assert value.n_rows == n_rows, name
                assert value.scores[head] == pytest.approx(share, abs=1e-12, nan_ok=True), name
                assert value.nulls[head] == pytest.approx(null, abs=1e-12, nan_ok=True), name
            assert value.scores.shape == value.nulls.shape == (3,)


def test_the_rarest_token_that_is_seen_counts_the_last_of_equals() -> None:
    facts = Facts(np.arange(5), np.zeros(5, bool), np.array([1.0, 3.0, 3.0, 9.0, np.inf]))
    seen = np.array([[True, True, True, False, False]] * 5)
    weights = np.tile(np.array([0.1, 0.2, 0.7, 0, 0]), (1, 5, 1))
    found = score(weights, seen[None], facts)["rare"]
    assert (found.scores[0], found.nulls[0], found.n_rows) == (pytest.approx(0.7), pytest.approx(1 / 3), 5)  # fmt: skip
    dark = score(weights, np.zeros((1, 5, 5), bool), facts)["rare"]
    assert dark.n_rows == 0


def test_a_local_head_looks_at_most_four_keys_away() -> None:
    assert LOCAL_WIDTH == 4
    n = 12
    weights = np.zeros((1, n, n))
    weights[0, :, :] = np.eye(n, k=-4) + np.eye(n, k=-5)
    found = score(weights, np.ones((1, n, n), bool), Facts(np.arange(n), np.zeros(n), np.arange(n)))
    assert found["local"].scores[0] == pytest.approx((n - 4) / n)


def test_masks_that_differ_by_head_are_scored_head_by_head() -> None:
    parts = [case(seed, 7, causal=seed % 2 == 0) for seed in range(3)]
    facts = parts[0][2]
    weights = np.stack([part[0][0] for part in parts])
    seen = np.stack([part[1] for part in parts])
    found = score(weights, seen, facts)
    rows: dict[str, list[int]] = {}
    for head in range(3):
        for name in found:
            share, null, n_rows = by_loops(name, weights[head], seen[head], facts)
            assert found[name].scores[head] == pytest.approx(share, abs=1e-12, nan_ok=True)
            assert found[name].nulls[head] == pytest.approx(null, abs=1e-12, nan_ok=True)
            rows.setdefault(name, []).append(n_rows)
    assert {name: value.n_rows for name, value in found.items()} == {n: max(r) for n, r in rows.items()}  # fmt: skip
    same = score(weights, np.stack([seen[0]] * 3), facts)
    plain = score(weights, seen[:1], facts)
    for name in plain:
        np.testing.assert_array_equal(same[name].scores, plain[name].scores)


@pytest.mark.parametrize("sizes", [(9, 9), (9, 6), (5, 9)])
@pytest.mark.parametrize("n_least", [1, 3, 4])
def test_stability_is_the_mean_correlation_over_common_keys(
    sizes: tuple[int, int], n_least: int
) -> None:
    (a, seen_a, _), (b, seen_b, _) = (case(seed, n, causal=False) for seed, n in enumerate(sizes))
    a[1, 2] = np.where(seen_a[2], 0.125, 0)  # a row without variation
    found = stability(a, seen_a[None], b, seen_b[None], n_least=n_least)
    n = min(sizes)
    for head in range(3):
        told = []
        for i in range(n):
            both = [j for j in range(n) if seen_a[i, j] and seen_b[i, j]]
            if len(both) < n_least:
                continue
            x, y = a[head, i, both], b[head, i, both]
            flat = np.ptp(x) < 1e-9 or np.ptp(y) < 1e-9
            told.append(0.0 if flat else float(np.corrcoef(x, y)[0, 1]))
        assert found.n_rows == len(told)
        assert found.scores[head] == pytest.approx(np.mean(told), abs=1e-9)
        assert found.nulls[head] == 0


def test_stability_needs_rows_with_enough_common_keys() -> None:
    weights, seen, _ = case(0, 3, causal=True)
    found = stability(weights, seen[None], weights, seen[None])
    assert found.n_rows == 1  # only the last row has three keys
    assert found.scores == pytest.approx([1.0] * 3)
    nothing = stability(weights, seen[None], weights, seen[None], n_least=4)
    assert nothing.n_rows == 0
    assert np.isnan(nothing.scores).all()
    assert np.isnan(nothing.nulls).all()


def test_excess_is_0_at_the_null_and_where_there_is_no_room() -> None:
    np.testing.assert_allclose(
        excess(np.array([0.25, 1.0, 0.0, 1.0]), np.array([0.25, 0.25, 0.5, 1.0])), [0, 1, -1, 0]
    )
    assert np.isnan(excess(np.array(np.nan), np.array(0.5)))


@pytest.mark.parametrize("name", PATTERNS)
def test_an_ideal_head_looks_evenly_at_its_targets_or_at_everything(name: str) -> None:
    _, seen, facts = case(3, 8, causal=True)
    rows = ideal(name, seen, facts)
    assert rows.shape == (1, 8, 8)
    for i in range(8):
        visible = np.flatnonzero(seen[i])
        wanted = visible if name == "uniform" else targets("self" if name == "positional" else name, facts, seen, i)  # fmt: skip
        wanted = wanted if len(wanted) else visible
        expected = np.zeros(8)
        expected[wanted] = 1 / len(wanted)
        np.testing.assert_allclose(rows[0, i], expected)
