"""Bring a layer's heads to a device: pick heads, pick a precision, turn arrays into tensors.

What lives here: ``LayerHeads`` of numpy arrays or tensors → ``LayerHeads`` of tensors in one
place. What does not: attention itself (``attend``, ``stream``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from attnviz.core.device import dtype_name, sum_dtype
from attnviz.errors import InputError, UsageError
from attnviz.records import Array, LayerHeads, MaskRule


def to_tensor(a: Array, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Turn an array or a tensor into a tensor; any byte order, stride, or read-only memory."""
    if isinstance(a, torch.Tensor):
        held = a.detach()
    else:
        array = np.asarray(a)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        clean = np.ascontiguousarray(native).reshape(array.shape)
        held = torch.from_numpy(clean if clean.flags.writeable else clean.copy())
    return held.to(dtype=dtype).to(device=device)


def round_to(a: Array, *, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Round to the storage type, then widen to the type sums are made in.

    Raises
    ------
    UsageError
        A finite number became infinite: it is beyond what the storage type can hold.
    """
    full = to_tensor(a, device=device, dtype=sum_dtype(dtype))
    if dtype == full.dtype:
        return full
    rounded = full.to(dtype).to(full.dtype)
    lost = rounded.isinf() & full.isfinite()
    if bool(lost.any()):
        raise UsageError(
            f"{name} holds {float(full[lost][0]):.6g}, which {dtype_name(dtype)} cannot: its "
            f"largest number is {torch.finfo(dtype).max:.6g}; use --dtype bfloat16 or float32"
        )
    return rounded


def check_shapes(heads: LayerHeads) -> None:
    """Refuse heads whose shapes do not fit one another.

    Raises
    ------
    InputError
        Naming the two shapes that disagree.
    """
    q, k, v = (tuple(a.shape) for a in (heads.q, heads.k, heads.v))
    if not len(q) == len(k) == len(v) == 3:
        raise InputError(f"q {q}, k {k}, v {v}: three axes expected (heads, positions, width)")
    if q[2] != k[2]:
        raise InputError(f"q {q} and k {k} differ in width: q·k needs the same d_k")
    if k[:2] != v[:2]:
        raise InputError(f"k {k} and v {v} differ: one value for every key expected")
    if k[0] == 0 or q[0] % k[0]:
        raise InputError(
            f"{q[0]} query heads cannot share {k[0]} key/value heads: a multiple expected"
        )
    if 0 in (q[0], q[1], k[1]):
        raise InputError(f"q {q}, k {k}: at least one head, one query and one key expected")


def select_heads(heads: LayerHeads, subset: Sequence[int] | None) -> LayerHeads:
    """Return the asked-for query heads, each with a key/value head of its own.

    Query head h reads key/value head h // (H // K), as before; masks and biases that differ by
    head keep their head.

    Raises
    ------
    UsageError
        A head that does not exist.
    """
    n_heads, group = heads.n_heads, heads.n_heads // heads.n_kv_heads
    wanted = list(range(n_heads)) if subset is None else list(subset)
    for head in wanted:
        if not 0 <= head < n_heads:
            raise UsageError(
                f"head {head} does not exist: the layer has {n_heads} heads, 0 to {n_heads - 1}"
            )
    shared = [head // group for head in wanted]
    bias = heads.bias
    if callable(bias):
        bias = _select_rows(bias, wanted)
    elif bias is not None:
        bias = _select(bias, wanted)
    return dataclasses.replace(
        heads,
        q=_take(heads.q, wanted),
        k=_take(heads.k, shared),
        v=_take(heads.v, shared),
        visible=_select_rule(heads.visible, wanted),
        bias=bias,
        sinks=None if heads.sinks is None else heads.sinks[wanted],
        own_output=None if heads.own_output is None else heads.own_output[wanted],
    )


def place_heads(heads: LayerHeads, *, device: torch.device, dtype: torch.dtype) -> LayerHeads:
    """Bring q, k, v, bias, sinks and the mask's arrays to a device.

    q, k and v are rounded to ``dtype`` and widened to the type sums are made in; the rest comes
    in that wider type.
    """
    wide = sum_dtype(dtype)
    bias = heads.bias
    if callable(bias):
        bias = _place_rows(bias, device, wide)
    elif bias is not None:
        bias = to_tensor(bias, device=device, dtype=wide)
    return dataclasses.replace(
        heads,
        q=round_to(heads.q, name="q", device=device, dtype=dtype),
        k=round_to(heads.k, name="k", device=device, dtype=dtype),
        v=round_to(heads.v, name="v", device=device, dtype=dtype),
        visible=place_rule(heads.visible, device=device),
        bias=bias,
        sinks=None if heads.sinks is None else to_tensor(heads.sinks, device=device, dtype=wide),
    )


def place_rule(rule: MaskRule, *, device: torch.device) -> MaskRule:
    """Bring a mask rule's arrays to a device; what ``where`` answers follows when it is asked."""

    def placed(a: Array | None) -> Array | None:
        return None if a is None else to_tensor(a, device=device, dtype=torch.bool)

    where = rule.where
    if where is not None:
        where = _place_where(where, device)
    return dataclasses.replace(
        rule, key_visible=placed(rule.key_visible), cells=placed(rule.cells), where=where
    )


def _take(a: Array, wanted: list[int]) -> Array:
    """Return some heads; one alone is a view, so that a long text is not copied."""
    return a[wanted[0] : wanted[0] + 1] if len(wanted) == 1 else a[wanted]


def _select(a: Array, wanted: list[int]) -> Array:
    return a if a.shape[0] == 1 else a[wanted]


def _select_rows(
    bias: Callable[[int, int], Array], wanted: list[int]
) -> Callable[[int, int], Array]:
    return lambda row0, row1: _select(bias(row0, row1), wanted)


def _place_rows(
    bias: Callable[[int, int], Array], device: torch.device, dtype: torch.dtype
) -> Callable[[int, int], Array]:
    return lambda row0, row1: to_tensor(bias(row0, row1), device=device, dtype=dtype)


def _select_rule(rule: MaskRule, wanted: list[int]) -> MaskRule:
    cells, where = rule.cells, rule.where
    if cells is not None and cells.ndim == 3:
        cells = _select(cells, wanted)
    if where is not None:
        where = _select_where(where, wanted)
    return dataclasses.replace(rule, cells=cells, where=where)


def _select_where(where: Callable[..., Array], wanted: list[int]) -> Callable[..., Array]:
    def chosen(head: Any, query: Any, key: Any) -> Array:
        if isinstance(head, torch.Tensor):
            return where(torch.tensor(wanted, device=head.device)[head], query, key)
        return where(np.array(wanted)[head], query, key)

    return chosen


def _place_where(where: Callable[..., Array], device: torch.device) -> Callable[..., Array]:
    def placed(head: Any, query: Any, key: Any) -> torch.Tensor:
        return to_tensor(where(head, query, key), device=device, dtype=torch.bool)

    return placed
