"""What a model wrote, token by token, and where each new token looked.

What lives here: the rows. What does not: writing or attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.core.measures.flow import HONEST
from attnviz.core.reference import entropy_bits
from attnviz.records import Trace
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Table, Text
from attnviz.render.titles import title_of
from attnviz.render.views.heatmap import plain_labels
from attnviz.render.views.walk import checks_line, headline
from attnviz.rounding import by_size

if TYPE_CHECKING:
    from collections.abc import Sequence

N_KEYS = 3
DATA_COLUMNS = (
    Column("layer", "int"), Column("head", "int"), Column("token", "int"), Column("token_id", "int"),
    Column("token_label", "label"), Column("query", "int"), Column("query_label", "label"),
    Column("key", "int"), Column("key_label", "label"), Column("weight"),
)  # fmt: skip


def view(whole: Trace, *, n_prompt: int, written: str) -> Document:
    """Show a row per written token, then the whole map, the prompt's rows included.

    Parameters
    ----------
    whole
        One layer and head over prompt and written text.
    n_prompt
        Tokens of the prompt; the row behind the first written token is the prompt's last query.
    """
    new = range(n_prompt, len(whole.tokens))
    shapes = (
        headline(whole),
        Text(("the model wrote: ", Label(written)), role="plain"),
        _rows(whole, new),
        _map(whole, n_prompt),
        Text((HONEST,), role="note"),
        Text((checks_line(whole),), role="check"),
    )
    return Document(shapes, whole, title="generate", stages=("weights",), data=_data(whole, new))


def _rows(trace: Trace, new: Sequence[int]) -> Table:
    weights = np.asarray(trace.stages["weights"][0, 0])
    rows = []
    for place in new:
        row = weights[place - 1]
        best = by_size(row, min(N_KEYS, place))
        cells: list[Any] = []
        for n in range(N_KEYS):
            cells += (
                [Label(trace.tokens.labels[best[n]]), float(row[best[n]])]
                if n < len(best)
                else ["", ""]
            )
        rows.append((
            place, Label(trace.tokens.labels[place]), Label(trace.tokens.labels[place - 1]), *cells,
            float(entropy_bits(row[None])[0]),
        ))  # fmt: skip
    ordinals = ("1st", "2nd", "3rd")
    columns = (
        Column("#", "int"), Column("wrote", "label"), Column("from query", "label"),
        *(c for o in ordinals for c in (Column(f"{o} key", "label"), Column(f"{o}", "percent"))),
        Column("bits"),
    )  # fmt: skip
    return Table(
        f"where it looked · L{trace.layers[0]}.H{trace.heads[0]}",
        columns,
        tuple(rows),
        formula="a token is written from the query before it: that query's largest weights",
        n_keys=2,
    )


def _map(trace: Trace, n_prompt: int) -> Heatmap:
    labels = plain_labels(trace.tokens)
    hidden = ~np.asarray(trace.visible[0, 0], bool)
    panel = Matrix(
        "weights",
        np.asarray(trace.stages["weights"][0, 0]),
        labels,
        labels,
        hidden=hidden if hidden.any() else None,
        scale="weights",
    )
    return Heatmap(
        title_of(trace, "weights"),
        (panel,),
        (0.0, 1.0),
        notes=(f"the prompt is tokens 0 to {n_prompt - 1}; the rest was written",),
    )


def _data(trace: Trace, new: Sequence[int]) -> Table:
    weights = np.asarray(trace.stages["weights"][0, 0])
    labels, ids = trace.tokens.labels, trace.tokens.ids
    rows = tuple(
        (trace.layers[0], trace.heads[0], place, ids[place], Label(labels[place]),
         place - 1, Label(labels[place - 1]), key, Label(labels[key]), float(weights[place - 1, key]))
        for place in new
        for key in range(place)
    )  # fmt: skip
    return Table("generate", DATA_COLUMNS, rows)
