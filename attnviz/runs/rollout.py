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
from attnviz.core.stream.rectangle import rectangle
from attnviz.errors import UsageError
from attnviz.records import LayerHeads
from attnviz.runs.request import find_tokens
from attnviz.runs.run import Origin, open_text

_ROWS = 256


def stream_rollout(
    text: str,
    token: Sequence[str],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    layer: str | int | None = None,
    **origin: Unpack[Origin],
) -> RolloutRows:
    """Compute the rollout of some tokens, row by row.

    Parameters
    ----------
    token
        Words or indices of the last layer's tokens.
    progress
        Told how many of how many blocks are done.
    layer, origin
        As of ``open_text``.

    Notes
    -----
    Time grows with layers · heads · L², memory with layers · L.

    Raises
    ------
    UsageError
        Cross attention, or a token that is not there.
    """
    run = open_text(text, layer=layer, **origin)
    if run.key_tokens is not None:
        raise UsageError("rollout is about self attention: queries and keys differ here")
    info = run.source.info
    if info.is_model and len(run.layers) != info.n_layers:
        raise UsageError(
            f"rollout multiplies the attention of all {info.n_layers} layers, {len(run.layers)} are "
            "asked for: leave out --layer; a hybrid has none, as its other layers mix tokens without "
            "attention"
        )
    queries = find_tokens(run.tokens, token)
    found: list[LayerHeads] = []
    overrides = run.each(found.append)
    n, n_heads = len(run.tokens), info.n_heads
    total = len(found) * n_heads * -(-n // _ROWS)
    done = 0

    def blocks(layer: LayerHeads) -> Iterator[Block]:
        nonlocal done
        for first in range(0, n, _ROWS):
            span = (first, min(n, first + _ROWS))
            mean = np.zeros((span[1] - span[0], n))
            for head in range(n_heads):
                mean += rectangle(layer, head, rows=span, keys=(0, n))
                done += 1
                progress(done, total)
            yield span, mean / n_heads

    start = np.zeros((len(queries), n))
    start[np.arange(len(queries)), list(queries)] = 1.0
    flow = rollout_rows(start, [partial(blocks, layer) for layer in found])
    about = run.about(overrides, core="stream")
    return RolloutRows(about, run.layers, tuple(range(n_heads)), queries, flow)
