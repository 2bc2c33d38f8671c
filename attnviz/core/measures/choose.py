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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnviz.errors import UsageError
from attnviz.records import HeadChoice
from attnviz.rounding import by_size, largest

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SINK_SHARE = 0.3
"""A key with more than this share of what all heads give to other tokens is a sink."""


def choose_head(
    weights: npt.ArrayLike,
    special: Sequence[bool],
    query: int | None = None,
    *,
    special_queries: Sequence[bool] | None = None,
) -> tuple[HeadChoice, ...]:
    """Rank all heads by how much their strongest link tells about a query.

    Parameters
    ----------
    weights : (layers, heads, L, S)
        ``layer`` and ``head`` of the result are places along the first two axes.
    special : (S,)
        Keys that the tokenizer added: no candidates. As queries they are no evidence either.
    query
        Index of the token asked about; every token where None.
    special_queries : (L,)
        The same for queries, of cross attention; ``special`` where None and L = S.

    Returns
    -------
    tuple of HeadChoice
        The most telling head first, one entry per head. Ties keep the order of layers and heads.

    Raises
    ------
    UsageError
        A query that does not exist, or shapes that do not fit.

    Notes
    -----
    Time and memory grow with layers · heads · L · S; ``Ranking`` takes one layer at a time.

    Examples
    --------
    >>> habit = np.eye(5, k=-1); habit[0, 0] = 1.0
    >>> looker = np.full((5, 5), 0.2); looker[3] = [0.05, 0.05, 0.05, 0.05, 0.8]
    >>> best = choose_head(np.stack([habit, looker])[None], [False] * 5, 3)[0]
    >>> best.head, best.key, round(best.weight, 2)
    (1, 4, 0.8)
    """
    given = np.asarray(weights, np.float64)
    if given.ndim != 4 or given.shape[-1] != len(special):
        raise UsageError(f"weights {given.shape} and {len(special)} keys do not fit one another")
    ranking = Ranking(special, query, n_queries=given.shape[2], special_queries=special_queries)
    for layer, heads_HLS in enumerate(given):
        ranking.add(layer, range(len(heads_HLS)), heads_HLS)
    return ranking.ranked()


@dataclass(frozen=True, slots=True)
class _Found:
    """What is kept of one head: per key its most telling candidate link, and the best of all."""

    layer: int
    head: int
    telling_S: Numbers
    query_S: npt.NDArray[np.intp]
    weight_S: Numbers
    distance_S: Numbers
    key_S: Numbers
    fallback: HeadChoice


class Ranking:
    """Rank heads that come one layer at a time; O(S) is kept of each.

    Parameters
    ----------
    special, query, special_queries
        As of ``choose_head``.
    n_queries
        L.
    """

    def __init__(
        self,
        special: Sequence[bool],
        query: int | None = None,
        *,
        n_queries: int,
        special_queries: Sequence[bool] | None = None,
    ) -> None:
        n_keys = len(special)
        if query is not None and not 0 <= query < n_queries:
            raise UsageError(f"token {query} does not exist: there are 0 to {n_queries - 1}")
        is_square = n_queries == n_keys
        self._is_self = is_square and special_queries is None
        marked = special_queries if special_queries is not None else special if is_square else None
        self._plain = np.ones(n_queries, bool) if marked is None else ~np.asarray(marked, bool)
        asked = np.zeros(n_queries, bool)
        asked[query if query is not None else slice(None)] = True
        if query is None:
            asked &= self._plain
        self._asked_LS = np.broadcast_to(asked[:, None], (n_queries, n_keys))
        self._candidates_LS = self._asked_LS & ~np.asarray(special, bool)[None]
        witnesses = self._plain.copy()
        if query is not None:
            witnesses[query] = False
        self._counted_LS = np.broadcast_to(witnesses[:, None], (n_queries, n_keys)).copy()
        if self._is_self:
            np.fill_diagonal(self._candidates_LS, False)
            np.fill_diagonal(self._counted_LS, False)
        self._received_S = np.zeros(n_keys)
        self._found: list[_Found] = []

    def add(self, layer: int, heads: Sequence[int], weights_HLS: npt.ArrayLike) -> None:
        """Look at some heads of one layer: weights (heads, L, S)."""
        for head, weights in zip(heads, np.asarray(weights_HLS, np.float64), strict=True):
            share_S = (weights * self._counted_LS).sum(axis=0)
            self._received_S += share_S / np.maximum(self._counted_LS.sum(axis=0), 1)
            self._found.append(self._look(weights, layer, int(head)))

    def ranked(self) -> tuple[HeadChoice, ...]:
        """Return one choice per head that was added, the most telling first."""
        sinks_S = self._received_S / max(1, len(self._found)) > SINK_SHARE
        allowed_S = self._candidates_LS.any(axis=0)
        if (allowed_S & ~sinks_S).any():
            allowed_S = allowed_S & ~sinks_S
        choices = [
            _choice(found, allowed_S) if allowed_S.any() else found.fallback
            for found in self._found
        ]
        return tuple(choices[n] for n in by_size([choice.telling for choice in choices]))

    def _look(self, weights_LS: Numbers, layer: int, head: int) -> _Found:
        by_distance = (
            _distance_habit(weights_LS, self._plain) if self._is_self else np.zeros_like(weights_LS)
        )
        by_key = np.broadcast_to(
            _key_habit(weights_LS, self._plain, self._is_self), weights_LS.shape
        )
        telling = weights_LS - np.maximum(by_distance, by_key)
        open_LS = np.where(self._candidates_LS, telling, -np.inf)
        query_S = largest(open_LS, axis=0)
        at = (query_S, np.arange(len(query_S)))
        asked = np.where(self._asked_LS, telling, -np.inf)
        place = np.unravel_index(int(largest(asked)), asked.shape)
        query, key = int(place[0]), int(place[1])
        return _Found(
            layer, head, open_LS[at], query_S, weights_LS[at], by_distance[at], by_key[at],
            HeadChoice(
                layer, head, query, key, float(weights_LS[place]), float(by_distance[place]),
                float(by_key[place]), float(telling[place]),
            ),
        )  # fmt: skip


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


def _distance_habit(weights_LS: Numbers, plain_queries: Flags) -> Numbers:
    """For every cell: the mean of the other plain queries' weights at the same distance."""
    n_queries, n_keys = weights_LS.shape
    place = np.arange(n_keys)[None] - np.arange(n_queries)[:, None] + n_queries - 1
    counted = np.broadcast_to(plain_queries[:, None], weights_LS.shape)
    n_places = n_queries + n_keys - 1
    total = np.bincount(place.ravel(), (weights_LS * counted).ravel(), n_places)[place]
    count = np.bincount(place.ravel(), counted.ravel(), n_places)[place]
    return _mean_of_others(total, count, weights_LS, counted)


def _key_habit(weights_LS: Numbers, plain_queries: Flags, is_self: bool) -> Numbers:
    """For every cell: the mean of what the other plain queries give to the same key.

    A token's weight on itself is left out: it says nothing about how the key is sought.
    """
    counted = np.broadcast_to(plain_queries[:, None], weights_LS.shape).copy()
    if is_self:
        np.fill_diagonal(counted, False)
    total = (weights_LS * counted).sum(axis=0, keepdims=True)
    count = counted.sum(axis=0, keepdims=True)
    return _mean_of_others(total, count, weights_LS, counted)


def _mean_of_others(total: Numbers, count: Numbers, own: Numbers, counted: Flags) -> Numbers:
    others = count - counted
    return np.where(others > 0, (total - own * counted) / np.maximum(others, 1), 0.0)
