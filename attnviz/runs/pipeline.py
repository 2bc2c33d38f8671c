"""One run: open a source, cut the text, let the core compute, gather a Trace.

What lives here: joining sources and core. What does not: mathematics (``core``), parsing options
(``cli``), drawing (``render``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attnviz import __version__
from attnviz.core import reference
from attnviz.core.masks import window_reach
from attnviz.errors import ResourceError
from attnviz.records import Array, LayerHeads, RunInfo, Tokens, Trace
from attnviz.runs.requests import choose_heads, parse_layer, parse_scale
from attnviz.sources import Source

REFERENCE_MAX_TOKENS = 512
DENSE_MAX_CELLS = 1 << 24
LOOP_MAX_CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Computing:
    """Where and how the numbers are computed."""

    device: str
    dtype: str
    core: str
    project: Callable[..., Array]
    trace_heads: Callable[[LayerHeads], Mapping[str, Array]]


def choose_core(*, device: str = "auto", dtype: str = "float64", n_tokens: int = 0) -> Computing:
    """Choose numpy for small inputs in float64 on the CPU, torch for everything else.

    Raises
    ------
    UsageError, ResourceError
        An unknown device or precision, or one that this machine does not have.
    """
    is_small = device in ("auto", "cpu") and dtype == "float64"
    if is_small and n_tokens <= REFERENCE_MAX_TOKENS:
        return Computing("cpu", "float64", "numpy", reference.project, reference.trace_heads)
    from attnviz.core import attend
    from attnviz.core.device import choose_device, choose_dtype

    place, kind = choose_device(device), choose_dtype(dtype)
    return Computing(
        str(place),
        dtype,
        "torch",
        partial(attend.project, device=place, dtype=kind),
        partial(attend.trace_heads, device=place, dtype=kind),
    )


def open_source(
    *,
    weights: str = "sample",
    layer: str | int | None = None,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    project: Callable[..., Array] = reference.project,
) -> Source:
    """Open the place attention comes from: random, bundled, or a weight file."""
    if weights == "random":
        from attnviz.sources.random_ import open_random

        return open_random(
            seed=seed,
            d_model=d_model,
            d_k=d_k,
            n_heads=n_heads or 1,
            n_kv_heads=n_kv_heads,
            project=project,
        )
    from attnviz.sources.weights import open_weights

    return open_weights(
        weights,
        layer=None if layer is None else parse_layer(layer),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        seed=seed,
        project=project,
    )


def explain(
    text: str,
    *,
    weights: str = "sample",
    layer: str | int | None = None,
    head: str | int | None = None,
    causal: bool | None = None,
    window: int | None = None,
    scale: str | float | None = None,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    device: str = "auto",
    dtype: str = "float64",
) -> Trace:
    """Compute every number between a text and the output of its heads.

    Parameters
    ----------
    text
        Any string with at least one word.
    weights
        ``random``, ``sample``, or a path to a weight file.
    head
        ``None`` (the first), a number, ``"all"``, or ``"mean"``.
    causal, window, scale
        Override the source: no looking ahead, at most ``window`` keys, scores times ``scale``
        (``"none"``: not divided at all).
    seed, d_model, d_k, n_heads, n_kv_heads
        Sizes of random weights; ``n_heads`` also reads a file that does not say its own.
    device, dtype
        Where and in what precision.

    Returns
    -------
    Trace
        Stages of shape (1 layer, heads, rows, columns), float64 numpy arrays.

    Raises
    ------
    InputError
        Text or file cannot be read.
    UsageError
        An option out of range.
    ResourceError
        Too large to hold every cell, or a device that is not there.

    Notes
    -----
    Time and memory grow with heads · L².

    Examples
    --------
    >>> trace = explain("A cute teddy bear is reading")
    >>> trace.stages["weights"].shape
    (1, 1, 6, 6)
    """
    computing = choose_core(device=device, dtype=dtype, n_tokens=len(text) // 2)
    source = open_source(
        weights=weights,
        layer=layer,
        seed=seed,
        d_model=d_model,
        d_k=d_k,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        project=computing.project,
    )
    tokens = source.tokenize(text)
    heads = choose_heads(head, source.info.n_heads)
    check_dense_size(len(tokens), len(tokens), len(heads))
    found: list[LayerHeads] = []
    source.run(tokens, (0,), found.append)
    factor = parse_scale(scale)
    changed = [override(h, causal=causal, window=window, scale=factor) for h in found]
    trace = gather(source, tokens, changed, heads, computing)
    if head == "mean":
        trace = average_heads(trace)
    return note_overrides(trace, found[0], causal=causal, window=window, scale=factor)


def override(
    heads: LayerHeads, *, causal: bool | None, window: int | None, scale: float | None
) -> LayerHeads:
    """Return the layer with the user's what-if in place of the source's own rule."""
    visible = heads.visible
    if causal is not None:
        visible = replace(visible, causal=causal)
    if window:
        window_reach(window, causal=visible.causal)
        visible = replace(visible, window=window)
    return replace(heads, visible=visible, scale=heads.scale if scale is None else scale)


def note_overrides(
    trace: Trace, own: LayerHeads, *, causal: bool | None, window: int | None, scale: float | None
) -> Trace:
    """Write down what was overridden, for the screen and for every file."""
    notes: dict[str, Any] = {}
    if causal is not None:
        notes["causal"] = causal
    if window:
        notes["window"] = window
    if scale is not None:
        notes["scale"] = scale
        notes["source_scale"] = own.scale
    is_causal = own.visible.causal if causal is None else causal
    rules = ["causal: no key after the query"] if is_causal else []
    if window:
        rules.append(f"window: {window} keys, itself included")
    if rules:
        notes["mask"] = ", ".join(rules)
    return replace(trace, run=replace(trace.run, overrides=notes))


def check_dense_size(n_queries: int, n_keys: int, n_heads: int) -> None:
    """Refuse what would not fit before computing it."""
    cells = n_queries * n_keys * n_heads
    if cells > DENSE_MAX_CELLS:
        fits = math.isqrt(DENSE_MAX_CELLS // n_heads)
        raise ResourceError(
            f"{n_queries} tokens and {n_heads} heads make {cells} cells: at most {DENSE_MAX_CELLS} "
            f"are held, which is {fits} tokens; shorten the text or choose fewer heads"
        )


def gather(
    source: Source,
    tokens: Tokens,
    layers: Sequence[LayerHeads],
    heads: tuple[int, ...],
    computing: Computing,
) -> Trace:
    """Compute every stage of the chosen heads and put them into one record with its checks."""
    computed = [computing.trace_heads(layer) for layer in layers]
    names = [n for n in computed[0] if n not in ("visible", "lse")]
    picked = list(heads)
    stages = {
        name: np.stack([np.asarray(c[name], np.float64)[picked] for c in computed])
        for name in names
        if all(name in c for c in computed)
    }
    visible = np.stack([np.asarray(c["visible"], bool)[picked] for c in computed])
    x = None
    if all(layer.x is not None for layer in layers):
        x = np.stack([np.asarray(layer.x, np.float64) for layer in layers])
    sinks = [layer.sinks for layer in layers]
    sums = stages["weights"].sum(axis=-1)
    sink_share = 1 - sums if any(s is not None for s in sinks) else None
    blind = tuple(
        (layers[i].layer, heads[j], int(row))
        for i, j, row in zip(*np.nonzero(~visible.any(axis=-1)), strict=True)
    )
    return Trace(
        tokens=tokens,
        source=source.info,
        run=RunInfo(__version__, computing.device, computing.dtype, computing.core),
        layers=tuple(layer.layer for layer in layers),
        heads=heads,
        scale=tuple(float(layer.scale) for layer in layers),
        softcap=tuple(layer.softcap for layer in layers),
        stages=stages,
        visible=visible,
        checks=_checks(layers, heads, stages, visible, sink_share),
        x=x,
        sink_share=sink_share,
        rows_without_keys=blind,
        notices=(*source.info.notices, *tokens.notices, *_blind_notice(blind, tokens)),
    )


def average_heads(trace: Trace) -> Trace:
    """Return the mean of the heads' weights as one head; their scores have no common meaning."""
    weights = np.asarray(trace.stages["weights"]).mean(axis=1, keepdims=True)
    return replace(
        trace,
        heads=("mean",),
        stages={"weights": weights},
        visible=np.asarray(trace.visible).any(axis=1, keepdims=True),
        sink_share=None,
        notices=(*trace.notices, f"mean of the weights of {len(trace.heads)} heads"),
    )


def _checks(
    layers: Sequence[LayerHeads],
    heads: tuple[int, ...],
    stages: Mapping[str, Array],
    visible: Array,
    sink_share: Array | None,
) -> dict[str, float]:
    """Return the row sums' largest distance from 1, and the matrix form's from the loop's."""
    sums = stages["weights"].sum(axis=-1)
    expected = visible.any(axis=-1).astype(np.float64)
    if sink_share is not None:
        expected = expected - sink_share
    checks = {"row_sum_error": float(np.abs(sums - expected).max(initial=0.0))}
    if stages["weights"].size > LOOP_MAX_CELLS:
        return checks
    worst = 0.0
    for i, layer in enumerate(layers):
        plain = replace(layer, q=_plain(layer.q), k=_plain(layer.k), v=_plain(layer.v))
        for j, head in enumerate(heads):
            weights_LS, output_LF = reference.attend_by_token(plain, head)
            worst = max(
                worst,
                float(np.abs(weights_LS - stages["weights"][i, j]).max(initial=0.0)),
                float(np.abs(output_LF - stages["output"][i, j]).max(initial=0.0)),
            )
    return {**checks, "loop_error": worst}


def _plain(values: Array) -> Array:
    """Return numpy float64, wherever the array lives."""
    if isinstance(values, np.ndarray):
        return values
    return values.detach().to("cpu").double().numpy()


def _blind_notice(blind: tuple[tuple[int, int, int], ...], tokens: Tokens) -> tuple[str, ...]:
    rows = sorted({row for _, _, row in blind})
    if not rows:
        return ()
    names = ", ".join(f"{row}:{tokens.labels[row]}" for row in rows[:8])
    return (f"these queries may look at no key, so their weights and output are 0: {names}",)
