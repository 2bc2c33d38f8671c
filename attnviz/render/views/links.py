"""Lines from queries to keys: each query's strongest links.

What lives here: which links are shown. What does not: lines (``formats``).
"""

from __future__ import annotations

import numpy as np

from attnviz.records import Array, Trace
from attnviz.render.overview import choice
from attnviz.render.shapes import Column, Document, Label, Links, Table
from attnviz.render.titles import title_of
from attnviz.render.views.heatmap import plain_labels
from attnviz.render.views.walk import headline
from attnviz.rounding import by_size

PER_QUERY = 5
LEAST = 0.02
MOST = 1500
DATA_COLUMNS = (
    Column("layer", "int"), Column("head", "int"), Column("query", "int"),
    Column("query_label", "label"), Column("key", "int"), Column("key_label", "label"),
    Column("weight"), Column("value_norm"),
)  # fmt: skip


def view(trace: Trace) -> Document:
    """Show where each query of each head looks, the strongest links only.

    At most 5 links per query, of at least 0.02, and 1,500 in all; the view says how many of
    the links these are and how much weight they carry.
    """
    shapes = tuple(
        _links(trace, i, j) for i in range(len(trace.layers)) for j in range(len(trace.heads))
    )
    rows = tuple(
        (trace.layers[i], trace.heads[j], query, Label(trace.tokens.labels[query]),
         key, Label(trace.keys.labels[key]), weight, _carried(trace, i, j, key, weight))
        for (i, j), shape in zip(np.ndindex(len(trace.layers), len(trace.heads)), shapes, strict=True)
        for query, key, weight in shape.links
    )  # fmt: skip
    return Document(
        (headline(trace), *choice(trace), *shapes),
        trace,
        title="links",
        stages=("weights",),
        data=Table("links", DATA_COLUMNS, rows),
    )


def _carried(trace: Trace, i: int, j: int, key: int, weight: float) -> float | None:
    """Return ‖α·v·W_O‖ of a link, where the source has W_O."""
    if trace.value_norms is None:
        return None
    return weight * float(np.asarray(trace.value_norms)[i, j, key])


def _links(trace: Trace, i: int, j: int) -> Links:
    weights = np.asarray(trace.stages["weights"][i, j])
    chosen = strongest(weights)
    is_one = len(trace.layers) * len(trace.heads) == 1
    where = f"L{trace.layers[i]}.H{trace.heads[j]}"
    total = float(weights.sum())
    share = sum(w for _, _, w in chosen) / total if total else 1.0
    note = (
        f"{len(chosen)} links of at least {LEAST:g}, at most {PER_QUERY} for a query: "
        f"{100 * share:.0f} % of all weight"
    )
    return Links(
        title_of(trace, "links") if is_one else where,
        plain_labels(trace.tokens),
        plain_labels(trace.keys),
        chosen,
        notes=(note if is_one else f"{where}: {note}",),
    )


def strongest(weights: Array) -> tuple[tuple[int, int, float], ...]:
    """Return (query, key, weight) of each row's strongest links, strongest first.

    Parameters
    ----------
    weights : (L, S) float, at least 0

    Examples
    --------
    >>> strongest(np.array([[0.9, 0.1], [0.01, 0.0]]))
    ((0, 0, 0.9), (0, 1, 0.1))
    """
    top = by_size(weights, PER_QUERY)
    rows = np.repeat(np.arange(len(weights)), top.shape[1])
    found = weights[rows, top.ravel()]
    order = by_size(found, MOST)
    return tuple(
        (int(rows[n]), int(top.ravel()[n]), float(found[n])) for n in order if found[n] >= LEAST
    )
