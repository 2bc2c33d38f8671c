"""Attention rollout: how much of each first-layer token is in each last-layer one.

What lives here: the map and the largest sources. What does not: the product (``core.flow``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.core.measures.flow import HONEST, RolloutRows, rollout
from attnviz.errors import UsageError
from attnviz.records import Tokens, Trace
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Shape, Table, Text
from attnviz.render.titles import tail_of
from attnviz.render.tokens import visible
from attnviz.render.views.heatmap import plain_labels
from attnviz.render.views.walk import checks_line, headline
from attnviz.rounding import by_size

HEADS = "all"
LAYERS = "all"
N_SOURCES = 8
DATA_COLUMNS = (
    Column("query", "int"), Column("query_label", "label"), Column("key", "int"),
    Column("key_label", "label"), Column("flow"),
)  # fmt: skip


def view(trace: Trace, *, queries: Sequence[int] = ()) -> Document:
    """Multiply all layers' maps, each the mean of its heads mixed half and half with the residual.

    Parameters
    ----------
    queries
        List the largest sources of these tokens.

    Raises
    ------
    UsageError
        Not all layers and heads, or queries that are not the keys.
    """
    n_layers, n_heads = trace.source.n_layers, trace.source.n_heads
    if trace.key_tokens is not None or len(trace.heads) != n_heads or trace.heads == ("mean",):
        raise UsageError("rollout is about self attention and all heads: leave out --head")
    if trace.source.is_model and len(trace.layers) != n_layers:
        raise UsageError(
            f"rollout multiplies the attention of all {n_layers} layers, {len(trace.layers)} are here: "
            "leave out --layer; a hybrid has none, as its other layers mix tokens without attention"
        )
    flow = rollout(list(np.asarray(trace.stages["weights"])))
    labels = plain_labels(trace.tokens)
    panel = Matrix("rollout", flow, labels, labels, scale="weights",
                   row_axis="last layer", column_axis="first layer")  # fmt: skip
    shapes: list[Shape] = [headline(trace)]
    shapes.extend(_sources(trace.tokens, flow[query], query) for query in queries)
    shapes.append(
        Heatmap(
            f"rollout over {len(trace.layers)} layers · {tail_of(trace)}",
            (panel,),
            (0.0, 1.0),
            value_name="share",
            notes=("each layer: half the mean of its heads, half the token itself; multiplied",),
        )
    )
    shapes.append(Text((HONEST,), role="note"))
    shapes.append(Text((checks_line(trace),), role="check"))
    return Document(tuple(shapes), trace, "rollout", ("weights",), data=_data(trace, flow))


def view_rows(found: RolloutRows) -> Document:
    """Show the largest sources of some tokens of a text of any length."""
    shapes: list[Shape] = [headline(found)]
    shapes.extend(
        _sources(found.tokens, row, query)
        for query, row in zip(found.queries, found.flow, strict=True)
    )
    shapes.append(Text((HONEST,), role="note"))
    labels = found.tokens.labels
    rows = tuple(
        (query, Label(labels[query]), j, Label(labels[j]), float(row[j]))
        for query, row in zip(found.queries, found.flow, strict=True)
        for j in range(len(labels))
    )
    return Document(tuple(shapes), found, "rollout", data=Table("rollout", DATA_COLUMNS, rows))


def _sources(
    tokens: Tokens, row: np.ndarray[tuple[int], np.dtype[np.float64]], query: int
) -> Table:
    best = by_size(row, N_SOURCES)
    return Table(
        "what flowed into the last layer's token",
        (Column("#", "int"), Column("first layer", "label"), Column("share", "percent"),
         Column("", "bar")),
        tuple((int(k), Label(tokens.labels[k]), float(row[k]), float(row[k])) for k in best),
        formula=f"token {query}:{visible(tokens.labels[query])}; all sources make 100 %",
        n_keys=2,
    )  # fmt: skip


def _data(trace: Trace, flow: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Table:
    labels = trace.tokens.labels
    rows = tuple(
        (i, Label(labels[i]), j, Label(labels[j]), float(flow[i, j]))
        for i, j in np.ndindex(*flow.shape)
    )
    return Table("rollout", DATA_COLUMNS, rows)
