"""Choosing a head: what is telling wins, habits, sinks and special tokens do not."""

from __future__ import annotations

import numpy as np
import pytest
from support import choose_head

from attnviz.errors import UsageError

N = 8


def rows(*targets: int | None) -> np.ndarray:
    """One head whose row i looks at one key with .8, or evenly where None."""
    weights = np.full((N, N), 0.2 / (N - 1))
    for i, key in enumerate(targets):
        if key is None:
            weights[i] = 1 / N
        else:
            weights[i, key] = 0.8
    return weights


EVEN = rows(*(None,) * N)
LOOKER = rows(None, None, None, 5, None, None, None, None)
PREVIOUS = rows(0, 0, 1, 2, 3, 4, 5, 6)
FIRST = rows(*(0,) * N)
DELIMITER = rows(*(7,) * N)
PLAIN = (False,) * N


def test_a_link_of_its_own_beats_habits_of_the_same_size():
    ranked = choose_head(np.stack([PREVIOUS, FIRST, DELIMITER, LOOKER, EVEN])[None], PLAIN, 3)
    assert (ranked[0].head, ranked[0].key) == (3, 5)
    assert ranked[0].weight == pytest.approx(0.8)
    assert ranked[0].telling > 0.6
    assert max(choice.telling for choice in ranked[1:]) < 0.1
    assert len(ranked) == 5


def test_every_number_of_a_choice_by_hand():
    best = choose_head(LOOKER[None, None], PLAIN, 3)[0]
    others_there = [LOOKER[i, i + 2] for i in range(N - 2) if i != 3]
    others_to_key = [LOOKER[i, 5] for i in range(N) if i not in (3, 5)]
    assert best.distance_habit == pytest.approx(np.mean(others_there))
    assert best.key_habit == pytest.approx(np.mean(others_to_key))
    assert best.telling == pytest.approx(0.8 - max(best.distance_habit, best.key_habit))


def test_special_tokens_and_the_token_itself_are_no_candidates():
    special = [True, *PLAIN[1:-1], True]
    to_end = rows(None, None, None, 7, None, None, None, None)
    to_itself = rows(None, None, None, 3, None, None, None, None)
    for choice in choose_head(np.stack([to_end, to_itself])[None], special, 3):
        assert choice.key not in (0, 3, 7)


def test_a_sink_over_all_heads_never_wins():
    weights = np.stack([FIRST, FIRST, FIRST, LOOKER])[None]
    weights[0, 0, 3] = np.eye(N)[0]
    assert all(choice.key != 0 for choice in choose_head(weights, PLAIN, 3))


def test_without_a_token_the_best_link_of_the_text_wins():
    best = choose_head(np.stack([EVEN, PREVIOUS, LOOKER])[None], PLAIN)[0]
    assert (best.head, best.query, best.key) == (2, 3, 5)


def test_a_single_token_and_only_special_tokens_still_give_an_answer():
    assert choose_head(np.ones((1, 2, 1, 1)), [False], 0)[0].weight == 1.0
    assert len(choose_head(np.full((2, 2, 2, 2), 0.5), [True, True], 0)) == 4


def test_cross_attention_compares_by_key_only():
    weights = np.full((1, 1, 3, 5), 0.2)
    weights[0, 0, 1] = [0.05, 0.05, 0.8, 0.05, 0.05]
    best = choose_head(weights, (False,) * 5, 1, special_queries=(True, False, False))[0]
    assert (best.key, best.distance_habit) == (2, 0.0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="token 9 does not exist"):
        choose_head(np.ones((1, 1, 2, 2)), [False] * 2, 9)
