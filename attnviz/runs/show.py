"""Attention that a user holds: weights, or q and k, as arrays of any library; gathered into a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from attnviz import __version__
from attnviz.errors import UsageError
from attnviz.records import (
    About,
    Array,
    LayerHeads,
    MaskRule,
    RunInfo,
    SourceInfo,
    Tokens,
    Trace,
)  # fmt: skip
from attnviz.rounding import worse

SUM_TOLERANCE = 0.02
"""How far a row may be from 1 by the rounding of bfloat16 alone."""


def show(
    weights: Any = None,
    tokens: Any = None,
    *,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    key_tokens: Any = None,
    tokenizer: Any = None,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    index: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    name: str = "arrays",
) -> Trace:
    """Take attention that you already have, from a hook, another framework or ``output_attentions``.

    Parameters
    ----------
    weights
        (L, S), (H, L, S) or (layers, H, L, S), or a list or tuple of layers, each (H, L, S) or
        (B, H, L, S) as ``transformers`` returns them. Arrays of numpy, torch or JAX, on any device,
        and whatever has ``__array__`` or ``__dlpack__``; bfloat16 and float16 too. They are shown as
        they are: rows are never rescaled.
    tokens
        Strings, or ids with ``tokenizer``; the places 0, 1, 2, … where None.
    q, k, v
        Instead of weights: (H, L, E), (K, S, E), (K, S, F), with a layer or batch axis before as
        for weights. K divides H. Without v, z is not shown.
    key_tokens
        The tokens along the keys, where they differ (cross attention).
    scale, causal, mask
        With q and k: scores times ``scale`` (1/√E), no key after the query, and (L, S) or (H, L, S)
        bool, True where a query may look.
    index
        Which text of a batch.
    layers, heads
        Their numbers, where they are not 0, 1, 2, …
    name
        What the result calls its source.

    Returns
    -------
    Trace
        With every view, page and format that weights alone (or q and k) allow.

    Raises
    ------
    UsageError
        Arrays, tokens or numbers that do not fit one another.

    Notes
    -----
    Rows that do not sum to 1, NaN and negative weights are said in ``notices``.

    Examples
    --------
    >>> trace = show([[0.25, 0.75], [1.0, 0.0]], ["teddy", "bear"])
    >>> trace.stages["weights"][0, 0, 0].tolist()
    [0.25, 0.75]
    """
    if (weights is None) == (q is None or k is None):
        raise UsageError("give the weights, or q and k: one of the two")
    if weights is None:
        return _from_vectors(
            q, k, v, tokens, key_tokens, tokenizer, scale=scale, causal=causal, mask=mask,
            index=index, layers=layers, heads=heads, name=name,
        )  # fmt: skip
    if any(given is not None for given in (k, v, scale, mask)) or q is not None or causal:
        raise UsageError(
            "q, k, v, scale, causal and mask make weights: leave them out where weights are given"
        )
    maps_NHLS = _stacked(weights, "weights", index)
    n_layers, n_heads, n_queries, n_keys = maps_NHLS.shape
    row_tokens, column_tokens = _both(tokens, key_tokens, tokenizer, n_queries, n_keys, index=index)
    visible = np.ones(maps_NHLS.shape, bool)
    notices = list(_oddities(maps_NHLS))
    if n_queries == n_keys > 1 and not np.triu(maps_NHLS, 1).any():
        visible &= np.tri(n_keys, dtype=bool)
        notices.append("no query looks at a later key: shown as a causal mask")
    return Trace(
        about=About(
            row_tokens,
            _source(name, (maps_NHLS,), n_layers, n_heads, n_heads, 0, 0),
            _run(maps_NHLS),
            key_tokens=column_tokens,
            notices=tuple(notices),
        ),
        layers=_numbers(layers, n_layers, "layers"),
        heads=_numbers(heads, n_heads, "heads"),
        scale=(1.0,) * n_layers,
        softcap=(None,) * n_layers,
        stages={"weights": maps_NHLS},
        visible=visible,
    )


def show_file(
    path: str,
    *,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    layer: str | None = None,
    head: str | None = None,
    scale: float | None = None,
    causal: bool = False,
    index: int | None = None,
) -> Trace:
    """Show attention out of a file: .npy, .npz, .safetensors, .pt or a folder of .npy.

    Parameters
    ----------
    path
        Maps, or q, k (and v), by the names that ``sources.held`` knows.
    tokens, key_tokens
        In place of those in the file or beside it.
    layer, head
        Numbers or ranges of those in the file; all where None.

    The other parameters are those of ``show``.

    Raises
    ------
    InputError, WeightsError, UsageError
        A file that cannot be read, or numbers that do not fit.
    """
    from attnviz.runs.request import choose_heads, choose_layers
    from attnviz.sources.held import open_held

    held = open_held(path)
    by_layer = held.arrays if held.is_numbered else _apart(held.arrays)
    numbers = tuple(sorted(next(iter(by_layer.values()))))
    if layer is not None:
        numbers = choose_layers(layer, numbers, numbers[-1] + 1)
    arrays: dict[str, Any] = {
        kind: [values[number] for number in numbers] for kind, values in by_layer.items()
    }
    if "weights" not in arrays:
        arrays |= {"scale": scale, "causal": causal}
    elif scale is not None or causal:
        raise UsageError(f"{held.name} holds weights: --scale and --causal are for q and k")
    trace = show(
        tokens=held.tokens if tokens is None else list(tokens),
        key_tokens=held.key_tokens if key_tokens is None else list(key_tokens),
        index=index,
        layers=numbers,
        name=held.name,
        **arrays,
    )
    if head is None:
        return trace
    chosen = list(choose_heads(head, len(trace.heads)))
    kept = {name: values[:, chosen] for name, values in trace.stages.items()}
    return replace(trace, heads=tuple(chosen), stages=kept, visible=trace.visible[:, chosen])


def _apart(arrays: Mapping[str, Mapping[int, Array]]) -> dict[str, Mapping[int, Array]]:
    """Return layers by number, where one array may hold all of them."""
    return {
        kind: dict(enumerate(values[0])) if values[0].ndim >= 4 else values
        for kind, values in arrays.items()
    }


def _from_vectors(
    q: Any, k: Any, v: Any, tokens: Any, key_tokens: Any, tokenizer: Any, *, scale: float | None,
    causal: bool, mask: Any, index: int | None, layers: Sequence[int] | None,
    heads: Sequence[int] | None, name: str,
) -> Trace:  # fmt: skip
    q_NHLE, k_NKSE = _stacked(q, "q", index), _stacked(k, "k", index)
    v_NKSF = _stacked(v, "v", index) if v is not None else np.zeros((*k_NKSE.shape[:3], 1))
    n_layers, n_heads, n_queries, width = q_NHLE.shape
    n_kv, n_keys = k_NKSE.shape[1:3]
    wanted = (n_layers, n_kv, n_keys)
    if k_NKSE.shape[0] != n_layers or k_NKSE.shape[3] != width or v_NKSF.shape[:3] != wanted:
        raise UsageError(
            f"q {q_NHLE.shape}, k {k_NKSE.shape} and v {v_NKSF.shape} do not fit one another: "
            "(layers, H, L, E), (layers, K, S, E), (layers, K, S, F)"
        )
    if n_heads % n_kv:
        raise UsageError(f"{n_heads} heads of q cannot share {n_kv} of k: K must divide H")
    if scale is not None and not scale > 0:
        raise UsageError(f"scale {scale} is not above 0")
    rule = MaskRule(causal=causal, cells=_mask(mask, n_heads, n_queries, n_keys))
    numbers = _numbers(layers, n_layers, "layers")
    found = [
        LayerHeads(
            q=q_HLE, k=k_KSE, v=v_KSF, scale=width**-0.5 if scale is None else float(scale),
            visible=rule, layer=number,
        )
        for q_HLE, k_KSE, v_KSF, number in zip(q_NHLE, k_NKSE, v_NKSF, numbers, strict=True)
    ]  # fmt: skip
    return trace_of_layers(
        found, tokens, key_tokens=key_tokens, tokenizer=tokenizer, index=index, name=name,
        heads=heads, has_values=v is not None,
    )  # fmt: skip


def trace_of_layers(
    found: Sequence[LayerHeads],
    tokens: Any = None,
    *,
    key_tokens: Any = None,
    tokenizer: Any = None,
    index: int | None = None,
    name: str,
    heads: Sequence[int] | None = None,
    has_values: bool = True,
) -> Trace:
    """Compute layers that somebody holds, whatever they came from.

    Raises
    ------
    UsageError
        Layers of different shapes, or tokens that do not fit.
    """
    from attnviz.core import reference

    first = found[0]
    shapes = {(layer.q.shape, layer.k.shape, layer.v.shape) for layer in found}
    if len(shapes) > 1:
        raise UsageError("layers of different shapes: show them one by one, layers=[0]")
    row_tokens, column_tokens = _both(
        tokens, key_tokens, tokenizer, first.n_queries, first.n_keys, index=index
    )
    computed = [reference.trace_heads(layer) for layer in found]
    left_out = {"visible", "lse"} | (set() if has_values else {"v", "output"})
    names = [n for n in computed[0] if n not in left_out and all(n in c for c in computed)]
    stages = {n: np.stack([c[n] for c in computed]) for n in names}
    visible = np.stack([np.asarray(c["visible"], bool) for c in computed])
    blind = int((~visible.any(axis=-1)).sum())
    notices = [f"{blind} rows can see no key; their weights are 0"] if blind else []
    arrays = [np.asarray(part) for layer in found for part in (layer.q, layer.k, layer.v)]
    if any(np.isnan(part).any() for part in arrays):
        notices.append("q, k or v holds NaN: what follows from them is NaN")
    checks = {}
    if all(layer.own_output is not None for layer in found):
        checks["parity"] = worse(*(
            float(np.abs(np.asarray(layer.own_output) - c["output"]).max())
            / max(1.0, float(np.abs(c["output"]).max()))
            for layer, c in zip(found, computed, strict=True)
        ))  # fmt: skip
    d_v = first.d_v if has_values else 0
    sizes = len(found), first.n_heads, first.n_kv_heads, first.d_k, d_v
    sinks = [layer.sinks is not None for layer in found]
    return Trace(
        about=About(
            row_tokens,
            _source(name, arrays, *sizes),
            _run(np.asarray(first.q)),
            key_tokens=column_tokens,
            checks=checks,
            notices=tuple(notices),
        ),
        layers=tuple(layer.layer for layer in found),
        heads=_numbers(heads, first.n_heads, "heads"),
        scale=tuple(float(layer.scale) for layer in found),
        softcap=tuple(layer.softcap for layer in found),
        stages=stages,
        visible=visible,
        sink_share=1 - stages["weights"].sum(axis=-1) if any(sinks) else None,
    )


def _stacked(values: Any, name: str, index: int | None) -> Array:
    """Return (layers, heads, rows, columns), float32 or float64."""
    if isinstance(values, list | tuple) and values and np.ndim(values[0]) != 1:
        parts = [as_array(part, name) for part in values]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise UsageError(
                f"{name}: layers of different shapes, {sorted(shapes)[0]} and {sorted(shapes)[-1]}: "
                "show them one by one"
            )
        found = np.stack(parts)
        if found.ndim == 5:
            return _of_batch(found, name, index)
        if found.ndim == 3:  # a list of (L, S): heads of one layer
            found = found[None]
    else:
        found = as_array(values, name)
        found = (
            found.reshape((1,) * (4 - found.ndim) + found.shape) if 1 < found.ndim < 4 else found
        )
    if found.ndim != 4 or not found.size:
        raise UsageError(
            f"{name} {found.shape}: expected (L, S), (H, L, S), (layers, H, L, S), or a list of "
            "(1, H, L, S)"
        )
    if index is not None:
        raise UsageError(f"index {index}: {name} {found.shape} is not a batch")
    return found


def _of_batch(found: Array, name: str, index: int | None) -> Array:
    n_texts = found.shape[1]
    if index is None and n_texts > 1:
        raise UsageError(
            f"{name} is a batch of {n_texts} texts: say which, index=0 to index={n_texts - 1}"
        )
    place = index or 0
    if not 0 <= place < n_texts:
        raise UsageError(f"index {index} does not exist: the batch has 0 to {n_texts - 1}")
    return found[:, place]


def as_array(values: Any, name: str) -> Array:
    """Return numpy numbers, float64 where they are, else float32, from an array of any library.

    Raises
    ------
    UsageError
        What is not an array of numbers.
    """
    if hasattr(values, "detach"):  # torch, with or without a gradient, on any device
        values = values.detach().cpu()
        values = values.numpy() if str(values.dtype) == "torch.float64" else values.float().numpy()
    elif not hasattr(values, "__array__") and hasattr(values, "__dlpack__"):
        values = np.from_dlpack(values)
    try:
        found = np.asarray(values)
        wide = found.dtype == np.float64 and not hasattr(values, "aval")
        return found.astype(np.float64 if wide else np.float32, copy=False)
    except (TypeError, ValueError) as fault:
        raise UsageError(
            f"{name} is {type(values).__name__}, not an array of numbers: give a numpy, torch or "
            "JAX array, or lists of numbers of one length"
        ) from fault


def _both(
    tokens: Any, key_tokens: Any, tokenizer: Any, n_queries: int, n_keys: int, *, index: int | None
) -> tuple[Tokens, Tokens | None]:
    rows = _tokens(tokens, tokenizer, n_queries, "tokens", index)
    if key_tokens is None and n_queries == n_keys:
        return rows, None
    if key_tokens is None and tokens is not None:
        raise UsageError(
            f"{n_queries} queries and {n_keys} keys are two texts: give key_tokens as well"
        )
    return rows, _tokens(key_tokens, tokenizer, n_keys, "key_tokens", index)


def _tokens(given: Any, tokenizer: Any, n: int, name: str, index: int | None) -> Tokens:
    """Return tokens as they are given: strings as labels, ids through the tokenizer."""
    if given is None:
        given = [str(place) for place in range(n)]
    if isinstance(given, str):
        raise UsageError(f"{name} is one string: give one string for each token")
    parts = list(given.tolist() if hasattr(given, "tolist") else given)
    if index is not None and parts and isinstance(parts[0], list | tuple):
        parts = list(parts[index])
    elif len(parts) == 1 and isinstance(parts[0], list | tuple):
        parts = list(parts[0])
    ids = tuple(range(len(parts)))
    special: set[str] = set()
    if parts and all(isinstance(part, int) for part in parts):
        if tokenizer is None:
            raise UsageError(f"{name} are ids: give the tokenizer as well, or strings")
        ids = tuple(parts)
        parts = tokenizer.convert_ids_to_tokens(parts)
    if tokenizer is not None:
        special = set(getattr(tokenizer, "all_special_tokens", ()))
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{name} must be strings, or ids with a tokenizer")
    if len(parts) != n:
        raise UsageError(f"{len(parts)} {name} for {n} rows or columns: give one for each")
    labels = tuple(parts)
    flags = tuple(label in special for label in labels)
    return Tokens(" ".join(labels), ids, labels, labels, (None,) * n, flags)


def _mask(mask: Any, n_heads: int, n_queries: int, n_keys: int) -> Array | None:
    if mask is None:
        return None
    found = as_array(mask, "mask").astype(bool)
    if found.shape not in ((n_queries, n_keys), (n_heads, n_queries, n_keys)):
        raise UsageError(
            f"mask {found.shape}: expected ({n_queries}, {n_keys}) or "
            f"({n_heads}, {n_queries}, {n_keys}), True where a query may look"
        )
    return found


def _numbers(given: Sequence[int] | None, n: int, name: str) -> tuple[int, ...]:
    if given is None:
        return tuple(range(n))
    numbers = tuple(given)
    if len(numbers) != n or not all(isinstance(number, int) for number in numbers):
        raise UsageError(f"{name} {given}: expected {n} whole numbers, one for each")
    return numbers


def _oddities(maps: Array) -> list[str]:
    """Say what weights of a softmax do not have: NaN, negative numbers, sums other than 1."""
    said = []
    n_nan = int(np.isnan(maps).sum())
    if n_nan:
        said.append(f"{n_nan} weights are NaN: shown as they are")
    n_negative = int((maps < 0).sum())
    if n_negative:
        said.append(
            f"{n_negative} weights are negative (least {np.nanmin(maps):.3g}): shown as they are"
        )
    sums = maps.astype(np.float64).sum(axis=-1)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        said.append(
            f"{int(off.sum())} of {sums.size} rows do not sum to 1 ({sums[off].min():.3g} to "
            f"{sums[off].max():.3g}): shown as they are"
        )
    return said


def _source(
    name: str, arrays: Sequence[Array], n_layers: int, n_heads: int, n_kv: int, d_k: int, d_v: int
) -> SourceInfo:
    digest = sha256()
    for values in arrays:
        digest.update(f"{values.dtype}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return SourceInfo(
        kind="given", name=name, sha256=digest.hexdigest(), n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv,
        d_model=0, d_k=d_k, d_v=d_v,
    )  # fmt: skip


def _run(values: Array) -> RunInfo:
    return RunInfo(__version__, "cpu", str(values.dtype), "given")
