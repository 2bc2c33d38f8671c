"""Attention rollout of some tokens of a text of any length: nothing L × L is held.

What lives here: running all layers, and going through their rows backwards in blocks. What does
not: the product (``core.flow``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Unpack

import numpy as np

from attnviz.core.measures.flow import Block, RolloutRows, rollout_rows
from attnviz.errors import UsageError
from attnviz.records import LayerHeads, Trace
from attnviz.runs.explain import ask, trace_of
from attnviz.runs.request import find_tokens
from attnviz.runs.run import Origin, Run

_ROWS = 256


def rollout(
    text: str,
    *,
    token: str | Sequence[str] | None = None,
    layer: str | int | None = None,
    head: str | int | None = "all",
    progress: Callable[[int, int], None] = lambda done, total: None,
    **origin: Unpack[Origin],
) -> Trace | RolloutRows:
    """Compute what attention rollout is made of: every layer and head, or rows of some tokens.

    Parameters
    ----------
    token
        Words or indices of the last layer's tokens. Of a text of which not every cell fits, only their
        rows are computed.
    layer, head
        As of ``explain``; rollout is over all of them.
    progress
        Told how many of how many blocks are done.
    origin
        As of ``explain``.

    Returns
    -------
    Trace
        Where every cell fits; or else ``RolloutRows``, with a notice that says so.

    Raises
    ------
    TooLong
        Every cell does not fit, and no token is given.
    UsageError
        Cross attention, layers left out, or a token that is not there.

    Examples
    --------
    >>> type(rollout("A cute teddy bear is reading")).__name__
    'Trace'
    """
    run, chosen = ask(text, layer=layer, head=head, token=token, **origin)
    why = run.too_long_for(len(chosen.layers) * len(chosen.heads))
    if why is None or not token:
        return trace_of(run, chosen, head=head, words=False)
    told = f"{why}, too many to hold: only the rows of --token are computed"
    return stream_rollout(run, token, progress=progress, notices=(told,))


def stream_rollout(
    run: Run,
    token: str | Sequence[str],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    notices: Sequence[str] = (),
) -> RolloutRows:
    """Compute the rollout of some tokens, row by row.

    Notes
    -----
    Time grows with layers · heads · L², memory with layers · L.

    Raises
    ------
    UsageError
        Cross attention, layers left out, or a token that is not there.
    """
    if run.key_tokens is not None:
        raise UsageError("rollout is about self attention: queries and keys differ here")
    info = run.source.info
    if info.is_model and len(run.layers) != info.n_layers:
        raise UsageError(
            f"rollout multiplies the attention of all {info.n_layers} layers, {len(run.layers)} are "
            "asked for: leave out --layer; a hybrid has none, as its other layers mix tokens without "
            "attention"
        )
    queries = find_tokens(run.tokens, [token] if isinstance(token, str) else token)
    from attnviz.core.device import choose_device
    from attnviz.core.stream.rectangle import weight_rows

    found: list[LayerHeads] = []
    overrides = run.each(found.append)
    n, n_heads, device = len(run.tokens), info.n_heads, choose_device(run.computing.device)
    total = len(found) * n_heads * -(-n // _ROWS)
    done = 0

    def blocks(layer: LayerHeads) -> Iterator[Block]:
        nonlocal done
        heads = [weight_rows(layer, head, device=device) for head in range(n_heads)]
        for first in range(0, n, _ROWS):
            span = (first, min(n, first + _ROWS))
            mean = np.zeros((span[1] - span[0], n))
            for rows in heads:
                mean += rows(*span)
                done += 1
                progress(done, total)
            yield span, mean / n_heads

    start = np.zeros((len(queries), n))
    start[np.arange(len(queries)), list(queries)] = 1.0
    flow = rollout_rows(start, [partial(blocks, layer) for layer in found])
    about = run.about(overrides, core="stream", notices=notices)
    return RolloutRows(about, run.layers, tuple(range(n_heads)), queries, flow)
