"""Sub-words pooled into words: rows averaged, columns summed.

What lives here: which tokens are one word, and pooling a trace's weights. What does not: the
weights themselves (``core``).

A word receives what its tokens receive, so columns are summed; its tokens look on its behalf alike,
so rows are averaged. Rows still sum to 1. Scores, q, k and v have no such meaning and are dropped.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Array, Span, Tokens, Trace

RULE = "sub-words pooled into words: rows averaged, columns summed"
_APOSTROPHES = "'’"


def group_words(tokens: Tokens) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, in order.

    Tokens belong together where their places in the text touch without a blank and letters or
    digits meet (also across an apostrophe), or where they share a character. Special tokens,
    punctuation, and letters of scripts without blanks stand alone.

    Examples
    --------
    >>> text = "unbearable, really"
    >>> spans = ((0, 2), (2, 6), (6, 10), (10, 11), (11, 18))
    >>> marks = (False,) * 5
    >>> group_words(Tokens(text, (0,) * 5, ("",) * 5, ("",) * 5, spans, marks))
    ((0, 1, 2), (3,), (4,))
    """
    groups: list[list[int]] = []
    for i in range(len(tokens)):
        if groups and _is_one_word(tokens, groups[-1][-1], i):
            groups[-1].append(i)
        else:
            groups.append([i])
    return tuple(tuple(group) for group in groups)


def _is_one_word(tokens: Tokens, before: int, after: int) -> bool:
    first, second = tokens.spans[before], tokens.spans[after]
    if first is None or second is None or tokens.special[before] or tokens.special[after]:
        return False
    if second[0] < first[1] and first[0] < first[1]:
        return True
    text = tokens.text
    if first[1] != second[0] or first[0] == first[1] or second[0] == second[1]:
        return False
    left, right = text[first[1] - 1], text[second[0]]
    if left in _APOSTROPHES and first[1] > 1:
        return _joins(text[first[1] - 2]) and _joins(right)
    if right in _APOSTROPHES:
        following = text[second[0] + 1 : second[0] + 2]
        return _joins(left) and bool(following) and _joins(following)
    return _joins(left) and _joins(right)


def _joins(char: str) -> bool:
    """True for a letter, digit or mark of a script that puts blanks between words."""
    if char == "_" or unicodedata.category(char)[0] in "LNM":
        name = unicodedata.name(char, "")
        return not name.startswith(
            ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
        )
    return False


def join_tokens(tokens: Tokens, groups: tuple[tuple[int, ...], ...]) -> Tokens:
    """Return words as tokens: each named by its place in the text, with its first token's id."""
    spans: list[Span | None] = []
    labels = []
    for group in groups:
        held = [span for i in group if (span := tokens.spans[i]) is not None]
        spans.append((min(s[0] for s in held), max(s[1] for s in held)) if held else None)
        if len(group) == 1:
            labels.append(tokens.labels[group[0]].removeprefix("·"))
        else:
            start, end = spans[-1] or (0, 0)
            labels.append(tokens.text[start:end].strip() or tokens.labels[group[0]])
    return replace(
        tokens,
        ids=tuple(tokens.ids[group[0]] for group in groups),
        pieces=tuple("".join(tokens.pieces[i] for i in group) for group in groups),
        labels=tuple(labels),
        spans=tuple(spans),
        special=tuple(all(tokens.special[i] for i in group) for group in groups),
    )


def pool_words(trace: Trace) -> Trace:
    """Return a trace of words, which has weights only; its ranking and query are dropped.

    Raises
    ------
    UsageError
        No weights in it.
    """
    if "weights" not in trace.stages:
        raise UsageError("--words pools weights, which this result does not have")
    queries = group_words(trace.tokens)
    keys = queries if trace.key_tokens is None else group_words(trace.keys)
    weights = pool(np.asarray(trace.stages["weights"]), queries, keys)
    visible = np.asarray(trace.visible, bool).astype(np.float64)
    moved = {i: place for place, group in enumerate(queries) for i in group}
    sinks = trace.sink_share
    about = replace(
        trace.about,
        tokens=join_tokens(trace.tokens, queries),
        key_tokens=None if trace.key_tokens is None else join_tokens(trace.keys, keys),
        run=replace(trace.run, overrides={**trace.run.overrides, "words": RULE}),
    )
    return replace(
        trace,
        about=about,
        stages={"weights": weights},
        visible=pool(visible, queries, keys) > 0,
        x=None,
        inputs={},
        ranking=(),
        asked=None,
        sink_share=None
        if sinks is None
        else np.stack([np.asarray(sinks)[..., list(g)].mean(axis=-1) for g in queries], axis=-1),
        rows_without_keys=tuple(
            place for place in _rows_moved(trace, moved) if _is_blind(trace, place, queries)
        ),
        value_norms=None,
    )


def _rows_moved(trace: Trace, moved: dict[int, int]) -> list[tuple[int, int, int]]:
    return sorted({(layer, head, moved[row]) for layer, head, row in trace.rows_without_keys})


def _is_blind(
    trace: Trace, place: tuple[int, int, int], queries: tuple[tuple[int, ...], ...]
) -> bool:
    """True where none of a word's tokens sees a key."""
    layer, head, word = place
    held = set(trace.rows_without_keys)
    return all((layer, head, row) in held for row in queries[word])


def pool(
    cells: Array, queries: tuple[tuple[int, ...], ...], keys: tuple[tuple[int, ...], ...]
) -> Array:
    """Average rows and sum columns: (…, L, S) → (…, words, words)."""
    columns = np.stack([cells[..., list(group)].sum(axis=-1) for group in keys], axis=-1)
    return np.stack([columns[..., list(group), :].mean(axis=-2) for group in queries], axis=-2)
