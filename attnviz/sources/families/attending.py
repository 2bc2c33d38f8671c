"""Attention between the steps of a family: one text, texts packed into one row, or word by word.

What lives here: masks applied, z computed in blocks of query rows, layers handed on. What does not:
stages for people (``core``), which are computed anew from the same q, k, v and compared with this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnviz.errors import InputError
from attnviz.masks import reachable_keys, visible_block
from attnviz.records import LayerHeads
from attnviz.sources.families.distances import DistanceBias
from attnviz.sources.families.parts import Floats, softmax

_BLOCK_CELLS = 1 << 20
"""About how many weights are held at once."""


class Done(Exception):
    """The last layer that was asked for has been handed on."""


@dataclass
class Attend:
    """What a family calls with each layer's heads.

    Parameters
    ----------
    wanted
        Layers to hand on.
    consume
        ``consume(places, heads)``: one text, or n texts of equal length joined along the heads.
    groups
        (start, length, how many, places) of texts of equal length in the row.
    goes_on
        Run the layers behind the last wanted one too.
    past
        Layer → k and v of the tokens before, extended here; None where nothing is kept.
    """

    wanted: frozenset[int]
    consume: Callable[[Sequence[int], LayerHeads], None]
    groups: Sequence[tuple[int, int, int, tuple[int, ...]]]
    goes_on: bool = False
    past: dict[int, tuple[Floats, Floats]] | None = None
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.last = max(self.wanted, default=-1)

    def __call__(self, heads: LayerHeads) -> Floats:
        """Return what attention gives: (L, H · F)."""
        is_last = heads.layer >= self.last and not self.goes_on
        if self.past is not None:
            heads = self._with_past(heads)
        n_rows = heads.n_queries
        mixed_LX = np.empty((n_rows, heads.n_heads * heads.d_v), np.float32)
        for start, length, count, places in self.groups:
            part = (
                heads if len(self.groups) == 1 and count == 1 else _cut(heads, start, length, count)
            )
            z = outputs(part)
            if heads.layer in self.wanted:
                _check_finite(part, z)
                self.consume(places, replace(part, own_output=z))
            if not is_last:
                rows = slice(start, start + length * count)
                by_text = z.reshape(count, heads.n_heads, length, heads.d_v)
                mixed_LX[rows] = by_text.transpose(0, 2, 1, 3).reshape(length * count, -1)
        if is_last:
            raise Done
        return mixed_LX

    def _with_past(self, heads: LayerHeads) -> LayerHeads:
        assert self.past is not None
        k, v = heads.k, heads.v
        if heads.layer in self.past:
            before = self.past[heads.layer]
            k, v = np.concatenate([before[0], k], 1), np.concatenate([before[1], v], 1)
        self.past[heads.layer] = (k, v)
        return replace(heads, k=k, v=v)


def _check_finite(heads: LayerHeads, z: Floats) -> None:
    """Refuse NaN and infinity before anything is computed from them: the gate for every command."""
    for name, values in (("q", heads.q), ("k", heads.k), ("v", heads.v), ("its output", z)):
        with np.errstate(all="ignore"):
            is_fine = np.isfinite(values.sum(dtype=np.float64))
        if not is_fine and not np.isfinite(values).all():
            raise InputError(
                f"layer {heads.layer} gives NaN or Inf in {name} for this text: a weight is none, or "
                "float32 does not hold its numbers; --engine library says which weight"
            )


def _cut(heads: LayerHeads, start: int, length: int, count: int) -> LayerHeads:
    """Join n texts of one length along the heads: query head t · H + h reads head t · K + h // (H // K)."""

    def cut(a: Floats) -> Floats:
        part = a[:, start : start + length * count]
        by_text = part.reshape(len(a), count, length, a.shape[-1]).transpose(1, 0, 2, 3)
        return by_text.reshape(count * len(a), length, a.shape[-1])

    bias = heads.bias
    if isinstance(bias, DistanceBias):
        table = np.tile(bias.table_BH, (1, count))
        bias = replace(bias, n_keys=length, table_BH=table)
    alone = count == 1
    return replace(
        heads,
        q=cut(heads.q),
        k=cut(heads.k),
        v=cut(heads.v),
        bias=bias,
        x=heads.x[start : start + length] if alone and heads.x is not None else None,
        inputs={n: cut(a) for n, a in heads.inputs.items()} if alone else {},
    )


def scores_of(heads: LayerHeads, rows: tuple[int, int], keys: tuple[int, int]) -> Floats:
    """Return what enters the softmax, for a rectangle of a layer: (H, rows, keys) float32."""
    n_heads, n_kv = heads.n_heads, heads.n_kv_heads
    (row0, row1), (key0, key1) = rows, keys
    q = heads.q[:, row0:row1].reshape(n_kv, -1, heads.d_k)
    flat: Floats = q @ heads.k[:, key0:key1].swapaxes(1, 2)
    scores = flat.reshape(n_heads, row1 - row0, key1 - key0)
    scores *= np.float32(heads.scale)
    if heads.bias is not None:
        bias: Any = heads.bias(row0, row1) if callable(heads.bias) else heads.bias[:, row0:row1]
        scores += bias[..., key0:key1]
    if heads.softcap is not None:
        cap = np.float32(heads.softcap)
        scores = np.tanh(scores / cap) * cap
    if not heads.visible.hides_nothing:
        seen = visible_block(
            heads.visible, n_queries=heads.n_queries, n_keys=heads.n_keys, rows=rows, keys=keys
        )
        if not seen.all():
            np.copyto(scores, -np.inf, where=~seen)
    return scores


def outputs(heads: LayerHeads) -> Floats:
    """Compute z = Σ weights · v of every head, in blocks of rows: (H, L, F) float32."""
    n_heads, n_kv = heads.n_heads, heads.n_kv_heads
    made = np.empty((n_heads, heads.n_queries, heads.d_v), np.float32)
    step = max(1, _BLOCK_CELLS // max(1, n_heads * heads.n_keys))
    for row0 in range(0, heads.n_queries, step):
        rows = (row0, min(row0 + step, heads.n_queries))
        keys = reachable_keys(
            heads.visible, n_queries=heads.n_queries, n_keys=heads.n_keys, rows=rows
        )
        weights = softmax(scores_of(heads, rows, keys))
        grouped = weights.reshape(n_kv, -1, keys[1] - keys[0])
        z = grouped @ heads.v[:, keys[0] : keys[1]]
        made[:, rows[0] : rows[1]] = z.reshape(n_heads, rows[1] - rows[0], heads.d_v)
    return made


def weights_of(heads: LayerHeads) -> Floats:
    """Compute all weights of a layer, dense: (H, L, S) float32."""
    return softmax(scores_of(heads, (0, heads.n_queries), (0, heads.n_keys)))


def split_texts(heads: LayerHeads, n_texts: int) -> list[LayerHeads]:
    """Cut texts joined along the heads apart again."""
    if n_texts == 1:
        return [heads]
    n, m = heads.n_heads // n_texts, heads.n_kv_heads // n_texts
    bias = heads.bias
    if isinstance(bias, DistanceBias):
        bias = replace(bias, table_BH=bias.table_BH[:, :n])
    found = []
    for t in range(n_texts):
        own, shared = slice(t * n, (t + 1) * n), slice(t * m, (t + 1) * m)
        z = None if heads.own_output is None else heads.own_output[own]
        found.append(
            replace(
                heads,
                q=heads.q[own],
                k=heads.k[shared],
                v=heads.v[shared],
                bias=bias,
                own_output=z,
            )
        )
    return found
