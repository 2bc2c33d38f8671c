"""One query, the blog's own walk: q·k per key as a sum, ÷ √d_k, softmax, z as the blend.

What lives here: the tables of ``--token``. What does not: finding the token a word means
(``runs.explain``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnviz.core.measures.flow import HONEST
from attnviz.errors import UsageError
from attnviz.records import Trace
from attnviz.render import overview
from attnviz.render.shapes import Column, Document, Label, Shape, Table, Text
from attnviz.render.views import walk
from attnviz.rounding import by_size

_N_TERMS = 3


def view(trace: Trace, *, queries: Sequence[int]) -> Document:
    """Follow single queries from the dot product to z.

    Parameters
    ----------
    queries
        Positions of the tokens to follow.
    """
    if trace.source.kind == "given" and "scores" not in trace.stages:
        raise UsageError("the view zoom needs q and k: here are weights alone")
    if "scores" not in trace.stages:
        raise UsageError("--token follows one head at a time: choose --head N instead of mean")
    shapes: list[Shape] = [
        walk.headline(trace),
        *walk.origin_note(trace),
        *overview.shapes(trace),
        walk.token_table(trace.tokens, "Tokens"),
    ]
    for i in range(len(trace.layers)):
        for j in range(len(trace.heads)):
            for query in queries:
                shapes.extend(_follow(trace, i, j, query))
    shapes.append(Text((walk.checks_line(trace),), role="check"))
    return Document(tuple(shapes), trace, title="zoom")


def _follow(trace: Trace, i: int, j: int, query: int) -> Iterator[Shape]:
    where = walk.head_name(trace, i, j)
    name = Label(trace.tokens.labels[query])
    yield Text(("The query ", name, f" (token {query}{where})"), role="title")
    yield _dot_products(trace, i, j, query, where)
    yield _weights(trace, i, j, query, where)
    yield _blend(trace, i, j, query, where)
    yield from _sentence(trace, i, j, query)


def _dot_products(trace: Trace, i: int, j: int, query: int, where: str) -> Table:
    q_E = np.asarray(trace.stages["q"][i, j, query])
    k_SE = np.asarray(trace.stages["k"][i, j])
    terms_SE = q_E * k_SE
    n_terms = min(_N_TERMS, len(q_E))
    rows = []
    for key, largest in enumerate(by_size(np.abs(terms_SE), n_terms)):
        cells = [f"{terms_SE[key, e]:+.3f} [{e}]" for e in largest]
        rest = float(terms_SE[key].sum() - terms_SE[key, largest].sum())
        total = float(trace.stages["scores"][i, j, query, key])
        rows.append((key, Label(trace.keys.labels[key]), *cells, rest, total))
    columns = (
        Column("#", "int"),
        Column("key", "label"),
        *(Column(f"{_ORDINALS[n]} term", "text") for n in range(n_terms)),
        Column(f"other {len(q_E) - n_terms}"),
        Column("score"),
    )
    return Table(
        "q·k, the dot product as a sum" + where,
        columns,
        tuple(rows),
        formula=f"score = Σ q[e]·k[e] over {len(q_E)} dimensions; the largest terms with their [e]",
        n_keys=2,
    )


_ORDINALS = ("1st", "2nd", "3rd")


def _weights(trace: Trace, i: int, j: int, query: int, where: str) -> Table:
    stages = trace.stages
    names = [n for n in ("scores", "scaled", "bias", "capped", "masked") if n in stages]
    if bool(trace.visible[i, j, query].all()):
        names.remove("masked")
    weights = np.asarray(stages["weights"][i, j, query])
    rows = tuple(
        (
            key,
            Label(trace.keys.labels[key]),
            *(float(stages[n][i, j, query, key]) for n in names),
            float(weights[key]),
            float(weights[key]),
            float(weights[key]),
        )
        for key in range(len(weights))
    )
    columns = (
        Column("#", "int"),
        Column("key", "label"),
        *(Column({"scores": "score"}.get(n, n)) for n in names),
        Column("weight"),
        Column("per cent", "percent"),
        Column("share", "bar"),
    )
    d_k = stages["q"].shape[-1]
    return Table(
        "from score to weight" + where,
        columns,
        rows,
        formula=walk.scale_formula(trace.scale[i], d_k) + "; weights = softmax, 100 % in all",
        n_keys=2,
    )


def _blend(trace: Trace, i: int, j: int, query: int, where: str) -> Table:
    """z = Σ weight·v: each token's share, the length it brings, and how much of it lies along z."""
    weights = np.asarray(trace.stages["weights"][i, j, query])
    v_SF = np.asarray(trace.stages["v"][i, j])
    z_F = np.asarray(trace.stages["output"][i, j, query])
    length = float(np.sqrt(z_F @ z_F))
    norms = None if trace.value_norms is None else np.asarray(trace.value_norms[i, j])
    brought_SF = weights[:, None] * np.where(weights[:, None] > 0, v_SF, 0.0)
    along_S = brought_SF @ z_F / length if length > 0 else np.zeros(len(weights))
    rows = tuple(
        (
            key,
            Label(trace.keys.labels[key]),
            float(weights[key]),
            float(np.sqrt(v_SF[key] @ v_SF[key])),
            float(np.sqrt(brought_SF[key] @ brought_SF[key])),
            *(() if norms is None else (float(weights[key] * norms[key]),)),
            float(along_S[key]),
            float(along_S[key] / length) if length > 0 else 0.0,
        )
        for key in range(len(weights))
    )
    columns = (
        Column("#", "int"),
        Column("value", "label"),
        Column("weight", "percent"),
        Column("‖v‖"),
        Column("‖weight·v‖"),
        *(() if norms is None else (Column("‖weight·v·W_O‖"),)),
        Column("along z"),
        Column("of ‖z‖", "percent"),
    )
    return Table(
        "z as the blend of the values" + where,
        columns,
        rows,
        formula=f"z = Σ weightⱼ·vⱼ, ‖z‖ = {length:.4f}; along z = weightⱼ·vⱼ·z/‖z‖ sums to ‖z‖",
        notes=("A negative share pulls z back: that value points away from the blend.", HONEST),
        n_keys=2,
    )


def _sentence(trace: Trace, i: int, j: int, query: int) -> Iterator[Text]:
    sentences = list(walk.look_sentences(trace, i, j))
    if query < len(sentences):
        yield sentences[query]
