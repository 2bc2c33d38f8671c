"""From one record of a batch to one sentence's ``LayerHeads``: real tokens only, nothing changed.

What lives here: cutting padding away, the mask as a rule, everything detached. What does not: how
records are made (``capture``, ``tap``) and numbers above q, k, v (``core``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnviz.errors import InputError
from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.models.capture.interface import Record
from attnviz.sources.models.capture.lazy_bias import LazyBias
from attnviz.sources.models.capture.lazy_mask import Cut, LazyMask, read_rule
from attnviz.sources.models.capture.steps import find_inputs


def to_layer_heads(
    record: Record,
    cut: Cut,
    *,
    layer: int,
    name: str,
    dtype: torch.dtype | None = None,
    w_o: torch.Tensor | None = None,
) -> LayerHeads:
    """Hand one sentence of a record on.

    Parameters
    ----------
    record
        One attention call of a whole batch.
    cut
        Which sentence, and where its real tokens are.
    layer, name
        The layer's number and the module's name in the model.
    dtype
        In which q, k, v are handed on; float32 where the model works in less, else its own.

    Returns
    -------
    LayerHeads
        Of detached tensors on the model's device; ``own_output`` is what the model went on with.

    Raises
    ------
    InputError
        A mask that is neither a rule nor shows plainly what it hides.
    """
    kept = dtype or torch.promote_types(record.q.dtype, torch.float32)
    rows, keys = slice(*cut.queries), slice(*cut.keys)

    def take(values: torch.Tensor, place: slice) -> torch.Tensor:
        part: torch.Tensor = values.detach()[cut.batch, :, place]
        return part.to(kept)

    visible, bias = _read_mask(record, cut)
    extra = _read_bias(record.bias, cut, kept)
    if bias is not None:
        if record.softcap is not None or callable(extra):
            raise InputError(f"{name} adds numbers by its mask: in which order is not known here")
        bias = bias.to(kept)
        bias = bias if extra is None else bias + extra
    found = find_inputs(record.steps, record.q, record.k, record.v)
    x = found.pop("x", None)
    sinks = record.sinks
    if sinks is not None and sinks.dim() == 3:
        raise InputError(f"{name} has sinks that differ by query: only one per head can be shown")
    return LayerHeads(
        q=take(record.q, rows),
        k=take(record.k, keys),
        v=take(record.v, keys),
        scale=record.scale,
        visible=visible,
        softcap=record.softcap,
        bias=bias if bias is not None else extra,
        sinks=None if sinks is None else sinks.detach().to(kept),
        x=None if x is None else x[cut.batch, rows].to(kept),
        w_o=None if w_o is None else w_o.to(kept),
        own_output=None if record.output is None else take(record.output, rows),
        inputs={
            step: take(values, rows if step.startswith("q") else keys)
            for step, values in found.items()
        },
        layer=layer,
        name=name,
    )


def common_keys(counts: Sequence[int], n_heads: int) -> int:
    """Return one number of key/value heads for all layers of a model, whose layers may differ.

    Examples
    --------
    >>> common_keys([4, 4], 8), common_keys([2, 1], 8), common_keys([2, 3], 6)
    (4, 2, 6)
    """
    most = max(counts)
    return most if all(most % n == 0 for n in counts) else n_heads


def share_keys(heads: LayerHeads, n_kv_heads: int) -> LayerHeads:
    """Repeat k and v so that a layer has as many key/value heads as its model's others.

    Query head h reads h // (H // K) of K either way, so every number stays what it is.
    """
    if heads.n_kv_heads == n_kv_heads:
        return heads
    times = n_kv_heads // heads.n_kv_heads
    k, v = (a.repeat_interleave(times, 0) for a in (heads.k, heads.v))
    inputs = {
        step: a if step.startswith("q") else a.repeat_interleave(times, 0)
        for step, a in heads.inputs.items()
    }
    return replace(heads, k=k, v=v, inputs=inputs)


def _read_mask(record: Record, cut: Cut) -> tuple[MaskRule, torch.Tensor | None]:
    """Return the rule, and what a dense additive mask adds beyond hiding (None where nothing)."""
    mask = record.mask
    if mask is None:
        return MaskRule(), None
    if isinstance(mask, LazyMask):
        return read_rule(mask, cut), None
    batch = cut.batch if mask.shape[0] > 1 else 0
    rows = slice(*cut.queries) if mask.shape[2] > 1 else slice(0, 1)
    cells = mask.detach()[batch, :, rows, slice(*cut.keys)]
    shape = (cells.shape[0], cut.queries[1] - cut.queries[0], cells.shape[-1])
    seen = cells if cells.dtype == torch.bool else cells > torch.finfo(cells.dtype).min / 2
    added = None
    if cells.dtype != torch.bool:
        numbers = torch.where(seen, cells, 0)
        added = numbers.expand(shape) if bool(numbers.any()) else None
    return simplest_rule(seen.expand(shape)), added


def simplest_rule(cells: torch.Tensor) -> MaskRule:
    """Name a dense mask by its rule where it is all, or causal; else keep its cells.

    Parameters
    ----------
    cells : (1 or H, L, S) bool
    """
    if bool(cells.all()):
        return MaskRule()
    n_queries, n_keys = cells.shape[-2:]
    causal = torch.ones((n_queries, n_keys), dtype=torch.bool, device=cells.device)
    if bool((cells == causal.tril(n_keys - n_queries)).all()):
        return MaskRule(causal=True)
    held = cells.cpu().numpy()
    return MaskRule(cells=held if len(held) > 1 else held[0])


def _read_bias(
    bias: torch.Tensor | None, cut: Cut, dtype: torch.dtype
) -> torch.Tensor | Callable[[int, int], Any] | None:
    if bias is None:
        return None
    keys = slice(*cut.keys)
    if isinstance(bias, LazyBias):
        lazy, first = bias, cut.queries[0]

        def rows(start: int, end: int) -> torch.Tensor:
            return lazy.rows(first + start, first + end).detach()[0, :, :, keys].to(dtype)

        return rows
    batch = cut.batch if bias.shape[0] > 1 else 0
    place = slice(*cut.queries) if bias.shape[2] > 1 else slice(0, 1)
    part = bias.detach()[batch, :, place, keys].to(dtype)
    return part.expand(len(part), cut.queries[1] - cut.queries[0], part.shape[-1])
