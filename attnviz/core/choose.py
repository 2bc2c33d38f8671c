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

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SINK_SHARE = 0.3
"""A key with more than this share of what all heads give to other tokens is a sink."""


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """One head's most telling link.

    Parameters
    ----------
    layer, head
        Places along the first two axes of the weights.
    query, key
        The link.
    weight
        Of the link, 0 to 1.
    distance_habit
        What the head's other queries give at the same distance, on average.
    key_habit
        What they give to the same key, on average.
    telling
        weight − max(distance_habit, key_habit).
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    distance_habit: float
    key_habit: float
    telling: float

    def reason(self, labels: Sequence[str] | None = None) -> str:
        """Say in one line why this head was ranked where it is.

        Examples
        --------
        >>> HeadChoice(0, 4, 3, 4, 0.928, 0.114, 0.05, 0.814).reason()
        '3 → 4 has .93; this head gives .11 at that distance and .05 to that key elsewhere'
        """
        link = [
            f"{i}:{labels[i]}" if labels is not None else str(i) for i in (self.query, self.key)
        ]
        numbers = [
            f"{n:.2f}".removeprefix("0") for n in (self.weight, self.distance_habit, self.key_habit)
        ]
        return (
            f"{link[0]} → {link[1]} has {numbers[0]}; this head gives {numbers[1]} at that distance "
            f"and {numbers[2]} to that key elsewhere"
        )


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
    Time and memory grow with layers · heads · L · S.

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
    n_layers, n_heads, n_queries, n_keys = given.shape
    is_square = n_queries == n_keys
    plain_keys = ~np.asarray(special, bool)
    marked = special_queries if special_queries is not None else special if is_square else None
    plain_queries = np.ones(n_queries, bool) if marked is None else ~np.asarray(marked, bool)
    if query is not None and not 0 <= query < n_queries:
        raise UsageError(f"token {query} does not exist: there are 0 to {n_queries - 1}")
    asked = np.zeros(n_queries, bool)
    asked[query if query is not None else slice(None)] = True
    if query is None:
        asked &= plain_queries
    candidates = asked[:, None] & plain_keys[None]
    is_self = is_square and special_queries is None
    if is_self:
        np.fill_diagonal(candidates, False)
    witnesses = plain_queries.copy()
    if query is not None:
        witnesses[query] = False
    without_sinks = candidates & ~_find_sinks(given, witnesses, is_self)[None]
    candidates = without_sinks if without_sinks.any() else candidates
    if not candidates.any():
        candidates = np.broadcast_to(asked[:, None], (n_queries, n_keys)).copy()
    ranked = [
        _best_link(given[layer, head], layer, head, candidates, plain_queries, is_self)
        for layer in range(n_layers)
        for head in range(n_heads)
    ]
    return tuple(sorted(ranked, key=lambda choice: -choice.telling))


def _find_sinks(weights: Numbers, plain_queries: Flags, is_self: bool) -> Flags:
    """Return which keys are sinks: (S,) bool."""
    mean_LS = weights.mean(axis=(0, 1))
    counted = np.broadcast_to(plain_queries[:, None], mean_LS.shape).copy()
    if is_self:
        np.fill_diagonal(counted, False)
    share_S = (mean_LS * counted).sum(axis=0) / np.maximum(counted.sum(axis=0), 1)
    found: Flags = share_S > SINK_SHARE
    return found


def _best_link(
    weights_LS: Numbers,
    layer: int,
    head: int,
    candidates_LS: Flags,
    plain_queries: Flags,
    is_self: bool,
) -> HeadChoice:
    by_distance = (
        _distance_habit(weights_LS, plain_queries) if is_self else np.zeros_like(weights_LS)
    )
    by_key = _key_habit(weights_LS, plain_queries, is_self)
    telling = weights_LS - np.maximum(by_distance, by_key)
    telling = np.where(candidates_LS, telling, -np.inf)
    query, key = (int(n) for n in np.unravel_index(int(telling.argmax()), telling.shape))
    return HeadChoice(
        layer=layer,
        head=head,
        query=query,
        key=key,
        weight=float(weights_LS[query, key]),
        distance_habit=float(by_distance[query, key]),
        key_habit=float(by_key[query, key]),
        telling=float(telling[query, key]),
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
