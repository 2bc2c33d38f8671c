"""The sentence itself, shaded by where a token looks, or by how much each token is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Trace
from attnviz.render.overview import choice
from attnviz.render.shapes import Column, Document, Label, Shaded, Table
from attnviz.render.titles import what_if
from attnviz.render.views.heatmap import plain_labels
from attnviz.render.views.walk import headline
from attnviz.rounding import by_size

MOST = 2000
"""Tokens: more are no text that a person reads on one screen."""
N_SAID = 3
DATA_COLUMNS = (
    Column("layer", "int"), Column("head", "int"), Column("query", "int"),
    Column("query_label", "label"), Column("key", "int"), Column("key_label", "label"), Column("share"),
)  # fmt: skip


def view(trace: Trace, *, queries: Sequence[int] = ()) -> Document:
    """Shade the text, once for each head and each of the tokens asked about.

    Parameters
    ----------
    queries
        Shade by these tokens' weights. Without any: by the weight that each token receives, the
        mean over all queries.

    Raises
    ------
    UsageError
        More than 2,000 tokens.
    """
    if len(trace.keys) > MOST:
        raise UsageError(
            f"{len(trace.keys)} tokens are too many to be read as one text: at most {MOST}; "
            "attnviz summary shows texts of any length"
        )
    rows: list[tuple[object, ...]] = []
    shapes = []
    weights = np.asarray(trace.stages["weights"])
    for i, j in np.ndindex(*weights.shape[:2]):
        for query in queries or (None,):
            shares = weights[i, j].mean(axis=0) if query is None else weights[i, j, query]
            shapes.append(
                _shaded(
                    trace,
                    " · ".join(
                        [f"L{trace.layers[i]}.H{trace.heads[j]}", *what_if(trace.run.overrides)]
                    ),
                    query,
                    shares,
                )
            )
            label = None if query is None else Label(trace.tokens.labels[query])
            rows += [
                (trace.layers[i], trace.heads[j], query, label, key, Label(name), float(share))
                for key, (name, share) in enumerate(zip(trace.keys.labels, shares, strict=True))
            ]
    return Document(
        (headline(trace), *choice(trace), *shapes),
        trace,
        title="text",
        stages=("weights",),
        data=Table("text", DATA_COLUMNS, tuple(rows)),
    )


def _shaded(trace: Trace, where: str, query: int | None, shares: np.ndarray) -> Shaded:
    keys = plain_labels(trace.keys)
    strongest = ", ".join(f"{keys[n]} {100 * shares[n]:.1f} %" for n in by_size(shares, N_SAID))
    if query is None:
        title = f"{where}: how much each token is looked at"
        top = float(shares.max(initial=0.0)) or 1.0
        note = f"mean weight over all queries, darkest {100 * top:.1f} %; most: {strongest}"
        return Shaded(title, keys, shares, None, (note,), top)
    asked = plain_labels(trace.tokens)[query]
    is_self = trace.key_tokens is None
    title = f"{where}: where {asked} looks"
    return Shaded(title, keys, shares, query if is_self else None, (f"most: {strongest}",))
