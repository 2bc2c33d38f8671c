"""What one head did with one text, in a row of figures: entropy, distance, shares, strongest links.

What lives here: the figures' formulas, for numpy arrays and torch tensors alike, in blocks of query
rows. What does not: the weights' own formula (``reference``, ``attend``), tables (``runs``).

Texts of equal length may be joined along the head axis: N texts of H heads are N·H heads whose
key/value heads follow the same rule, and every figure comes out per text and head. Names agree with
``summary``: the same figure has the same definition there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.core import reference
from attnviz.masks import visible_block
from attnviz.records import Array, LayerHeads
from attnviz.rounding import worse

Numbers = npt.NDArray[np.float64]
BLOCK_CELLS = 1 << 22
"""At most about this many weights are held at once."""

_MANY_HEADS, _SHORT_ROW = 32, 64
_TINY = 1e-37


@dataclass(frozen=True, slots=True)
class Figures:
    """One number per head, numpy float64 unless said; H is texts · heads where texts are joined.

    Parameters
    ----------
    entropy_H
        Mean Shannon entropy of the rows that see a key, in bits.
    distance_H
        Σ w·|key − query| / Σ w, in tokens.
    first_H, self_H, special_H
        Mean weight of a row on the first key, on its own position, on all special tokens.
    previous_H, next_H
        Mean weight on the position before or after, over rows that have one; NaN where none has.
    sink_H
        Mean share of learned sinks; 0 where there are none.
    received_key_H, received_H
        The key that received most attention, and its share of all attention; int64 and float64.
    link_queries_HN, link_keys_HN, link_weights_HN
        The N strongest links by falling weight, among equals the earlier query, then the earlier
        key; −1 and weight 0 where there are fewer. The first is the strongest pair.
    parity
        Largest difference between Σ w·v and what the source itself computed; None if not asked.
    """

    entropy_H: Numbers
    distance_H: Numbers
    first_H: Numbers
    self_H: Numbers
    previous_H: Numbers
    next_H: Numbers
    special_H: Numbers
    sink_H: Numbers
    received_key_H: npt.NDArray[np.int64]
    received_H: Numbers
    link_queries_HN: npt.NDArray[np.int64]
    link_keys_HN: npt.NDArray[np.int64]
    link_weights_HN: Numbers
    parity: float | None = None


def measure(
    heads: LayerHeads,
    *,
    special_HS: Array | None = None,
    n_links: int = 3,
    with_parity: bool = False,
    block_cells: int = BLOCK_CELLS,
) -> Figures:
    """Compute the figures of every head of one layer.

    Parameters
    ----------
    heads
        One layer of one text, or of joined texts of equal length; numpy arrays or torch tensors.
    special_HS
        (H, S) bool, True where a key is a special token; none is where None.
    n_links
        N, how many of the strongest links are kept, at least 1.
    with_parity
        Compare Σ w·v with ``heads.own_output``, where the source has it.
    block_cells
        Weights held at once; rows are taken in blocks of this size.

    Returns
    -------
    Figures

    Notes
    -----
    Time grows with H·L·S, memory with ``block_cells`` and H·S.

    Examples
    --------
    >>> one = np.zeros((1, 2, 1))
    >>> found = measure(LayerHeads(q=one, k=one, v=one, scale=1.0))
    >>> float(found.entropy_H[0]), float(found.distance_H[0]), float(found.self_H[0])
    (1.0, 0.5, 0.5)
    """
    n_heads, n_queries, n_keys = heads.n_heads, heads.n_queries, heads.n_keys
    xp = _namespace(heads.q)
    step = max(1, min(n_queries, block_cells // max(1, n_heads * n_keys)))
    sums = _Sums(n_heads, n_keys, n_links, has_sinks=heads.sinks is not None)
    special_HS1 = None if special_HS is None else _like(special_HS, heads.q, xp)[..., None]
    for start in range(0, n_queries, step):
        rows = (start, min(start + step, n_queries))
        weights_HLS, visible_HLS = weigh(heads, rows)
        _add_block(sums, weights_HLS, visible_HLS, rows, n_keys - n_queries, special_HS1, xp)
        if with_parity and heads.own_output is not None:
            z_HLF = weights_HLS @ _shared(heads.v, heads, xp)
            apart = abs(z_HLF - heads.own_output[:, rows[0] : rows[1]]).max()
            sums.parity = worse(sums.parity or 0.0, float(apart))
    return sums.finish()


def weigh(heads: LayerHeads, rows: tuple[int, int]) -> tuple[Array, Array | None]:
    """Compute the weights of some query rows of every head.

    Returns
    -------
    weights_HLS : (H, rows, S)
    visible_HLS : (1 or H, rows, S) bool; None where every query sees every key
    """
    xp = _namespace(heads.q)
    is_numpy = xp is np
    row0, row1 = rows
    scores_HLS = heads.q[:, row0:row1] @ xp.swapaxes(_shared(heads.k, heads, xp), 1, 2)
    entering = scores_HLS * heads.scale
    if heads.bias is not None:
        bias = heads.bias(row0, row1) if callable(heads.bias) else heads.bias[:, row0:row1]
        entering = entering + _like(bias, heads.q, xp)
    if heads.softcap is not None:
        entering = heads.softcap * xp.tanh(entering / heads.softcap)
    visible_HLS = None
    if not heads.visible.hides_nothing:
        place: dict[str, Any] = {} if is_numpy else {"device": heads.q.device}
        visible_HLS = visible_block(
            heads.visible,
            n_queries=heads.n_queries,
            n_keys=heads.n_keys,
            rows=rows,
            n_heads=heads.n_heads,
            xp=xp,
            **place,
        )
        entering = xp.where(visible_HLS, entering, -xp.inf)
    if is_numpy:
        sinks = None if heads.sinks is None else np.asarray(heads.sinks, np.float64)
        return reference.softmax(entering, sinks)[0], visible_HLS
    if visible_HLS is None and heads.sinks is None:
        return _softmax(entering, xp), None
    from attnviz.core import attend

    return attend.softmax(entering, heads.sinks)[0], visible_HLS


def _add_block(
    sums: _Sums,
    weights_HLS: Array,
    visible_HLS: Array | None,
    rows: tuple[int, int],
    offset: int,
    special_HS1: Array | None,
    xp: Any,
) -> None:
    """Add one block of query rows; query i stands at position i + offset."""
    n_rows, n_keys = weights_HLS.shape[1:]
    where = {} if xp is np else {"device": weights_HLS.device}
    mass_HL = weights_HLS.sum(-1)
    if visible_HLS is None:
        seen_HL = xp.ones((1, n_rows), dtype=bool if xp is np else xp.bool, **where)
    else:
        seen_HL = visible_HLS.any(-1)
    position_L = xp.arange(rows[0], rows[1], **where) + offset
    key_S = xp.arange(n_keys, **where)
    reach_LS = _like(abs(key_S[None, :] - position_L[:, None]), weights_HLS, xp)
    received_HS = weights_HLS.sum(-2)
    found = {
        "seen": seen_HL.sum(-1),
        "mass": mass_HL.sum(-1),
        "unspent": xp.where(seen_HL, 1 - mass_HL, 0 * mass_HL).sum(-1),
        "entropy": _entropy(weights_HLS, xp),
        "distance": (weights_HLS * reach_LS).sum((-2, -1)),
        "first": received_HS[:, 0],
    }
    line_L = xp.arange(n_rows, **where)
    for name, shift in (("self", 0), ("previous", -1), ("next", 1)):
        inside_L = (position_L + shift >= 0) & (position_L + shift < n_keys)
        taken_HL = weights_HLS[:, line_L[inside_L], position_L[inside_L] + shift]
        found[name] = taken_HL.sum(-1)
        found[f"n_{name}"] = (seen_HL & inside_L).sum(-1)
    if special_HS1 is not None:
        found["special"] = (received_HS[:, None, :] @ special_HS1)[:, 0, 0]
    sums.add(found, xp)
    sums.received_HS += _numpy(received_HS)
    _add_links(sums, weights_HLS, rows[0], xp)


def _add_links(sums: _Sums, weights_HLS: Array, row0: int, xp: Any) -> None:
    """Keep the block's strongest links: repeatedly the first of the largest."""
    n_heads, n_rows, n_keys = weights_HLS.shape
    flat = weights_HLS.reshape(n_heads, n_rows * n_keys)
    flat = flat.copy() if xp is np else flat.clone()
    where = {} if xp is np else {"device": weights_HLS.device}
    head_H = xp.arange(n_heads, **where)
    for _ in range(min(sums.n_links, n_rows * n_keys)):
        best_H = flat.argmax(-1)
        sums.links.append(
            (
                _numpy(best_H // n_keys).astype(np.int64) + row0,
                _numpy(best_H % n_keys).astype(np.int64),
                _numpy(flat[head_H, best_H]),
            )
        )
        flat[head_H, best_H] = -1.0


def _softmax(scores_HLS: Array, xp: Any) -> Array:
    """Softmax along the keys; for many short rows with the heads innermost, 5 to 10 × as fast."""
    n_heads, _, n_keys = scores_HLS.shape
    if n_heads < _MANY_HEADS or n_keys > _SHORT_ROW:
        return xp.softmax(scores_HLS, -1)
    return xp.softmax(scores_HLS.permute(1, 2, 0).contiguous(), 1).permute(2, 0, 1)


def _entropy(weights_HLS: Array, xp: Any) -> Array:
    if xp is np:
        return reference.entropy_bits(weights_HLS).sum(-1)
    return -(weights_HLS * weights_HLS.clamp_min(_TINY).log2()).sum((-2, -1))


class _Sums:
    """Sums over blocks of query rows, in float64."""

    def __init__(self, n_heads: int, n_keys: int, n_links: int, *, has_sinks: bool) -> None:
        self.n_links, self.has_sinks = n_links, has_sinks
        self.parity: float | None = None
        self.received_HS = np.zeros((n_heads, n_keys))
        self.links: list[tuple[Array, Array, Array]] = []
        self._sums: dict[str, Any] = {}
        self._n_heads = n_heads

    def add(self, found: dict[str, Array], xp: Any) -> None:
        """Add (H,) or (1,) numbers by name; they leave the device together."""
        full = (self._n_heads,)
        if xp is np:
            values = np.stack([np.broadcast_to(a, full).astype(np.float64) for a in found.values()])
        else:
            values = _numpy(xp.stack([a.to(xp.float32).expand(full) for a in found.values()]))
        for name, value in zip(found, values, strict=True):
            self._sums[name] = self._sums.get(name, 0.0) + value

    def finish(self) -> Figures:
        sums, seen = self._sums, self._sums["seen"]
        received_key_H = self.received_HS.argmax(-1)
        received_H = np.take_along_axis(self.received_HS, received_key_H[:, None], -1)[:, 0]
        queries, keys, weights = (np.stack(part, -1) for part in zip(*self.links, strict=True))
        # a stable sort by falling weight: blocks, and links in them, came by query, then by key
        place = np.lexsort((keys, queries, -weights), axis=-1)[:, : self.n_links]
        queries, keys, weights = (
            np.take_along_axis(part, place, -1) for part in (queries, keys, weights)
        )
        lacking = self.n_links - weights.shape[-1]
        if lacking > 0:
            queries, keys = (
                np.pad(p, ((0, 0), (0, lacking)), constant_values=-1) for p in (queries, keys)
            )
            weights = np.pad(weights, ((0, 0), (0, lacking)))
        is_none = weights <= 0
        zero = np.zeros(self._n_heads)
        return Figures(
            entropy_H=_ratio(sums["entropy"], seen, 0.0),
            distance_H=_ratio(sums["distance"], sums["mass"], 0.0),
            first_H=_ratio(sums["first"], seen, 0.0),
            self_H=_ratio(sums["self"], sums["n_self"], 0.0),
            previous_H=_ratio(sums["previous"], sums["n_previous"], np.nan),
            next_H=_ratio(sums["next"], sums["n_next"], np.nan),
            special_H=_ratio(sums.get("special", zero), seen, 0.0),
            sink_H=_ratio(np.maximum(sums["unspent"], 0.0), seen, 0.0) if self.has_sinks else zero,
            received_key_H=received_key_H.astype(np.int64),
            received_H=_ratio(received_H, seen, 0.0),
            link_queries_HN=np.where(is_none, -1, queries),
            link_keys_HN=np.where(is_none, -1, keys),
            link_weights_HN=np.where(is_none, 0.0, weights),
            parity=self.parity,
        )


def _ratio(part: Numbers, whole: Numbers, otherwise: float) -> Numbers:
    safe = np.where(whole > 0, whole, 1.0)
    return np.asarray(np.where(whole > 0, part / safe, otherwise))


def _shared(values_KSX: Array, heads: LayerHeads, xp: Any) -> Array:
    """Give every query head its key/value head."""
    group = heads.n_heads // heads.n_kv_heads
    if group == 1:
        return values_KSX
    return reference.repeat_kv(values_KSX, heads.n_heads) if xp is np else (
        values_KSX.repeat_interleave(group, 0)
    )  # fmt: skip


def _namespace(a: Array) -> Any:
    """Return numpy, or torch where the array is one of its tensors (it is loaded already)."""
    return np if isinstance(a, np.ndarray) else sys.modules["torch"]


def _like(a: Array, other: Array, xp: Any) -> Array:
    """Return an array in the kind, type and place of another."""
    if xp is np:
        return np.asarray(a, other.dtype)
    return xp.as_tensor(a).to(dtype=other.dtype, device=other.device)


def _numpy(a: Array) -> Numbers:
    return np.asarray(a if isinstance(a, np.ndarray) else a.detach().cpu().numpy(), np.float64)
