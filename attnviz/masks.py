"""Which key a query may see: a ``MaskRule`` evaluated for any rectangle, never summed.

What lives here: rule → boolean block, and the key range a block of rows can reach at all. What
does not: scores (a mask is combined with "and" and applied once, by ``reference`` or ``attend``).
"""

from __future__ import annotations

from typing import Any

from attnviz.errors import UsageError
from attnviz.records import Array, MaskRule


def visible_block(
    rule: MaskRule,
    *,
    n_queries: int,
    n_keys: int,
    rows: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
    n_heads: int = 1,
    xp: Any = None,
    device: Any = None,
) -> Array:
    """Evaluate a rule for a rectangle of the full (L, S) map.

    Parameters
    ----------
    rule
        The rule; True means the query may attend to the key.
    n_queries, n_keys
        L and S. Where L < S the last query is aligned with the last key.
    rows, keys
        Half-open ranges; the whole axis where None.
    n_heads
        H, for rules that differ by head.
    xp
        numpy (default) or torch.
    device
        Where a torch result is made.

    Returns
    -------
    (1 or H, rows, keys) bool

    Examples
    --------
    >>> visible_block(MaskRule(causal=True, window=2), n_queries=3, n_keys=3)[0].astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    if xp is None:
        import numpy as xp
    row0, row1 = rows if rows is not None else (0, n_queries)
    key0, key1 = keys if keys is not None else (0, n_keys)
    place = {} if device is None else {"device": device}
    query = xp.arange(row0, row1, **place)[:, None]
    key = xp.arange(key0, key1, **place)[None, :]
    position = query + (n_keys - n_queries)
    seen = xp.ones(
        (row1 - row0, key1 - key0), dtype=xp.bool_ if _is_numpy(xp) else xp.bool, **place
    )
    if rule.causal:
        seen = seen & (key <= position)
    if rule.window is not None:
        before, after = window_reach(rule.window, causal=rule.causal)
        seen = seen & (key >= position - before) & (key <= position + after)
    if rule.chunk is not None:
        seen = seen & (key // rule.chunk == position // rule.chunk)
    if rule.key_visible is not None:
        seen = seen & rule.key_visible[None, key0:key1]
    seen = seen[None]
    if rule.cells is not None:
        cells = rule.cells if rule.cells.ndim == 3 else rule.cells[None]
        seen = seen & cells[:, row0:row1, key0:key1]
    if rule.where is not None:
        head = xp.arange(n_heads, **place)[:, None, None]
        seen = seen & rule.where(head, query[None], key[None])
    return seen


def window_reach(window: int, *, causal: bool) -> tuple[int, int]:
    """Return how many keys before and after itself a query sees: ``window`` keys in all.

    Examples
    --------
    >>> window_reach(3, causal=True), window_reach(3, causal=False), window_reach(4, causal=False)
    ((2, 0), (1, 1), (2, 1))
    """
    if window < 1:
        raise UsageError(f"window {window} hides every key: give 1 or more, or none at all")
    if causal:
        return window - 1, 0
    return window // 2, (window - 1) // 2


def reachable_keys(
    rule: MaskRule, *, n_queries: int, n_keys: int, rows: tuple[int, int]
) -> tuple[int, int]:
    """Return the half-open key range outside of which no row of a block can see anything.

    A streamed core skips everything else: half the work for a causal rule, nearly all of it for
    a narrow window. ``cells`` and ``where`` are not looked into.

    Examples
    --------
    >>> reachable_keys(MaskRule(causal=True, window=3), n_queries=9, n_keys=9, rows=(4, 6))
    (2, 6)
    """
    offset = n_keys - n_queries
    first, last = rows[0] + offset, rows[1] - 1 + offset
    start, end = 0, n_keys
    if rule.causal:
        end = min(end, last + 1)
    if rule.window is not None:
        before, after = window_reach(rule.window, causal=rule.causal)
        start, end = max(start, first - before), min(end, last + after + 1)
    if rule.chunk is not None:
        start = max(start, first // rule.chunk * rule.chunk)
        end = min(end, (last // rule.chunk + 1) * rule.chunk)
    return max(0, min(start, n_keys)), max(0, min(end, n_keys))


def _is_numpy(xp: Any) -> bool:
    return bool(xp.__name__ == "numpy")
