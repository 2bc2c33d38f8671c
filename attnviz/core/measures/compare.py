"""How two attention rows, maps or outputs differ: divergence, cosine, alignment of tokens.

What lives here: the measures. What does not: what is compared (``runs.compare``).

Source: Lin, "Divergence Measures Based on the Shannon Entropy" (1991).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from attnviz.records import About, Array, HasAbout, Trace


def jensen_shannon_bits(p: Array, q: Array) -> Array:
    """Return the Jensen-Shannon divergence of distributions along the last axis, in bits.

    0 for equal rows, exactly; 1 for rows without a common key; symmetric.

    Parameters
    ----------
    p, q : (…, S) float, at least 0; rows that do not sum to 1 (a learned sink takes a share) are
        given one more cell for the rest

    Examples
    --------
    >>> jensen_shannon_bits(np.array([1.0, 0.0]), np.array([0.0, 1.0])).item()
    1.0
    """
    p, q = (_whole(np.asarray(side, np.float64)) for side in (p, q))
    middle = (p + q) / 2
    bits: Array = np.maximum((_divergence(p, middle) + _divergence(q, middle)) / 2, 0.0)
    return np.where((p == q).all(axis=-1), 0.0, bits)


def _whole(rows: Array) -> Array:
    rest = np.clip(1.0 - rows.sum(axis=-1, keepdims=True), 0.0, 1.0)
    return np.concatenate([rows, np.where(rest < 1e-9, 0.0, rest)], axis=-1)


def _divergence(p: Array, m: Array) -> Array:
    ratio = np.divide(p, m, out=np.ones_like(p), where=p > 0)
    found: Array = (p * np.log2(ratio)).sum(axis=-1)
    return found


def cosine(a: Array, b: Array) -> Array:
    """Return the cosine of vectors along the last axis; 1 exactly for equal ones, NaN for zeros.

    Examples
    --------
    >>> cosine(np.array([1.0, 1.0]), np.array([1.0, 0.0])).item()
    0.7071067811865475
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.sqrt((a * a).sum(axis=-1)) * np.sqrt((b * b).sum(axis=-1))
    product = (a * b).sum(axis=-1)
    found = np.divide(product, size, out=np.full_like(product, np.nan), where=size > 0)
    return np.where((a == b).all(axis=-1) & (size > 0), 1.0, np.clip(found, -1.0, 1.0))


def align_words(a: Sequence[str], b: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Pair the same words of two texts, the n-th of one with the n-th of the other.

    Words that only one text has stand alone; upper and lower case are the same word.

    Examples
    --------
    >>> align_words(["the", "bear"], ["a", "bear", "ate"])
    [(0, None), (1, 1), (None, 0), (None, 2)]
    >>> align_words(["to", "be", "to"], ["To", "to"])
    [(0, 0), (1, None), (2, 1)]
    """
    places: dict[str, deque[int]] = {}
    for place, word in enumerate(b):
        places.setdefault(word.casefold(), deque()).append(place)
    pairs: list[tuple[int | None, int | None]] = []
    for place, word in enumerate(a):
        waiting = places.get(word.casefold())
        pairs.append((place, waiting.popleft() if waiting else None))
    pairs.extend((None, place) for place in sorted(p for rest in places.values() for p in rest))
    return pairs


def align_positions(n_a: int, n_b: int) -> list[tuple[int | None, int | None]]:
    """Pair tokens by their place.

    Examples
    --------
    >>> align_positions(2, 3)
    [(0, 0), (1, 1), (None, 2)]
    """
    return [(i if i < n_a else None, i if i < n_b else None) for i in range(max(n_a, n_b))]


def spread(rows: Array, pairs: Sequence[tuple[int | None, int | None]], side: int) -> Array:
    """Return a side's cells in the order of the pairs, 0 where it has no such token.

    Parameters
    ----------
    rows : (…, S) float
    pairs
        From ``align_words`` or ``align_positions``.
    side
        0 or 1: which of a pair.
    """
    values = np.asarray(rows, np.float64)
    found = np.zeros((*values.shape[:-1], len(pairs)))
    for place, pair in enumerate(pairs):
        index = pair[side]
        if index is not None:
            found[..., place] = values[..., index]
    return found


def blame(parts_a: Array, parts_b: Array) -> Array:
    """Say which keys made two outputs differ: each key's share of z_b − z_a.

    With d = z_b − z_a = Σ_j (part_b[j] − part_a[j]), the share of key j is its difference along d,
    over ‖d‖². Shares sum to 1; a negative one pulled the outputs together. All 0 where d is 0.

    Parameters
    ----------
    parts_a, parts_b : (S, F) weight times value of each aligned key

    Returns
    -------
    (S,) float64
    """
    change_SF = np.asarray(parts_b, np.float64) - np.asarray(parts_a, np.float64)
    d_F = change_SF.sum(axis=0)
    size = float(d_F @ d_F)
    if size == 0:
        return np.zeros(len(change_SF))
    shares: Array = change_SF @ d_F / size
    return shares


Pairs: TypeAlias = tuple[tuple[int | None, int | None], ...]


@dataclass(frozen=True, slots=True)
class Comparison(HasAbout):
    """Two runs side by side, row by row: the same word in two texts, two heads, two models.

    Parameters
    ----------
    about
        Of the first side, with the notices of both.
    a, b
        The two traces; layer i and head j of one stand against layer i and head j of the other.
    names
        What the sides are called.
    rows
        Pairs of query positions that are compared, R of them.
    key_pairs
        Pairs of key positions, C of them; None where a side has no such token.
    weights_a, weights_b : (layers, heads, R, C) float64
        Aligned rows; 0 where a side has no such key.
    bits : (layers, heads, R)
        Jensen-Shannon divergence of the two rows.
    z_cosine : (layers, heads, R) or None
        Of the two outputs z, where both sides are as wide.
    x_cosine : (layers, R) or None
        Of what goes into the two projections, where both sources know it.
    blame : (layers, heads, R, C) or None
        Each key's share of the difference of z.
    """

    about: About
    a: Trace
    b: Trace
    names: tuple[str, str]
    rows: tuple[tuple[int, int], ...]
    key_pairs: Pairs
    weights_a: Array
    weights_b: Array
    bits: Array
    z_cosine: Array | None = None
    x_cosine: Array | None = None
    blame: Array | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """Of the first side."""
        return self.a.layers

    @property
    def heads(self) -> tuple[int | str, ...]:
        """Of the first side."""
        return self.a.heads

    @property
    def largest_bits(self) -> float:
        """The largest mean divergence of any head shown, in bits."""
        return float(np.asarray(self.bits).mean(axis=-1).max())


def compare_traces(
    a: Trace,
    b: Trace,
    rows: Sequence[tuple[int, int]],
    keys: Sequence[tuple[int | None, int | None]],
    *,
    names: tuple[str, str],
) -> Comparison:
    """Compare the asked-for rows of two traces with as many layers and heads each.

    Parameters
    ----------
    rows
        Pairs of queries, at least one.
    keys
        An alignment of the keys that names every key of both sides.
    """  # fmt: skip
    left, right = [i for i, _ in rows], [j for _, j in rows]
    own = [
        np.asarray(t.stages["weights"], np.float64)[:, :, part]
        for t, part in ((a, left), (b, right))
    ]
    aligned = [spread(weights, keys, side) for side, weights in enumerate(own)]
    z_cosine = x_cosine = shares = None
    z = [t.stages.get("output") for t in (a, b)]
    v = [t.stages.get("v") for t in (a, b)]
    if all(part is not None for part in (*z, *v)) and z[0].shape[-1] == z[1].shape[-1]:  # type: ignore[union-attr]
        z_cosine = cosine(np.asarray(z[0])[:, :, left], np.asarray(z[1])[:, :, right])
        shares = _blames(own, v, keys)
    if a.x is not None and b.x is not None and a.x.shape[-1] == b.x.shape[-1]:
        x_cosine = cosine(np.asarray(a.x)[:, left], np.asarray(b.x)[:, right])
    notices = tuple(dict.fromkeys((*a.notices, *b.notices)))
    return Comparison(
        replace(a.about, notices=notices), a, b, names, tuple(rows), tuple(keys), aligned[0], aligned[1],
        jensen_shannon_bits(aligned[0], aligned[1]), z_cosine, x_cosine, shares,
    )  # fmt: skip


def _blames(
    own: Sequence[Array], v: Sequence[Any], keys: Sequence[tuple[int | None, int | None]]
) -> Array:
    n_layers, n_heads, n_rows, _ = own[0].shape
    found = np.zeros((n_layers, n_heads, n_rows, len(keys)))
    for i, j in np.ndindex(n_layers, n_heads):
        values = [spread(np.asarray(side[i, j]).T, keys, n).T for n, side in enumerate(v)]
        for row in range(n_rows):
            parts = [spread(own[n][i, j, row], keys, n)[:, None] * values[n] for n in range(2)]
            found[i, j, row] = blame(parts[0], parts[1])
    return found
