"""How two attention rows, maps or outputs differ: divergence, cosine, alignment of tokens.

What lives here: the measures. What does not: what is compared (``runs.compare``).

Source: Lin, "Divergence Measures Based on the Shannon Entropy" (1991).
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from attnviz.records import Array


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
    """Pair the tokens of two texts that are the same word, in order; the others stand alone.

    Examples
    --------
    >>> align_words(["the", "bear"], ["a", "bear", "ate"])
    [(0, 0), (1, 1), (None, 2)]
    >>> align_words(["the", "bear"], ["bear"])
    [(0, None), (1, 0)]
    """
    left, right = ([word.casefold() for word in side] for side in (a, b))
    pairs: list[tuple[int | None, int | None]] = []
    for kind, i, i_end, j, j_end in SequenceMatcher(
        None, left, right, autojunk=False
    ).get_opcodes():
        if kind in ("equal", "replace"):
            n = min(i_end - i, j_end - j)
            pairs.extend((i + step, j + step) for step in range(n))
            i, j = i + n, j + n
        pairs.extend((place, None) for place in range(i, i_end))
        pairs.extend((None, place) for place in range(j, j_end))
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
