"""One score taken apart: q, k and q∘k by dimension, for one query and one key.

What lives here: which dimensions are shown and in what order. What does not: drawing (``formats``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Trace
from attnviz.render.overview import choice
from attnviz.render.pooling import symmetric_limits
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Series, Shape, Table
from attnviz.render.titles import tail_of
from attnviz.render.tokens import visible
from attnviz.render.views.walk import headline
from attnviz.rounding import by_size, largest

_N_LARGEST = 12
DATA_COLUMNS = (
    Column("layer", "int"), Column("head", "int"), Column("query", "int"),
    Column("query_label", "label"), Column("key", "int"), Column("key_label", "label"),
    Column("dimension", "int"), Column("q"), Column("k"), Column("q_times_k"),
)  # fmt: skip


def view(trace: Trace, *, queries: Sequence[int] = (), keys: Sequence[int] = ()) -> Document:
    """Show which dimensions made a score: score = Σ q[e]·k[e].

    Parameters
    ----------
    trace
        A dense trace with q and k.
    queries
        Position of the query; the last token where none is given.
    keys
        Position of the key; where none is given, the one this query looks at most.

    Raises
    ------
    UsageError
        More than one query or key, or a mean of heads, whose q and k have no common meaning.
    """
    if trace.source.kind == "given" and "q" not in trace.stages:
        raise UsageError("the view neuron needs q and k: here are weights alone")
    if "q" not in trace.stages:
        raise UsageError("q and k belong to one head: choose --head N instead of mean")
    if len(queries) > 1 or len(keys) > 1:
        raise UsageError("the neuron view shows one pair: give one --token and one --key")
    query = queries[0] if queries else len(trace.tokens) - 1
    shapes: list[Shape] = [headline(trace), *choice(trace)]
    rows: list[tuple[Any, ...]] = []
    for i in range(len(trace.layers)):
        for j in range(len(trace.heads)):
            weights = np.asarray(trace.stages["weights"][i, j, query])
            key = keys[0] if keys else int(largest(weights))
            shapes.extend(_pair(trace, i, j, query, key))
            rows.extend(_dimensions(trace, i, j, query, key))
    data = Table("neuron", DATA_COLUMNS, tuple(rows))
    return Document(tuple(shapes), trace, title="neuron", stages=("q", "k"), data=data)


def _dimensions(
    trace: Trace, i: int, j: int, query: int, key: int
) -> Iterator[tuple[int | str | float, ...]]:
    names = Label(trace.tokens.labels[query]), Label(trace.keys.labels[key])
    q_E, k_E = (np.asarray(trace.stages[n][i, j, p]) for n, p in (("q", query), ("k", key)))
    for e, (a, b) in enumerate(zip(q_E.tolist(), k_E.tolist(), strict=True)):
        where = (trace.layers[i], trace.heads[j], query, names[0], key, names[1])
        yield (*where, e, a, b, a * b)


def _pair(trace: Trace, i: int, j: int, query: int, key: int) -> Iterator[Shape]:
    q_E = np.asarray(trace.stages["q"][i, j, query])
    k_E = np.asarray(trace.stages["k"][i, j, key])
    terms_E = q_E * k_E
    score = float(trace.stages["scores"][i, j, query, key])
    weight = float(trace.stages["weights"][i, j, query, key])
    names = visible(trace.tokens.labels[query]), visible(trace.keys.labels[key])
    where = f"L{trace.layers[i]}.H{trace.heads[j]}"
    strips = Matrix(
        where,
        np.stack([q_E, k_E]),
        (Label(f"q {trace.tokens.labels[query]}"), Label(f"k {trace.keys.labels[key]}")),
        scale="diverging",
        row_axis="vector",
        column_axis="dimension",
    )
    yield Heatmap(
        f"q of {query}:{names[0]} and k of {key}:{names[1]} · {where} · {tail_of(trace)}",
        (strips,),
        symmetric_limits((strips,)),
        value_name="value",
        scale="diverging",
    )
    yield Series(
        f"q∘k by dimension: the sum is the score {score:.4f}, weight {100 * weight:.1f} %".replace(
            "-", "−"
        ),
        np.arange(len(terms_E)),
        {"q[e]·k[e]": terms_E},
        "dimension",
        "q·k",
        style="bar",
    )
    strongest = by_size(np.abs(terms_E), _N_LARGEST)
    size = float(np.abs(terms_E).sum()) or 1.0
    yield Table(
        f"the {len(strongest)} largest of {len(terms_E)} dimensions",
        (Column("dimension", "int"), Column("q"), Column("k"), Column("q·k"),
         Column("size", "bar"), Column("of all |q·k|", "percent")),
        tuple((int(e), float(q_E[e]), float(k_E[e]), float(terms_E[e]),
               float(abs(terms_E[e]) / np.abs(terms_E).max(initial=1e-300)),
               float(abs(terms_E[e]) / size))
              for e in strongest),
    )  # fmt: skip
