"""One run: open a source, cut the text, let the core compute, gather a Trace.

What lives here: joining sources and core. What does not: mathematics (``core``), parsing options
(``cli``), drawing (``render``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from attnviz.core import reference
from attnviz.core.measures.flow import value_norms
from attnviz.errors import UsageError
from attnviz.records import Array, LayerHeads, Tokens, Trace
from attnviz.runs import pool_words as pooled
from attnviz.runs.parity import parity_of, verify_model
from attnviz.runs.request import find_tokens
from attnviz.runs.run import Chosen, Origin, Run, check_dense_size, choose, narrow, open_text

LOOP_MAX_CELLS = 1 << 16


def explain(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    token: str | Sequence[str] | None = None,
    words: bool = False,
    verify: bool = False,
    tokenizer: Any = None,
    **origin: Unpack[Origin],
) -> Trace:
    """Compute every number between a text and the output of its heads.

    Parameters
    ----------
    text
        Any string with at least one word.
    weights
        ``random``, ``sample``, a path to a weight file, or a mapping of names to arrays.
    model
        A trained model instead: a Hugging Face folder, a place in its local cache, a GGUF file. Or a
        model of ``transformers`` in memory with its ``tokenizer``: it runs once, and is left as it was.
    attention, decoder_text
        Of an encoder-decoder: ``encoder`` (default), ``self`` or ``cross``, and the decoder's text.
    max_tokens
        Cut longer texts, and say so.
    layer
        A number, a range like ``"0-3"`` or ``"all"``; of a weight file, which one it is.
    head
        A number, a range, ``"all"``, ``"mean"``, or ``"auto"``: the head that tells most about
        ``token``. ``None`` is ``auto`` for a model, else the first.
    token
        A word or index, or several; ``auto`` asks about the first.
    words
        Pool the weights of sub-words into words: rows averaged, columns summed.
    verify
        Compare with the model run untouched.
    causal, window, scale
        What if: no looking ahead, at most ``window`` keys, scores times ``scale`` (``"none"``: not
        divided at all), in place of the source's own rule for the heads shown.
    seed, d_model, d_k, n_heads, n_kv_heads
        Sizes of random weights; ``n_heads`` also reads a file that does not say its own.
    device, dtype
        Where and in what precision.
    notify
        Told about slow first-time work.

    Returns
    -------
    Trace
        Stages of shape (layers, heads, rows, columns), float64 numpy arrays.

    Raises
    ------
    InputError
        Text, file or model cannot be read.
    UsageError
        An option out of range.
    ResourceError
        Too large to hold every cell, or a device that is not there.
    CheckFailed
        ``verify`` found more than the tolerance.

    Notes
    -----
    Time and memory grow with layers · heads · L².

    Examples
    --------
    >>> trace = explain("A cute teddy bear is reading")
    >>> trace.stages["weights"].shape
    (1, 1, 6, 6)
    """
    model = origin.get("model")
    if model is not None and not isinstance(model, str | os.PathLike):
        from attnviz.runs.watch import explain_model

        given = {"words": words, "verify": verify, **origin}
        return explain_model(text, tokenizer, layer=layer, head=head, token=token, **given)
    if tokenizer is not None:
        raise UsageError("tokenizer goes with a model in memory: a folder or file has its own")
    run, chosen = ask(
        text, layer=layer, head=head, token=token, words=words, verify=verify, **origin
    )
    return trace_of(run, chosen, head=head, words=words)


def ask(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    token: str | Sequence[str] | None = None,
    words: bool = False,
    verify: bool = False,
    **origin: Unpack[Origin],
) -> tuple[Run, Chosen]:
    """Open a source, cut the text, and find the layers and heads that ``explain`` shows.

    Returns
    -------
    run
        With the chosen layers, and the checks of ``verify``.
    chosen
        The heads, and how they were chosen.
    """
    run = open_text(text, layer=layer, **origin)
    query = _find_asked(run.queries, token, words=words)
    checks = verify_model(run) if verify else {}
    chosen = choose(run, layer=layer, head=head, query=query, words=words)
    return replace(run, layers=chosen.layers, checks=checks), chosen


def trace_of(run: Run, chosen: Chosen, *, head: str | int | None, words: bool) -> Trace:
    """Compute what was asked for, every cell of it.

    Raises
    ------
    TooLong
        More cells than are held at once.
    """
    trace = gather(run, chosen.heads, kept=chosen.kept)
    if head == "mean":
        trace = average_heads(trace)
    trace = pooled.pool_words(trace) if words else trace
    return replace(trace, ranking=chosen.ranking, asked=chosen.query)


def _find_asked(tokens: Tokens, token: str | Sequence[str] | None, *, words: bool) -> int | None:
    """Return the query that ``auto`` asks about: the first token (or word) that is named."""
    wanted = [token] if isinstance(token, str) else list(token or ())
    if not wanted:
        return None
    if not words:
        return find_tokens(tokens, wanted)[0]
    return find_tokens(pooled.join_tokens(tokens, pooled.group_words(tokens)), wanted)[0]


def gather(
    run: Run, heads: tuple[int, ...], *, kept: Mapping[int, LayerHeads] | None = None
) -> Trace:
    """Compute every stage of the chosen heads and put them into one record with its checks.

    Parameters
    ----------
    run
        Its layers are shown.
    heads
        Numbers of the heads to compute.
    kept
        Layers as the source gave them earlier, by number.

    Raises
    ------
    TooLong
        More cells than are held at once.
    """
    check_dense_size(len(run.queries), len(run.keys), len(run.layers) * len(heads))
    computing = run.computing
    found = [kept[n] for n in run.layers if n in kept] if kept else []
    if len(found) != len(run.layers):
        found = []
        run.source.run(run.tokens, run.layers, found.append)
    _check_widths(found)
    layers = [run.what_if.apply(layer) for layer in found]
    narrowed = [narrow(layer, heads) for layer in layers]
    computed = [computing.trace_heads(layer) for layer, _ in narrowed]
    places = [list(place) for _, place in narrowed]
    names = [n for n in computed[0] if n not in ("visible", "lse")]
    stages = {
        name: np.stack([np.asarray(c[name], np.float64)[p] for c, p in zip(computed, places)])
        for name in names
        if all(name in c for c in computed)
    }
    visible = np.stack([np.asarray(c["visible"], bool)[p] for c, p in zip(computed, places)])
    x = None
    if all(layer.x is not None for layer in layers):
        x = np.stack([as_numpy(layer.x).astype(np.float64) for layer in layers])
    sinks = [layer.sinks for layer in layers]
    sums = stages["weights"].sum(axis=-1)
    sink_share = 1 - sums if any(s is not None for s in sinks) else None
    blind = tuple(
        (layers[i].layer, heads[j], int(row))
        for i, j, row in zip(*np.nonzero(~visible.any(axis=-1)), strict=True)
    )
    checks = {
        **_checks(narrowed, stages, visible, sink_share),
        **parity_of(run.source, narrowed, stages["output"]),
    }
    overrides = run.what_if.overrides(found[0])
    return Trace(
        about=run.about(overrides, checks=checks, notices=_blind_notice(blind, run.queries)),
        layers=tuple(layer.layer for layer in layers),
        heads=heads,
        scale=tuple(float(layer.scale) for layer in layers),
        softcap=tuple(layer.softcap for layer in layers),
        stages=stages,
        visible=visible,
        x=x,
        sink_share=sink_share,
        rows_without_keys=blind,
        inputs=_inputs(layers, heads),
        value_norms=norms_of(layers, heads),
    )


def norms_of(layers: Sequence[LayerHeads], heads: Sequence[int]) -> Array | None:
    """Return ‖v_j·W_O‖ of these heads, (layers, heads, S), where every layer has W_O."""
    if any(layer.w_o is None for layer in layers):
        return None
    norms = [
        value_norms(as_numpy(layer.v), as_numpy(layer.w_o), n_heads=layer.n_heads)[list(heads)]
        for layer in layers
    ]
    return np.stack(norms)


def _check_widths(layers: Sequence[LayerHeads]) -> None:
    """Refuse layers that cannot be stacked."""
    first = layers[0]
    for layer in layers:
        if (layer.d_k, layer.d_v) != (first.d_k, first.d_v):
            raise UsageError(
                f"layers {first.layer} and {layer.layer} have heads of different widths "
                f"({first.d_k} and {layer.d_k}): show them one at a time"
            )


def _inputs(layers: Sequence[LayerHeads], heads: tuple[int, ...]) -> dict[str, Array]:
    """Return the steps before q and k that every layer shows, k's once per query head."""
    found = {}
    for name in layers[0].inputs:
        if all(name in layer.inputs for layer in layers):
            steps = [as_numpy(layer.inputs[name]).astype(np.float64) for layer in layers]
            group = [len(step) * head // layers[0].n_heads for head in heads for step in steps[:1]]
            found[name] = np.stack([step[group] for step in steps])
    return found


def average_heads(trace: Trace) -> Trace:
    """Return the mean of the heads' weights as one head; their scores have no common meaning."""
    weights = np.asarray(trace.stages["weights"]).mean(axis=1, keepdims=True)
    told = f"mean of the weights of {len(trace.heads)} heads"
    return replace(
        trace,
        about=replace(trace.about, notices=(*trace.notices, told)),
        heads=("mean",),
        stages={"weights": weights},
        visible=np.asarray(trace.visible).any(axis=1, keepdims=True),
        sink_share=None,
        value_norms=None,
        inputs={},
    )


def _checks(
    narrowed: Sequence[tuple[LayerHeads, Sequence[int]]],
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
    for i, (layer, places) in enumerate(narrowed):
        plain = replace(layer, q=as_numpy(layer.q), k=as_numpy(layer.k), v=as_numpy(layer.v))
        for j, head in enumerate(places):
            weights_LS, output_LF = reference.attend_by_token(plain, head)
            worst = max(
                worst,
                float(np.abs(weights_LS - stages["weights"][i, j]).max(initial=0.0)),
                float(np.abs(output_LF - stages["output"][i, j]).max(initial=0.0)),
            )
    return {**checks, "loop_error": worst}


def as_numpy(values: Array) -> Array:
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
