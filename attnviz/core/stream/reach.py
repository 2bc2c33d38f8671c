"""Cut the keys a block of rows can reach into pieces: whole tiles, and the masked edges.

What lives here: which rectangles are computed, and which of them need a mask at all. What does
not: the mask itself (``masks``), the numbers (``panels``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from attnviz.core.stream.links import WINDOW
from attnviz.masks import reachable_keys, window_reach
from attnviz.records import MaskRule, Span


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of keys; ``masked`` where some row of the block may not see some key of it."""

    keys: Span
    masked: bool


def seen_by_all(rule: MaskRule, *, n_queries: int, n_keys: int, rows: Span) -> Span:
    """Return the keys that every row of a block sees, by the rules on positions alone.

    Examples
    --------
    >>> seen_by_all(MaskRule(causal=True), n_queries=9, n_keys=9, rows=(4, 6))
    (0, 5)
    """
    offset = n_keys - n_queries
    first, last = rows[0] + offset, rows[1] - 1 + offset
    start, end = 0, n_keys
    if rule.causal:
        end = min(end, first + 1)
    if rule.window is not None:
        before, after = window_reach(rule.window, causal=rule.causal)
        start, end = max(start, last - before), min(end, first + after + 1)
    if rule.chunk is not None:
        start = max(start, last // rule.chunk * rule.chunk)
        end = min(end, (first // rule.chunk + 1) * rule.chunk)
    return start, max(start, end)


class Reach:
    """Cuts of one head's keys, for any block of rows.

    Parameters
    ----------
    rule
        On the device, for one head.
    tile
        Keys per tile, a multiple of ``WINDOW``.
    """

    def __init__(self, rule: MaskRule, *, n_queries: int, n_keys: int, tile: int) -> None:
        self.rule, self.n_queries, self.n_keys, self.tile = rule, n_queries, n_keys, tile
        self.by_cell = rule.cells is not None or rule.where is not None
        self.padding = self._tiles_with_padding(rule.key_visible)

    def pieces(self, rows: Span) -> list[Piece]:
        """Return the pieces for a block of rows, in the order of keys, without a gap."""
        rule, sizes = self.rule, {"n_queries": self.n_queries, "n_keys": self.n_keys}
        first, end = reachable_keys(rule, rows=rows, **sizes)
        if first >= end:
            return []
        first, end = first // WINDOW * WINDOW, min(_up(end, WINDOW), self.n_keys)
        if self.by_cell:
            clear = (first, first)
        else:
            start, stop = seen_by_all(rule, rows=rows, **sizes)
            clear = (_up(start, WINDOW), stop if stop == self.n_keys else stop // WINDOW * WINDOW)
        cuts = {first, end, *range(_up(first + 1, self.tile), end, self.tile)}
        cuts |= {cut for cut in clear if first < cut < end}
        edges = sorted(cuts)
        return [
            Piece((a, b), masked=not (clear[0] <= a and b <= clear[1]) or self._is_padded(a, b))
            for a, b in pairwise(edges)
        ]

    def _is_padded(self, start: int, end: int) -> bool:
        tiles = range(start // self.tile, -(-end // self.tile))
        return any(number in self.padding for number in tiles)

    def _tiles_with_padding(self, key_visible: torch.Tensor | None) -> set[int]:
        if key_visible is None:
            return set()
        hidden: list[int] = (~key_visible).nonzero()[:, 0].tolist()
        return {key // self.tile for key in hidden}


def mean_reach(rule: MaskRule, *, n_queries: int, n_keys: int, samples: int = 64) -> float:
    """Estimate how many keys a row can reach on average, from evenly spread rows."""
    rows = [number * n_queries // samples for number in range(samples)]
    spans = (
        reachable_keys(rule, n_queries=n_queries, n_keys=n_keys, rows=(row, row + 1))
        for row in rows
    )
    return sum(max(0, end - start) for start, end in spans) / samples


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
