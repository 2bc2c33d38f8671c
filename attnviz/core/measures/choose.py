"""Which head tells most about a token: ranked by how far a link exceeds the head's habits.

What lives here: a pure function of weights. What does not: text, models, other questions about a
head (``patterns``).

A head that always looks at the previous token, at the first token or at [SEP] says nothing about
the token at hand, however large its weight. So a weight is compared with two habits of its head:

    habit  = max(mean weight other queries give at the same distance,
                 mean weight other queries give to the same key)
    telling = weight − habit

Delimiter heads and fixed-distance heads have habits as large as their weights. A key that takes
more than ``SINK_SHARE`` of all other tokens' attention, over all heads, is a sink: no candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import UsageError
from attnviz.records import HeadChoice
from attnviz.rounding import NEAR, by_size, largest

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SINK_SHARE = 0.3
"""A key with more than this share of what all heads give to other tokens is a sink."""
BLOCK_CELLS = 1 << 17
"""Cells looked at together: they stay in the cache of one core."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What is kept of one head: per key its most telling link."""

    layer: int
    head: int
    telling_S: Numbers
    query_S: Numbers
    weight_S: Numbers
    distance_S: Numbers
    key_S: Numbers


class Ranking:
    """Rank heads that come one layer at a time; O(L + S) is kept of each, whatever the length.

    Parameters
    ----------
    special : (S,)
        Keys that the tokenizer added: no candidates. As queries they are no evidence either.
    query
        Index of the token asked about; every token where None.
    n_queries
        L.
    special_queries : (L,)
        The same for queries, of cross attention; ``special`` where None and L = S.

    Raises
    ------
    UsageError
        A query that does not exist.

    Examples
    --------
    >>> habit = np.eye(5, k=-1); habit[0, 0] = 1.0
    >>> looker = np.full((5, 5), 0.2); looker[3] = [0.05, 0.05, 0.05, 0.05, 0.8]
    >>> ranking = Ranking([False] * 5, 3, n_queries=5)
    >>> ranking.add(0, range(2), [habit, looker])
    >>> best = ranking.ranked()[0]
    >>> best.head, best.key, round(best.weight, 2)
    (1, 4, 0.8)
    """

    def __init__(
        self,
        special: Sequence[bool],
        query: int | None = None,
        *,
        n_queries: int,
        special_queries: Sequence[bool] | None = None,
    ) -> None:
        self._shape = n_queries, len(special)
        if query is not None and not 0 <= query < n_queries:
            raise UsageError(f"token {query} does not exist: there are 0 to {n_queries - 1}")
        is_square = n_queries == len(special)
        self._is_self = is_square and special_queries is None
        marked = special_queries if special_queries is not None else special if is_square else None
        self._plain_L = np.ones(n_queries, bool) if marked is None else ~np.asarray(marked, bool)
        self._asked_L = self._plain_L.copy()
        if query is not None:
            self._asked_L = np.arange(n_queries) == query
        self._witness_L = self._plain_L & (np.arange(n_queries) != query)
        self._allowed_S = ~np.asarray(special, bool)
        if self._is_self and query is not None:
            self._allowed_S &= ~self._asked_L
        if not self._asked_L.any():
            self._asked_L[:], self._allowed_S[:] = True, False
        self._has_candidates = bool(self._allowed_S.any())
        if (
            not self._has_candidates
        ):  # of special tokens, or one token, any link is better than none
            self._allowed_S[:] = True
        self._received_S = np.zeros(len(special))
        self._found: list[_Found] = []

    def add(self, layer: int, heads: Sequence[int], weights_HLS: npt.ArrayLike) -> None:
        """Look at some heads of one layer: weights (heads, L, S)."""
        for head, weights_LS in zip(heads, np.asarray(weights_HLS, np.float64), strict=True):
            self.add_rows(layer, int(head), lambda first, end, w=weights_LS: w[first:end])  # type: ignore[misc]

    def add_rows(self, layer: int, head: int, rows: Callable[[int, int], Numbers]) -> None:
        """Look at one head whose weights are made when asked: ``rows(first, end)`` gives (rows, S).

        Every row is asked for at most twice: for the habits of the head, and, where the link may lie,
        for what exceeds them.
        """
        n_queries, n_keys = self._shape
        step = max(1, BLOCK_CELLS // n_keys)
        habits = _Habits(n_queries, n_keys)
        share_S = np.zeros(n_keys)
        for first in range(0, n_queries, step):
            weights_BS = rows(first, min(n_queries, first + step))
            block = slice(first, first + len(weights_BS))
            if self._is_self:
                habits.add_distances(first, weights_BS, self._plain_L[block])
                weights_BS = weights_BS.copy()  # a weight on oneself says nothing about a key
                weights_BS[np.arange(block.stop - first), np.arange(first, block.stop)] = 0
            habits.received_S += weights_BS[self._plain_L[block]].sum(axis=0)
            share_S += weights_BS[self._witness_L[block]].sum(axis=0)
        habits.count_distances(self._plain_L)
        habits.n_witnesses_S = self._others(self._plain_L)
        self._received_S += share_S / np.maximum(self._others(self._witness_L), 1)
        self._found.append(self._look(habits, rows, step, layer, head))

    def _others(self, counted_L: Flags) -> Numbers:
        """Return how many counted queries every key has, itself left out."""
        n = np.full(self._shape[1], int(counted_L.sum()))
        return n - counted_L if self._is_self else n

    def ranked(self) -> tuple[HeadChoice, ...]:
        """Return one choice per head that was added, the most telling first.

        Ties keep the order in which they were added.
        """
        allowed_S = self._allowed_S
        sinks_S = self._received_S / max(1, len(self._found)) > SINK_SHARE
        if self._has_candidates and (allowed_S & ~sinks_S).any():
            allowed_S = allowed_S & ~sinks_S
        choices = [_choice(found, allowed_S) for found in self._found]
        return tuple(choices[n] for n in by_size([choice.telling for choice in choices]))

    def _look(
        self,
        habits: _Habits,
        rows: Callable[[int, int], Numbers],
        step: int,
        layer: int,
        head: int,
    ) -> _Found:
        """Go through the rows that are asked about and keep every key's most telling link."""
        n_queries, n_keys = self._shape
        best = np.zeros((5, n_keys))  # telling, query, weight, and the two habits
        best[0] = -np.inf
        for first in range(0, n_queries, step):
            end = min(n_queries, first + step)
            asked_B = self._asked_L[first:end]
            if not asked_B.any():
                continue
            weights_BS = rows(first, end)
            plain_B1 = self._plain_L[first:end, None].astype(np.float64)
            by_key = _mean_of_others(habits.received_S, habits.n_witnesses_S, weights_BS, plain_B1)
            by_distance = np.zeros_like(weights_BS)
            diagonal = np.zeros(0, np.intp), np.zeros(0, np.intp)
            if self._is_self:
                total, count = habits.at_distance(first, end - first)
                by_distance = _mean_of_others(total, count, weights_BS, plain_B1)
                diagonal = np.arange(end - first), np.arange(first, end)
                by_key[diagonal] = (habits.received_S / np.maximum(habits.n_witnesses_S, 1))[
                    first:end
                ]
            telling = weights_BS - np.maximum(by_distance, by_key)
            telling[~asked_B] = -np.inf
            if self._has_candidates:
                telling[diagonal] = -np.inf
            place_S, keys = largest(telling, axis=0), np.arange(n_keys)
            parts = (telling, weights_BS, by_distance, by_key)
            found = np.stack([part[place_S, keys] for part in parts])
            better = _exceeds(found[0], best[0])
            best[1, better] = first + place_S[better]
            best[np.ix_((0, 2, 3, 4), better)] = found[:, better]
        telling_S, query_S, weight_S, distance_S, key_S = best
        return _Found(layer, head, telling_S, query_S, weight_S, distance_S, key_S)


class _Habits:
    """What one head's plain queries give on average: at a distance, and to a key."""

    def __init__(self, n_queries: int, n_keys: int) -> None:
        self.received_S = np.zeros(n_keys)
        self.n_witnesses_S = np.zeros(n_keys)
        self._shape = n_queries, n_keys
        self._total_D = np.zeros(n_queries + n_keys - 1)  # at key − query + L − 1
        self._count_D = np.zeros(n_queries + n_keys - 1)

    def add_distances(self, first: int, weights_BS: Numbers, plain_B: Flags) -> None:
        """Add some rows' weights at every distance."""
        n_rows, n_keys = weights_BS.shape
        # rows last to first, each a step further to the right: columns are distances then
        sheared = np.zeros((n_rows, n_keys + n_rows))
        sheared[:, :n_keys] = (weights_BS * plain_B[:, None])[::-1]
        sums = sheared.ravel()[: n_rows * (n_keys + n_rows - 1)].reshape(n_rows, -1).sum(axis=0)
        start = self._shape[0] - first - n_rows
        self._total_D[start : start + len(sums)] += sums

    def count_distances(self, plain_L: Flags) -> None:
        """Count the plain queries that have a key at every distance."""
        n_queries, n_keys = self._shape
        before = np.concatenate([[0], np.cumsum(plain_L)])
        distance = np.arange(1 - n_queries, n_keys)
        start, end = np.maximum(0, -distance), np.minimum(n_queries, n_keys - distance)
        self._count_D[:] = before[end] - before[start]

    def at_distance(self, first: int, n_rows: int) -> tuple[Numbers, Numbers]:
        """Return sums and counts for the cells of some rows: views of (rows, S)."""
        n_queries, n_keys = self._shape
        start = n_queries - first - n_rows
        part = slice(start, start + n_rows + n_keys - 1)
        total, count = (
            np.lib.stride_tricks.sliding_window_view(a[part], n_keys)[::-1]
            for a in (self._total_D, self._count_D)
        )
        return total, count


def _exceeds(ours: Any, theirs: Any) -> Any:
    """True where a number is above one of an earlier row by more than rounding."""
    size = np.where(np.isfinite(ours), np.abs(ours), 0.0)
    return ours > theirs + NEAR * size


def _choice(found: _Found, allowed_S: Flags) -> HeadChoice:
    key = int(largest(np.where(allowed_S, found.telling_S, -np.inf)))
    return HeadChoice(
        layer=found.layer,
        head=found.head,
        query=int(found.query_S[key]),
        key=key,
        weight=float(found.weight_S[key]),
        distance_habit=float(found.distance_S[key]),
        key_habit=float(found.key_S[key]),
        telling=float(found.telling_S[key]),
    )


def _mean_of_others(total: Numbers, count: Numbers, own: Numbers, counted_B1: Numbers) -> Numbers:
    """Return, for every cell, the mean of what the other queries give: 0 where there is none."""
    others = total - own * counted_B1  # exactly 0 where nobody else was counted
    others /= np.maximum(count - counted_B1, 1)
    return others
