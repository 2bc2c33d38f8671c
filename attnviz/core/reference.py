"""Scaled dot-product attention in numpy, float64, dense: the textbook, and everyone's oracle.

What lives here: each formula as one small function, next to its name. What does not: speed,
devices, long texts (``attend`` and ``stream`` do that, and are held to this file by tests).

Notation: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation (1):
Attention(Q, K, V) = softmax(Q·Kᵀ / √d_k)·V. Axis letters as in ``attnviz.records``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from attnviz.masks import visible_block
from attnviz.records import LayerHeads

Numbers = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def project(
    x_LD: Numbers, w_DX: Numbers, b_X: Numbers | None = None, *, n_heads: int = 1
) -> Numbers:
    """Compute x·W (+ b) and cut the result into heads.

    Parameters
    ----------
    x_LD : (L, D)
    w_DX : (D, heads · width), head after head
    b_X : (heads · width,) or None

    Returns
    -------
    (heads, L, width) float64
    """
    y_LX = np.asarray(x_LD, np.float64) @ np.asarray(w_DX, np.float64)
    if b_X is not None:
        y_LX = y_LX + np.asarray(b_X, np.float64)
    return np.ascontiguousarray(y_LX.reshape(len(x_LD), n_heads, -1).transpose(1, 0, 2))


def repeat_kv(a_KSX: Numbers, n_heads: int) -> Numbers:
    """Give every query head its key/value head: query head h reads h // (n_heads // n_kv_heads).

    Grouped-query attention, Ainslie et al. 2023, section 2.2.
    """
    group = n_heads // a_KSX.shape[0]
    shared_HSX: Numbers = a_KSX[np.arange(n_heads) // group]
    return shared_HSX


def score(q_HLE: Numbers, k_HSE: Numbers) -> Numbers:
    """Compute the raw scores q·kᵀ, before any scaling: (H, L, S)."""
    return q_HLE @ k_HSE.transpose(0, 2, 1)


def cap(scores_HLS: Numbers, softcap: float | None) -> Numbers:
    """Bound scores softly: softcap · tanh(scores / softcap). Gemma 2, section 2."""
    if softcap is None:
        return scores_HLS
    return softcap * np.tanh(scores_HLS / softcap)


def hide(scores_HLS: Numbers, visible_HLS: Bools) -> Numbers:
    """Put −∞ where a query may not look; the masks were combined as booleans before."""
    return np.where(visible_HLS, scores_HLS, -np.inf)


def softmax(masked_HLS: Numbers, sinks_H: Numbers | None = None) -> tuple[Numbers, Numbers]:
    """Turn scores into weights along the keys, with the logsumexp of every row.

    weights = exp(masked − m) / Σ exp(masked − m), m the row's maximum. A learned sink takes part
    in the sum as one more column without a value. A row that sees no key has weights 0 and
    logsumexp −∞ (+ the sink, where there is one): decided by what it sees, never by repairing NaN.

    Parameters
    ----------
    masked_HLS : (H, L, S), −∞ where hidden
    sinks_H : (H,) or None

    Returns
    -------
    weights_HLS : (H, L, S); rows sum to 1, or to 1 − sink share, or to 0
    lse_HL : (H, L), natural logarithm
    """
    top_HL1: Numbers = masked_HLS.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks_H is not None:
        top_HL1 = np.maximum(top_HL1, sinks_H[:, None, None])
    sees_HL1: Bools = top_HL1 > -np.inf
    top_HL1 = np.where(sees_HL1, top_HL1, 0.0)
    grown_HLS = np.exp(masked_HLS - top_HL1)
    total_HL1 = grown_HLS.sum(axis=-1, keepdims=True)
    if sinks_H is not None:
        total_HL1 = total_HL1 + np.exp(sinks_H[:, None, None] - top_HL1)
    total_HL1 = np.where(sees_HL1, total_HL1, 1.0)
    lse_HL = np.where(sees_HL1, top_HL1 + np.log(total_HL1), -np.inf)[..., 0]
    return grown_HLS / total_HL1, lse_HL


def blend(weights_HLS: Numbers, v_HSF: Numbers, visible_HLS: Bools) -> Numbers:
    """Compute z = Σ_j weights_j · v_j: (H, L, F).

    A value that no query may see is left out before the product, so that 0 · NaN cannot leak.
    """
    unseen_HS: Bools = np.logical_not(visible_HLS.any(axis=1))
    return weights_HLS @ np.where(unseen_HS[..., None], 0.0, v_HSF)


def trace_heads(heads: LayerHeads) -> dict[str, Numbers]:
    """Compute every stage of every head of one layer, dense, in float64.

    Returns
    -------
    dict
        ``q`` ``k`` ``v`` (H, ·, ·), ``scores`` ``scaled`` [``bias``] [``capped``] ``masked``
        ``weights`` (H, L, S), ``output`` (H, L, F), ``visible`` (H, L, S) bool, ``lse`` (H, L).

    Notes
    -----
    Time and memory grow with H·L·S; meant for L ≤ 512.
    """
    n_heads = heads.n_heads
    q_HLE = np.asarray(heads.q, np.float64)
    k_HSE = repeat_kv(np.asarray(heads.k, np.float64), n_heads)
    v_HSF = repeat_kv(np.asarray(heads.v, np.float64), n_heads)
    visible = visible_block(
        heads.visible, n_queries=heads.n_queries, n_keys=heads.n_keys, n_heads=n_heads
    )
    visible_HLS = np.broadcast_to(visible, (n_heads, heads.n_queries, heads.n_keys))
    stages = {"q": q_HLE, "k": k_HSE, "v": v_HSF}
    stages["scores"] = score(q_HLE, k_HSE)
    entering = stages["scaled"] = stages["scores"] * heads.scale
    if heads.bias is not None:
        bias = heads.bias(0, heads.n_queries) if callable(heads.bias) else heads.bias
        stages["bias"] = np.broadcast_to(np.asarray(bias, np.float64), entering.shape)
        entering = entering + stages["bias"]
    if heads.softcap is not None:
        entering = stages["capped"] = cap(entering, heads.softcap)
    stages["masked"] = hide(entering, visible_HLS)
    sinks_H = None if heads.sinks is None else np.asarray(heads.sinks, np.float64)
    stages["weights"], stages["lse"] = softmax(stages["masked"], sinks_H)
    stages["output"] = blend(stages["weights"], v_HSF, visible_HLS)
    stages["visible"] = visible_HLS
    return stages


def attend_by_token(heads: LayerHeads, head: int) -> tuple[Numbers, Numbers]:
    """Walk one head the blog's way, query by query and key by key, without a single matrix.

    For each query i: for each key j it may see, the dot product q_i·k_j, scaled; then the
    softmax of that short list; then z_i = Σ_j weight_j · v_j. Shares no code with
    ``trace_heads``: their difference is printed as a check.

    Returns
    -------
    weights_LS : (L, S)
    output_LF : (L, F)
    """
    kv_head = head // (heads.n_heads // heads.n_kv_heads)
    q_LE = np.asarray(heads.q[head], np.float64)
    k_SE = np.asarray(heads.k[kv_head], np.float64)
    v_SF = np.asarray(heads.v[kv_head], np.float64)
    sink = None if heads.sinks is None else float(heads.sinks[head])
    bias_LS = None
    if heads.bias is not None:
        bias = heads.bias(0, heads.n_queries) if callable(heads.bias) else heads.bias
        bias_LS = np.asarray(bias[min(head, len(bias) - 1)], np.float64)
    weights_LS = np.zeros((len(q_LE), len(k_SE)))
    output_LF = np.zeros((len(q_LE), v_SF.shape[1]))
    for i, q_E in enumerate(q_LE):
        seen = visible_block(
            heads.visible,
            n_queries=heads.n_queries,
            n_keys=heads.n_keys,
            rows=(i, i + 1),
            n_heads=heads.n_heads,
        )
        keys = [j for j in range(len(k_SE)) if seen[min(head, len(seen) - 1), 0, j]]
        entering = []
        for j in keys:
            number = math.fsum(q_E * k_SE[j]) * heads.scale
            if bias_LS is not None:
                number += bias_LS[i, j]
            if heads.softcap is not None:
                number = heads.softcap * math.tanh(number / heads.softcap)
            entering.append(number)
        logits = entering + ([sink] if sink is not None else [])
        top = max(logits, default=0.0)
        total = math.fsum(math.exp(number - top) for number in logits)
        for j, number in zip(keys, entering, strict=True):
            weights_LS[i, j] = math.exp(number - top) / total
            output_LF[i] += weights_LS[i, j] * v_SF[j]
    return weights_LS, output_LF


def entropy_bits(weights: Numbers) -> Numbers:
    """Compute the Shannon entropy of every row in bits: −Σ w·log₂ w (0·log 0 = 0)."""
    safe = np.where(weights > 0, weights, 1.0)
    bits: Numbers = -(weights * np.log2(safe)).sum(axis=-1) + 0.0
    return bits


def softmax_gradient_norm(weights: Numbers) -> Numbers:
    """Compute the size of the softmax's gradient for every row: ‖diag(w) − w·wᵀ‖ (Frobenius).

    ‖J‖² = Σ w² − 2·Σ w³ + (Σ w²)². It is near 0 where one weight is near 1: there learning
    stops, which is what the division by √d_k is for (Vaswani et al. 2017, section 3.2.1).
    """
    square = (weights**2).sum(axis=-1)
    cube = (weights**3).sum(axis=-1)
    norm: Numbers = np.sqrt(np.maximum(square - 2 * cube + square**2, 0.0))
    return norm
