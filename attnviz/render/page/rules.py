"""Masks and biases as few numbers: a rule stays a rule, anything else becomes bits or a table.

What lives here: ``MaskRule`` and bias → what the page's script evaluates by itself. What does not:
the evaluation for numpy (``core.masks``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnviz.masks import visible_block, window_reach
from attnviz.records import Array, LayerHeads, MaskRule

_BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Described:
    """JSON values, and the arrays they name."""

    facts: dict[str, Any] | None
    arrays: dict[str, Array] = field(default_factory=dict)


def describe_mask(layer: LayerHeads) -> Described:
    """Describe which key a query may see.

    ``facts`` has ``causal``, ``before`` and ``after`` (keys reached each way, None for all),
    ``chunk``, and ``n_maps``, the number of bit maps: 0, 1, or one per head. The maps are packed
    row by row, lowest bit first.

    Notes
    -----
    A mask given by cells or by index is read in blocks of rows; where it turns out to be causal,
    windowed or open, no bits are kept. Bits take L·S/8 bytes per map.
    """
    rule, n_queries, n_keys = layer.visible, layer.n_queries, layer.n_keys
    if rule.cells is not None or rule.where is not None:
        found = _find_rule(layer)
        if found is None:
            open_: dict[str, Any] = {"causal": False, "before": None, "after": None, "chunk": None}
            bits = _pack(layer)
            return Described({**open_, "n_maps": len(bits)}, {"mask": bits})
        rule = found
    before = after = None
    if rule.window is not None:
        before, after = window_reach(rule.window, causal=rule.causal)
    facts: dict[str, Any] = {
        "causal": rule.causal,
        "before": before,
        "after": after,
        "chunk": rule.chunk,
    }
    if rule.key_visible is None or bool(np.all(rule.key_visible)):
        return Described({**facts, "n_maps": 0})
    row = np.asarray(rule.key_visible, bool)
    every = np.broadcast_to(np.packbits(row, bitorder="little"), (1, n_queries, -(-n_keys // 8)))
    return Described({**facts, "n_maps": 1}, {"mask": np.ascontiguousarray(every)})


def describe_bias(layer: LayerHeads) -> Described:
    """Describe the scores that are added for a position.

    ``kind`` is ``distance`` (one number per key − query, as T5 has: (n, L + S − 1)), ``key`` (one
    per key: (n, S)), or ``cells`` ((n, L, S)); ``n`` is 1 or the number of heads.
    """
    if layer.bias is None:
        return Described(None)
    first = _bias_rows(layer, 0, 1)
    last = _bias_rows(layer, layer.n_queries - 1, layer.n_queries)
    by_distance = np.concatenate([last[:, 0], first[:, 0, 1:]], axis=-1)
    kinds = {"distance": by_distance, "key": np.ascontiguousarray(first[:, 0])}
    for row0 in range(0, layer.n_queries, _BLOCK_ROWS):
        rows = _bias_rows(layer, row0, min(row0 + _BLOCK_ROWS, layer.n_queries))
        for kind in [k for k in kinds if not np.array_equal(expand_bias(k, kinds[k], layer, row0, row0 + rows.shape[1]), rows)]:  # fmt: skip
            del kinds[kind]
    if "key" in kinds and "distance" in kinds:
        del kinds["distance"]
    for kind, values in kinds.items():
        return Described({"kind": kind, "n": len(values)}, {"bias": values})
    whole = _bias_rows(layer, 0, layer.n_queries)
    return Described({"kind": "cells", "n": len(whole)}, {"bias": whole})


def expand_bias(kind: str, values: Array, layer: LayerHeads, row0: int, row1: int) -> Array:
    """Return rows of a described bias: (n, rows, S)."""
    if kind == "cells":
        return values[:, row0:row1]
    key = np.arange(layer.n_keys)[None, :]
    query = np.arange(row0, row1)[:, None]
    if kind == "key":
        return np.broadcast_to(values[:, None, :], (len(values), row1 - row0, layer.n_keys))
    return values[:, key - query + layer.n_queries - 1]


def _bias_rows(layer: LayerHeads, row0: int, row1: int) -> Array:
    bias = layer.bias
    rows = bias(row0, row1) if callable(bias) else np.asarray(bias)[:, row0:row1]
    return np.asarray(rows)


def visible_rows(layer: LayerHeads, row0: int, row1: int) -> Array:
    """Evaluate the mask for some rows: (1 or H, rows, S) bool."""
    return visible_block(
        layer.visible,
        n_queries=layer.n_queries,
        n_keys=layer.n_keys,
        rows=(row0, row1),
        n_heads=layer.n_heads,
    )


def _find_rule(layer: LayerHeads) -> MaskRule | None:
    """Return a plain rule that equals the mask in every cell, or None."""
    n_queries, n_keys = layer.n_queries, layer.n_keys
    seen_last = visible_rows(layer, n_queries - 1, n_queries)
    width = int(seen_last[0, 0].sum())
    rules = [MaskRule(), MaskRule(causal=True)]
    if 0 < width < n_keys:
        rules.append(MaskRule(causal=True, window=width))
    for row0 in range(0, n_queries, _BLOCK_ROWS):
        rows = (row0, min(row0 + _BLOCK_ROWS, n_queries))
        seen = visible_rows(layer, *rows)
        rules = [
            rule
            for rule in rules
            if bool(
                (visible_block(rule, n_queries=n_queries, n_keys=n_keys, rows=rows) == seen).all()
            )
        ]
    return rules[0] if rules else None


def _pack(layer: LayerHeads) -> Array:
    """Return the mask as bits: (1 or H, L, ⌈S/8⌉) uint8; one map where all heads share it."""
    blocks = []
    for row0 in range(0, layer.n_queries, _BLOCK_ROWS):
        seen = visible_rows(layer, row0, min(row0 + _BLOCK_ROWS, layer.n_queries))
        blocks.append(np.packbits(np.asarray(seen, bool), axis=-1, bitorder="little"))
    bits = np.concatenate(blocks, axis=1)
    return bits[:1] if bool((bits == bits[:1]).all()) else bits
