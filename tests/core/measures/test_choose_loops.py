"""Choosing a head against loops that follow the words of its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import choose_head

from attnviz.core.measures import choose
from attnviz.core.measures.choose import SINK_SHARE, Ranking
from attnviz.errors import UsageError


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def by_loops(
    weights: Any, special: list[bool], asked: int | None, special_queries: list[bool] | None
) -> list[tuple[Any, ...]]:
    """Every head's best link by the definition: telling = weight − the larger of two habits."""
    n_layers, n_heads, n_queries, n_keys = weights.shape
    is_self = n_queries == n_keys and special_queries is None
    marked = special_queries or (special if n_queries == n_keys else [False] * n_queries)
    plain = [i for i in range(n_queries) if not marked[i]]
    queries = [asked] if asked is not None else plain
    witnesses = [i for i in plain if i != asked]
    received = []
    for key in range(n_keys):
        others = [i for i in witnesses if not (is_self and i == key)]
        received.append([mean([w[i, key] for i in others]) for layer in weights for w in layer])
    sinks = [mean(shares) > SINK_SHARE for shares in received]
    links = [(q, k) for q in queries for k in range(n_keys) if not special[k] and not (is_self and q == k)]  # fmt: skip
    if any(not sinks[k] for _, k in links):
        links = [(q, k) for q, k in links if not sinks[k]]
    elif not links:
        every = list(range(n_queries)) if asked is None and not plain else queries
        links = [(q, k) for q in every for k in range(n_keys)]
    found = []
    for layer in range(n_layers):
        for head in range(n_heads):
            w = weights[layer, head]
            best: tuple[Any, ...] = ()
            for q, k in sorted(links, key=lambda link: (link[1], link[0])):
                same = [w[i, i + k - q] for i in plain if i != q and 0 <= i + k - q < n_keys]
                to_key = [w[i, k] for i in plain if i != q and not (is_self and i == k)]
                distance = mean(same) if is_self else 0.0
                telling = w[q, k] - max(distance, mean(to_key))
                if not best or telling > best[-1] + 1e-13:
                    best = (layer, head, q, k, w[q, k], distance, mean(to_key), telling)
            found.append(best)
    return sorted(found, key=lambda one: -one[-1])


def draw(seed: int, *shape: int) -> np.ndarray:
    found: np.ndarray = np.random.Generator(np.random.Philox(seed)).dirichlet(
        np.full(shape[-1], 0.3), size=shape[:-1]
    )
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["self", "special", "cross", "cross marked", "square cross"])
def test_every_number_of_every_head(seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_queries, n_keys = {"cross": (4, 6), "cross marked": (4, 6)}.get(kind, (6, 6))
    weights = draw(seed, 2, 3, n_queries, n_keys)
    if seed % 3 == 0:  # a key that everybody looks at
        weights[..., 1] += 2
        weights /= weights.sum(-1, keepdims=True)
    special = [kind != "self" and i in (0, n_keys - 1) for i in range(n_keys)]
    marked = {"cross marked": [True, False, False, False], "square cross": [False] * 5 + [True]}.get(kind)  # fmt: skip
    if seed % 2:  # in blocks of one to three rows
        monkeypatch.setattr(choose, "BLOCK_CELLS", n_keys * (seed % 3 + 1))
    for asked in (None, 0, 2, n_queries - 1):
        ranked = choose_head(weights, special, asked, special_queries=marked)
        wanted = by_loops(weights, special, asked, marked)
        assert len(ranked) == len(wanted) == 6
        for choice, numbers in zip(ranked, wanted, strict=True):
            assert (choice.layer, choice.head, choice.query, choice.key) == numbers[:4], asked
            assert (choice.weight, choice.distance_habit, choice.key_habit, choice.telling) == (
                pytest.approx(numbers[4:], abs=1e-12)
            )


def test_only_special_tokens_or_a_single_one_fall_back_to_the_best_link() -> None:
    weights = draw(1, 1, 2, 3, 3)
    for asked in (0, 1):
        found = choose_head(weights, [True] * 3, asked)
        for choice in found:
            best = weights[0, choice.head, asked].argmax()
            assert (choice.query, choice.key) == (asked, best)
            assert choice.weight == choice.telling == weights[0, choice.head, asked, best]
    one = choose_head(np.ones((1, 1, 1, 1)), [False], 0)[0]
    assert (one.query, one.key, one.weight, one.telling) == (0, 0, 1.0, 1.0)


def test_a_sink_is_left_out_only_above_its_share() -> None:
    assert SINK_SHARE == 0.3
    weights = np.zeros((1, 1, 5, 5))
    weights[0, 0, :, 0], weights[0, 0, :, 4] = 0.375, 0.625
    weights[0, 0, 2] = [0.9, 0.1, 0, 0, 0]
    # key 0 gets .375 from all others: a sink; key 1 is the best of those that are none
    assert choose_head(weights, [False] * 4 + [True], 2)[0].key == 1
    weights[0, 0, :, 0], weights[0, 0, :, 4] = 0.25, 0.75
    weights[0, 0, 2] = [0.9, 0.1, 0, 0, 0]
    assert choose_head(weights, [False] * 4 + [True], 2)[0].key == 0
    # where every candidate is a sink, they stay candidates
    weights = np.full((1, 1, 3, 3), 0.31)
    weights[0, 0, 0, 0] = 0.6
    assert choose_head(weights, [False] * 3, 0)[0].key == 1
    # what a token gives to itself makes it no sink
    weights = np.zeros((1, 1, 5, 5))
    weights[0, 0, :, 1], weights[0, 0, :, 4] = 0.28, 0.72
    weights[0, 0, 1] = [0, 1, 0, 0, 0]
    weights[0, 0, 2] = [0, 0.9, 0.1, 0, 0]
    assert choose_head(weights, [False] * 4 + [True], 2)[0].key == 1


def test_equal_heads_keep_their_order_and_layers_their_number() -> None:
    ranked = choose_head(np.full((2, 2, 3, 3), 1 / 3), [False] * 3, 0)
    assert [(choice.layer, choice.head) for choice in ranked] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ranking = Ranking([False] * 3, 1, n_queries=3)
    ranking.add(7, (4, 2), draw(0, 2, 3, 3))
    assert {(choice.layer, choice.head) for choice in ranking.ranked()} == {(7, 4), (7, 2)}
    with pytest.raises(ValueError, match="zip"):
        ranking.add(8, (1,), draw(0, 2, 3, 3))


def test_queries_that_do_not_exist_are_refused_with_the_range() -> None:
    for query in (-1, 3):
        with pytest.raises(UsageError, match=f"token {query} does not exist: there are 0 to 2"):
            choose_head(np.ones((1, 1, 3, 3)), [False] * 3, query)
    for query in (0, 2):
        assert choose_head(np.ones((1, 1, 3, 3)), [False] * 3, query)
