"""Gather q, k and v of many layers for an interactive page: nothing L × S is ever computed.

What lives here: running a source and keeping, per layer, the chosen heads as numpy arrays. What
does not: scores and weights (the page's own script computes them) or how a page is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Array, HeadChoice, LayerHeads, LayerStack, MaskRule, Tokens
from attnviz.rounding import worse
from attnviz.runs.explain import norms_of
from attnviz.runs.parity import parity_of, verify_model
from attnviz.runs.request import choose_heads
from attnviz.runs.run import Origin, Run, choose, narrow, open_text
from attnviz.sources import Source

START_MAX_CELLS = 1 << 26
"""Cells of all layers and heads up to which a page opens at the link that is most its own."""
N_LINKS = 4
"""Links that a page offers: the one it opens at, and its runners-up."""
PARITY_MAX_CELLS = 1 << 26
"""Cells of all layers and heads up to which a page's parity is computed."""

CheckSize = Callable[[Source, Tokens, Sequence[int], Sequence[int]], None]


def collect(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    words: bool = False,
    verify: bool = False,
    check_size: CheckSize | None = None,
    **origin: Unpack[Origin],
) -> LayerStack:
    """Open a source, cut the text, and keep q, k and v of the asked-for layers and heads.

    Parameters
    ----------
    text
        Any string with at least one word.
    layer, head
        A number, a range like ``"0-3"``, or ``"all"`` (what None means here).
    check_size
        Called with the source, the tokens along the queries, the layers and the heads before
        anything is computed: the place to refuse what would be too large.

    The other parameters are those of ``pipeline.explain``.

    Returns
    -------
    LayerStack
        float64 arrays where the source works in float64, else float32. ``checks`` has the
        ``parity`` of a model on short texts.

    Raises
    ------
    InputError
        Text, file or model cannot be read.
    UsageError
        An option out of range, or the mean over heads, which has no q and k.
    CheckFailed
        ``verify`` found more than the tolerance.
    """
    if head == "mean":
        raise UsageError(
            "a page shows q and k, and the mean over heads has none: use --head all or a number"
        )
    if words:
        raise UsageError("a page shows q and k, and words have none: leave --words out")
    run = open_text(text, layer=layer, **origin)
    heads = choose_heads("all" if head is None else head, run.source.info.n_heads)
    if head == "auto":
        chosen = choose(run, layer=layer, head=head, query=None)
        run, heads = replace(run, layers=chosen.layers), chosen.heads
    if check_size is not None:
        check_size(run.source, run.queries, run.layers, heads)
    return gather_stack(run, heads, checks=verify_model(run) if verify else {})


def gather_stack(
    run: Run, heads: Sequence[int], *, checks: Mapping[str, float] | None = None
) -> LayerStack:
    """Run a source and keep the chosen heads' q, k, v, with the parity of a model on short texts.

    Parameters
    ----------
    run
        Its layers are kept.
    heads
        Numbers that the source has, in the order they are kept.
    checks
        More of them.

    Notes
    -----
    Memory grows with L, never with L²: one layer of the source is alive at a time, and of each
    L · (H·E + K·E + K·F) numbers are kept.
    """
    source, found_checks = run.source, dict(checks or {})
    cells = len(run.layers) * len(heads) * run.n_cells
    group = source.info.n_heads // source.info.n_kv_heads
    kv_heads = tuple(sorted({head // group for head in heads}))
    kept: list[LayerHeads] = []
    norms: list[Array] = []

    def keep(found: LayerHeads) -> None:
        if found.own_output is not None and cells <= PARITY_MAX_CELLS:
            layer, places = narrow(found, heads)
            output = run.computing.trace_heads(layer)["output"][list(places)]
            worst = parity_of(source, [(layer, places)], output[None])["parity"]
            found_checks["parity"] = worse(worst, found_checks.get("parity", 0.0))
        kept.append(pick_heads(found, heads, kv_heads))
        own = norms_of((found,), heads)
        norms.extend([] if own is None else [own[0]])

    overrides = run.each(keep)
    return LayerStack(
        about=run.about(overrides, checks=found_checks),
        layers=tuple(kept),
        heads=tuple(heads),
        kv_heads=kv_heads,
        value_norms=tuple(norms) if len(norms) == len(kept) else (),
    )


def pick_heads(found: LayerHeads, heads: Sequence[int], kv_heads: Sequence[int]) -> LayerHeads:
    """Return one layer with only the chosen heads, as numpy arrays of its own."""
    queries, keys = list(heads), list(kv_heads)
    bias = found.bias
    if callable(bias):
        bias = _pick_rows(bias, queries)
    elif bias is not None:
        bias = _pick(_numbers(bias), queries)
    return LayerHeads(
        q=_numbers(found.q)[queries],
        k=_numbers(found.k)[keys],
        v=_numbers(found.v)[keys],
        scale=float(found.scale),
        visible=_pick_rule(found.visible, queries, like=found.q),
        softcap=found.softcap,
        bias=bias,
        sinks=None if found.sinks is None else _numbers(found.sinks)[queries],
        layer=found.layer,
        name=found.name,
    )


def _numbers(values: Array) -> Array:
    """Return numpy float64 where the numbers are float64, else float32."""
    if not isinstance(values, np.ndarray):
        wide = values.detach().to("cpu")
        values = (wide if str(wide.dtype) == "torch.float64" else wide.float()).numpy()
    return values if values.dtype == np.float64 else np.asarray(values, np.float32)


def _flags(values: Array) -> Array:
    return np.asarray(values if isinstance(values, np.ndarray) else values.detach().cpu(), bool)


def _pick(values: Array, heads: list[int]) -> Array:
    return values if len(values) == 1 else values[heads]


def _pick_rows(rows: Callable[[int, int], Array], heads: list[int]) -> Callable[[int, int], Array]:
    return lambda first, end: _pick(_numbers(rows(first, end)), heads)


def _pick_rule(rule: MaskRule, heads: list[int], *, like: Array) -> MaskRule:
    """Return the rule for the chosen heads, answering in numpy."""
    cells, where = rule.cells, rule.where
    if cells is not None:
        cells = _flags(cells)
        cells = cells if cells.ndim == 2 else _pick(cells, heads)
    if where is not None:
        where = _pick_where(where, heads, like=like)
    key_visible = None if rule.key_visible is None else _flags(rule.key_visible)
    return replace(rule, key_visible=key_visible, cells=cells, where=where)


def _pick_where(
    where: Callable[..., Array], heads: list[int], *, like: Array
) -> Callable[..., Array]:
    """A model's rule answers in tensors: hand it tensors, return numpy."""
    numbers = np.array(heads)

    def asked(head: Any, query: Any, key: Any) -> Array:
        index = (numbers[head], query, key)
        if isinstance(like, np.ndarray):
            return _flags(where(*index))
        import torch

        return _flags(where(*(torch.as_tensor(part, device=like.device) for part in index)))

    return asked


def most_telling(stack: LayerStack, query: int | None) -> tuple[HeadChoice, ...]:
    """Return the links that tell most about a query (or the text), best first: where a page opens.

    ``layer`` and ``head`` are places in the stack. Empty where there is nothing to choose, the text
    is too long to look at every cell, or only some heads are held.
    """
    from attnviz.core import reference
    from attnviz.core.measures.choose import Ranking

    n_heads = len(stack.heads)
    cells = len(stack.layers) * n_heads * len(stack.tokens) * len(stack.keys)
    is_whole = n_heads == stack.source.n_heads and stack.source.is_model
    if not is_whole or cells > START_MAX_CELLS or len(stack.layers) * n_heads == 1:
        return ()
    ranking = Ranking(
        stack.keys.special,
        query,
        n_queries=len(stack.tokens),
        special_queries=None if stack.key_tokens is None else stack.tokens.special,
    )
    for place, layer in enumerate(stack.layers):
        weights = reference.trace_heads(replace(layer, x=None))["weights"]
        ranking.add(place, range(n_heads), weights)
    return ranking.ranked()[:N_LINKS]
