"""Pieces of keys: together all that a block can see, and unmasked only where every row sees all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from attnviz.core.stream.links import WINDOW
from attnviz.core.stream.reach import Reach, mean_reach, seen_by_all
from attnviz.masks import visible_block
from attnviz.records import MaskRule

N_KEYS = 300
PADDED = np.arange(N_KEYS) != 130
RULES = {
    "all": MaskRule(),
    "causal": MaskRule(causal=True),
    "window": MaskRule(causal=True, window=70),
    "centred": MaskRule(window=9),
    "chunk": MaskRule(chunk=100),
    "causal chunk": MaskRule(causal=True, chunk=130),
    "padding": MaskRule(key_visible=PADDED),
    "where": MaskRule(where=lambda head, query, key: (query + key) % 3 != 0),
}
ROWS = ((0, 1), (0, 64), (63, 130), (200, 201), (190, 300))


def visible(rule: MaskRule, n_queries: int, rows: tuple[int, int]) -> np.ndarray:
    found = visible_block(
        rule, n_queries=n_queries, n_keys=N_KEYS, rows=rows, keys=(0, N_KEYS), xp=np
    )
    return np.broadcast_to(found, (1, rows[1] - rows[0], N_KEYS))[0]


def reach_of(rule: MaskRule, n_queries: int) -> Reach:
    if rule.key_visible is not None:
        rule = MaskRule(key_visible=torch.from_numpy(PADDED))
    return Reach(rule, n_queries=n_queries, n_keys=N_KEYS, tile=2 * WINDOW)


@pytest.mark.parametrize("n_queries", [N_KEYS, 220])
@pytest.mark.parametrize("name", RULES)
def test_pieces_hold_every_key_that_is_seen_and_mask_what_is_not(name: str, n_queries: int) -> None:
    rule = RULES[name]
    for first, end in ROWS:
        rows = (first, min(end, n_queries))
        seen = visible(rule, n_queries, rows)
        pieces = reach_of(rule, n_queries).pieces(rows)
        for left, right in itertools.pairwise(pieces):
            assert left.keys[1] == right.keys[0]
        covered = np.zeros(N_KEYS, bool)
        for piece in pieces:
            assert piece.keys[0] % WINDOW == 0
            covered[slice(*piece.keys)] = True
            if not piece.masked:
                assert seen[:, slice(*piece.keys)].all()
        assert not seen[:, ~covered].any()


def test_most_of_a_causal_block_needs_no_mask() -> None:
    pieces = reach_of(RULES["causal"], N_KEYS).pieces((190, 200))
    assert [piece.masked for piece in pieces] == [False, True]
    assert [piece.keys for piece in pieces] == [(0, 128), (128, 256)]


@pytest.mark.parametrize("name", ["all", "causal", "window", "centred", "chunk", "causal chunk"])
def test_keys_that_every_row_sees_are_the_widest_such_span(name: str) -> None:
    for rows in ROWS:
        start, end = seen_by_all(RULES[name], n_queries=N_KEYS, n_keys=N_KEYS, rows=rows)
        everyone = visible(RULES[name], N_KEYS, rows).all(0)
        assert everyone.sum() == end - start
        assert everyone[start:end].all()


def test_a_causal_row_reaches_half_the_keys_on_average() -> None:
    assert mean_reach(RULES["all"], n_queries=N_KEYS, n_keys=N_KEYS) == N_KEYS
    causal = mean_reach(RULES["causal"], n_queries=N_KEYS, n_keys=N_KEYS)
    assert causal == pytest.approx(N_KEYS / 2, rel=0.02)
