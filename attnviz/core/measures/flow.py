"""What weights alone do not say: how much value a link carries, and what flows over many layers.

What lives here: value-aware norms, attention rollout, maps without sinks, dense and for a row at
any length. What does not: weights themselves (``core.reference``, ``core.stream``).

Attention shows where information was read, not why the model answered.

Sources: Kobayashi, Kuribayashi, Yokoi, Inui, "Attention is Not Only a Weight" (2020): ‖α·v·W_O‖.
Abnar, Zuidema, "Quantifying Attention Flow in Transformers" (2020): rollout, with the residual
path as half of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from attnviz.records import About, Array, HasAbout, Tokens

Block: TypeAlias = tuple[tuple[int, int], Array]
"""Some queries, half-open, and the mean of the heads' weights for them."""

HONEST = "Attention shows where information was read, not why the model answered."


def value_norms(v: Array, w_o: Array | None = None, *, n_heads: int | None = None) -> Array:
    """Return how long each key's value is as it reaches the output: ‖v_j·W_O‖ per query head.

    Parameters
    ----------
    v : (K, S, F)
    w_o : (H·F, D) output projection; without it ‖v_j‖
    n_heads
        H; K where it is not given. Query head h reads value head h // (H // K).

    Returns
    -------
    (H, S) float64
    """
    values = np.asarray(v, np.float64)
    n_kv, _, width = values.shape
    n_heads = n_heads or n_kv
    owner = np.arange(n_heads) // (n_heads // n_kv)
    if w_o is None:
        norms: Array = np.linalg.norm(values, axis=-1)[owner]
        return norms
    blocks = np.asarray(w_o, np.float64).reshape(n_heads, width, -1)
    return np.stack([
        _norms_through(values[owner[h]], blocks[h] @ blocks[h].T) for h in range(n_heads)
    ])  # fmt: skip


def _norms_through(v_SF: Array, gram_FF: Array) -> Array:
    """‖v·W‖ by the small matrix W·Wᵀ: (S, F)·(F, F), never (S, D)."""
    squares: Array = np.einsum("sf,sf->s", v_SF @ gram_FF, v_SF)
    return np.sqrt(np.maximum(squares, 0.0))


def rollout(layers: Sequence[Array], *, residual: float = 0.5) -> Array:
    """Multiply the layers' maps: how much of each first-layer token is in each last-layer one.

    Each layer is the mean of its heads' weights, mixed with the residual path:
    A = (1 − residual)·W̄ + residual·I, rows rescaled to sum to 1; rollout = A_n · … · A_1.

    Parameters
    ----------
    layers
        First layer first; each (H, L, L) softmax rows.

    Returns
    -------
    (L, L) float64; rows sum to 1
    """
    n = np.shape(layers[0])[-1]
    flow = np.eye(n)
    for weights in layers:
        flow = _step(np.asarray(weights, np.float64).mean(axis=0), residual) @ flow
    return flow


def rollout_rows(
    rows: Array, layers: Sequence[Callable[[], Iterable[Block]]], *, residual: float = 0.5
) -> Array:
    """Return some rows of ``rollout`` at any length: nothing L × L is held.

    Parameters
    ----------
    rows : (R, L) float; ``np.eye(L)[queries]`` for some queries
    layers
        First layer first; each a function that gives, block by block, ``(first, end)`` and the
        mean of the layer's heads for those queries, (end − first, L).

    Returns
    -------
    (R, L) float64
    """
    found = np.asarray(rows, np.float64)
    for blocks in reversed(layers):
        passed = np.zeros_like(found)
        for (first, end), mean in blocks():
            total = (1 - residual) * mean.sum(axis=-1) + residual
            part = found[:, first:end] / total
            passed += (1 - residual) * (part @ mean)
            passed[:, first:end] += residual * part
        found = passed
    return found


def _step(mean_LL: Array, residual: float) -> Array:
    mixed = (1 - residual) * mean_LL + residual * np.eye(len(mean_LL))
    found: Array = mixed / mixed.sum(axis=-1, keepdims=True)
    return found


def without_sinks(weights: Array, is_sink: Array) -> Array:
    """Return weights renormalised without some keys; 0 everywhere in a row that looks at no other.

    Parameters
    ----------
    weights : (…, L, S)
    is_sink : (S,) bool, the first token and special ones

    Examples
    --------
    >>> without_sinks(np.array([[0.5, 0.375, 0.125]]), np.array([True, False, False])).tolist()
    [[0.0, 0.75, 0.25]]
    """
    kept = np.where(np.asarray(is_sink, bool), 0.0, np.asarray(weights, np.float64))
    total = kept.sum(axis=-1, keepdims=True)
    return np.divide(kept, total, out=np.zeros_like(kept), where=total > 0)


def kept_share(weights: Array, is_sink: Array) -> Array:
    """Return what share of each row's weight goes to other keys than the sinks; 1 in a row of zeros.

    Parameters
    ----------
    weights : (…, L, S)
    is_sink : (S,) bool

    Returns
    -------
    (…, L) float64

    Examples
    --------
    >>> kept_share(np.array([[0.5, 0.25, 0.25]]), np.array([True, False, False])).tolist()
    [0.5]
    """
    numbers = np.asarray(weights, np.float64)
    total = numbers.sum(axis=-1)
    kept = np.where(is_sink, 0.0, numbers).sum(axis=-1)
    return np.divide(kept, total, out=np.ones_like(kept), where=total > 0)


def sinks_of(keys: Tokens) -> Array:
    """Return which keys take weight that belongs nowhere: the first token, and special ones."""
    found = np.array(keys.special, bool)
    found[:1] = True
    return found


@dataclass(frozen=True, slots=True)
class RolloutRows(HasAbout):
    """Rows of the rollout.

    Parameters
    ----------
    queries
        Positions of the last layer's tokens, R of them.
    flow : (R, L) float64
        Share of every first-layer token; rows sum to 1.
    """

    about: About
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    flow: Array
