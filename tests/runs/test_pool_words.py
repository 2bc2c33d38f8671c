"""Words from sub-words: which tokens belong together, and the rule that pools them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.records import About, RunInfo, SourceInfo, Tokens, Trace
from attnviz.runs.pool_words import group_words, pool, pool_words


def tokens_of(text: str, *spans: tuple[int, int] | None) -> Tokens:
    n = len(spans)
    labels = tuple("[X]" if s is None else text[s[0] : s[1]] for s in spans)
    return Tokens(text, tuple(range(n)), labels, labels, spans, tuple(s is None for s in spans))


def words(tokens: Tokens) -> list[str]:
    return ["+".join(tokens.labels[i] for i in group) for group in group_words(tokens)]


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("a bear", [(0, 1), (1, 6)], ["a", " bear"]),
        ("a bear", [(0, 1), (2, 6)], ["a", "bear"]),
        ("unbearable", [(0, 2), (2, 6), (6, 10)], ["un+bear+able"]),
        ("bears, too", [(0, 4), (4, 5), (5, 6), (7, 10)], ["bear+s", ",", "too"]),
        ("isn't", [(0, 3), (3, 4), (4, 5)], ["isn+'+t"]),
        ("isn't", [(0, 3), (3, 5)], ["isn+'t"]),
        ("'so'", [(0, 1), (1, 3), (3, 4)], ["'", "so", "'"]),
        ("日本語", [(0, 1), (1, 2), (2, 3)], ["日", "本", "語"]),
        ("ก็ไป", [(0, 2), (2, 4)], ["ก็", "ไป"]),
        ("🧸a", [(0, 1), (0, 1), (0, 1), (1, 2)], ["🧸+🧸+🧸", "a"]),
        ("x_y 1.5", [(0, 1), (1, 3), (4, 5), (5, 6), (6, 7)], ["x+_y", "1", ".", "5"]),
        ("ab", [None, (0, 1), (1, 2), None], ["[X]", "a+b", "[X]"]),
    ],
)
def test_which_tokens_are_one_word(text, spans, expected):
    assert words(tokens_of(text, *spans)) == expected


def trace_of(weights: np.ndarray, tokens: Tokens) -> Trace:
    source = SourceInfo("model", "m", "", 1, 1, 1, 4, 4, 4)
    return Trace(
        About(tokens, source, RunInfo("", "cpu", "float64", "numpy")), layers=(0,),
        heads=(0,), scale=(1.0,), softcap=(None,), stages={"weights": weights[None, None]},
        visible=weights[None, None] > 0,
    )  # fmt: skip


def test_rows_are_averaged_and_columns_summed_by_hand():
    tokens = tokens_of("ab c", (0, 1), (1, 2), (3, 4))
    weights = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.1, 0.2, 0.7]])
    made = pool_words(trace_of(weights, tokens))
    assert np.allclose(made.stages["weights"][0, 0], [[1.0, 0.0], [0.3, 0.7]])
    assert made.visible[0, 0].tolist() == [[True, False], [True, True]]
    assert made.tokens.labels == ("ab", "c")
    assert made.tokens.spans == ((0, 2), (3, 4))
    assert made.run.overrides["words"].endswith("rows averaged, columns summed")


def test_a_word_is_blind_only_if_all_its_tokens_are():
    tokens = tokens_of("ab c", (0, 1), (1, 2), (3, 4))
    weights = np.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    trace = trace_of(weights, tokens)
    from dataclasses import replace

    trace = replace(trace, rows_without_keys=((0, 0, 0), (0, 0, 2)))
    assert pool_words(trace).rows_without_keys == ((0, 0, 1),)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 1000))
def test_rows_still_sum_to_one(sizes, seed):
    n = sum(sizes)
    starts = np.cumsum([0, *sizes])
    groups = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(starts))
    cells = np.random.default_rng(seed).random((2, n, n))
    cells /= cells.sum(-1, keepdims=True)
    made = pool(cells, groups, groups)
    assert made.shape == (2, len(sizes), len(sizes))
    assert np.allclose(made.sum(-1), 1)
