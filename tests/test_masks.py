"""Masks cell by cell: every rule against its definition in words, for any rectangle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from attnviz.errors import UsageError
from attnviz.masks import reachable_keys, visible_block, window_reach
from attnviz.records import MaskRule


def sees(rule: MaskRule, n_queries: int, n_keys: int, query: int, key: int, head: int = 0) -> bool:
    """Whether a query sees a key, by the words of the rule."""
    position = query + n_keys - n_queries
    found = True
    if rule.causal:
        found = found and key <= position
    if rule.window is not None and rule.causal:
        found = found and position - key < rule.window and key <= position
    elif rule.window is not None:
        found = found and -((rule.window - 1) // 2) <= position - key <= rule.window // 2
    if rule.chunk is not None:
        found = found and key // rule.chunk == position // rule.chunk
    if rule.key_visible is not None:
        found = found and bool(rule.key_visible[key])
    if rule.cells is not None:
        cells = np.asarray(rule.cells)
        found = found and bool(cells[query, key] if cells.ndim == 2 else cells[head, query, key])
    if rule.where is not None:
        found = found and bool(rule.where(head, query, key))
    return found


def rules(n_queries: int, n_keys: int) -> list[MaskRule]:
    draw = np.random.default_rng(n_queries * 31 + n_keys)
    plain = [
        MaskRule(causal=causal, window=window, chunk=chunk)
        for causal, window, chunk in itertools.product(
            (False, True), (None, 1, 2, 3, 4), (None, 1, 3)
        )
    ]
    seen = draw.random(n_keys) > 0.4
    flat, deep = draw.random((n_queries, n_keys)) > 0.4, draw.random((2, n_queries, n_keys)) > 0.4
    return [
        *plain,
        MaskRule(causal=True, key_visible=seen),
        MaskRule(cells=flat),
        MaskRule(causal=True, window=3, cells=deep),
        MaskRule(where=lambda h, q, k: (q + k + h) % 3 != 0),
        MaskRule(causal=True, key_visible=seen, cells=deep, where=lambda h, q, k: (q * 5 + k * h) % 4 != 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (4, 4), (3, 7), (7, 3)])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_every_cell_of_every_rectangle(n_queries: int, n_keys: int, kind: str) -> None:
    more: dict[str, Any] = {}
    if kind == "torch":
        torch = pytest.importorskip("torch")
        more = {"xp": torch, "device": torch.device("cpu")}
    for rule in rules(n_queries, n_keys):
        whole = np.array([[[sees(rule, n_queries, n_keys, q, k, head) for k in range(n_keys)]
                           for q in range(n_queries)] for head in range(2)])  # fmt: skip
        given = rule
        if kind == "torch":
            as_tensor = {name: torch.from_numpy(np.asarray(value)) for name in ("key_visible", "cells")
                         if (value := getattr(rule, name)) is not None}  # fmt: skip
            from dataclasses import replace

            given = replace(rule, **as_tensor)
        named: dict[str, Any] = {"n_queries": n_queries, "n_keys": n_keys, "n_heads": 2, **more}
        found = np.asarray(visible_block(given, **named))
        assert found.dtype == bool
        assert (np.broadcast_to(found, whole.shape) == whole).all(), rule
        for row0, row1 in itertools.combinations(range(n_queries + 1), 2):
            key0, key1 = n_keys // 3, n_keys - n_keys // 4
            part = np.asarray(visible_block(given, rows=(row0, row1), keys=(key0, key1), **named))
            cut = whole[:, row0:row1, key0:key1]
            assert (np.broadcast_to(part, cut.shape) == cut).all(), (rule, row0, row1)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (6, 6), (3, 7), (7, 3)])
def test_reachable_keys_are_no_more_and_no_fewer_than_needed(n_queries: int, n_keys: int) -> None:
    for causal, window, chunk in itertools.product((False, True), (None, 1, 2, 5), (None, 2, 3)):
        rule = MaskRule(causal=causal, window=window, chunk=chunk)
        whole = visible_block(rule, n_queries=n_queries, n_keys=n_keys)[0]
        for row0, row1 in itertools.combinations(range(n_queries + 1), 2):
            start, end = reachable_keys(rule, n_queries=n_queries, n_keys=n_keys, rows=(row0, row1))
            assert 0 <= start <= n_keys
            assert 0 <= end <= n_keys
            seen = np.flatnonzero(whole[row0:row1].any(axis=0))
            if len(seen) and (window is None or chunk is None):
                assert (start, end) == (seen[0], seen[-1] + 1), (rule, row0, row1)
            elif len(seen):
                assert start <= seen[0]
                assert seen[-1] < end
            else:
                assert start >= end


def test_a_window_counts_the_query_itself() -> None:
    assert [window_reach(n, causal=True) for n in (1, 2, 3)] == [(0, 0), (1, 0), (2, 0)]
    assert [window_reach(n, causal=False) for n in (1, 2, 3, 4, 5)] == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]  # fmt: skip
    for window in (0, -1):
        with pytest.raises(UsageError, match=f"window {window} hides every key"):
            window_reach(window, causal=True)
