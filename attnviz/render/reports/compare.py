"""Two runs side by side: cosines, divergence, weights aligned, and what made the difference.

What lives here: tables and words. What does not: the measures (``core.compare``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.core.measures.compare import Comparison
from attnviz.core.measures.flow import HONEST
from attnviz.records import Tokens
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Shape, Table, Text
from attnviz.render.titles import name_of, sentence_of, what_if
from attnviz.render.tokens import visible
from attnviz.render.views.walk import checks_line, headline
from attnviz.rounding import by_size, largest

N_CELLS = 10
N_HEADS = 12
DATA_COLUMNS = (
    Column("layer", "int"), Column("head", "int"), Column("query_a", "int"), Column("query_b", "int"),
    Column("query_label", "label"), Column("key_a", "int"), Column("key_a_label", "label"),
    Column("key_b", "int"), Column("key_b_label", "label"), Column("weight_a"), Column("weight_b"),
    Column("difference"), Column("row_bits"), Column("row_z_cosine"), Column("row_x_cosine"),
    Column("share_of_z_change"),
)  # fmt: skip


def view(comparison: Comparison) -> Document:
    """Show how two sides differ: per row, per key, per head, the largest cells, and as a picture."""
    c = comparison
    n_heads = c.bits.shape[0] * c.bits.shape[1]
    shapes: list[Shape] = [headline(c), *_sides(c)]
    if n_heads > 1:
        shapes.append(_by_head(c))
    else:
        shapes.append(_by_row(c))
        if len(c.rows) == 1:
            shapes.append(_by_key(c))
            shapes.extend(_in_words(c))
    if len(c.rows) > 1 or n_heads > 1:
        shapes.append(_largest_cells(c))
    shapes.append(_picture(c))
    shapes.append(Text((HONEST,), role="note"))
    for name, trace in zip(c.names, (c.a, c.b), strict=True):
        shapes.append(Text((Label(name), " ", checks_line(trace)), role="check"))
    return Document(tuple(shapes), comparison, title="compare", data=_data(c))


def _sides(c: Comparison) -> Iterator[Text]:
    for name, trace in zip(c.names, (c.a, c.b), strict=True):
        changed = "".join(f" · {word}" for word in what_if(trace.run.overrides))
        yield Text((Label(name), ": ", Label(trace.tokens.text), changed), role="plain")
        if trace.source != c.a.source:
            yield headline(trace)


def _place(c: Comparison, i: int, j: int) -> str:
    names = [f"L{t.layers[i]}.H{t.heads[j]}" for t in (c.a, c.b)]
    return names[0] if names[0] == names[1] else f"{names[0]} | {names[1]}"


def _by_row(c: Comparison) -> Table:
    rows = []
    for n, (i, j) in enumerate(c.rows):
        rows.append((
            Label(c.a.tokens.labels[i]), i, j,
            _number(None if c.x_cosine is None else c.x_cosine[0, n]),
            _number(None if c.z_cosine is None else c.z_cosine[0, 0, n]),
            float(c.bits[0, 0, n]),
        ))  # fmt: skip
    columns = (
        Column("token", "label"), Column(Label(f"in {c.names[0]}"), "int"),
        Column(Label(f"in {c.names[1]}"), "int"), Column("cosine of x"), Column("cosine of z"),
        Column("bits"),
    )  # fmt: skip
    return Table(
        f"before and after attention · {_place(c, 0, 0)}",
        columns,
        tuple(rows),
        formula="x goes in, z comes out; bits: Jensen-Shannon divergence of the two rows of "
        "weights, 0 equal, 1 nothing in common",
    )


def _by_key(c: Comparison) -> Table:
    a, b = c.weights_a[0, 0, 0], c.weights_b[0, 0, 0]
    order = by_size(np.maximum(a, b), 40)
    rows = []
    for n in order:
        left, right = c.key_pairs[n]
        rows.append((
            _key_label(c, int(n), 0),
            "" if left is None else float(a[n]),
            "" if right is None else float(b[n]),
            float(b[n] - a[n]),
            "" if c.blame is None else float(c.blame[0, 0, 0, n]),
        ))  # fmt: skip
    columns = (
        Column("key", "label"), Column(Label(f"weight in {c.names[0]}")),
        Column(Label(f"weight in {c.names[1]}")), Column("difference"),
        Column("of the change of z", "percent"),
    )  # fmt: skip
    return Table(
        "where it looks, side by side",
        columns,
        tuple(rows),
        formula="of the change of z: each key's part of z_B − z_A along it, 100 % in all",
    )


def _in_words(c: Comparison) -> Iterator[Text]:
    i = c.rows[0][0]
    word = Label(c.a.tokens.labels[i])
    if c.x_cosine is not None and c.z_cosine is not None:
        yield Text((
            '"', word, f'" goes in with a cosine of {c.x_cosine[0, 0]:.4f} between the sides and '
            f"comes out with {c.z_cosine[0, 0, 0]:.4f}.",
        ))  # fmt: skip
    if c.blame is None:
        return
    shares = c.blame[0, 0, 0]
    best = [n for n in by_size(shares, 2) if shares[n] > 0.05]
    if best:
        parts: list[str | Label] = ["The difference of z comes from "]
        for place, n in enumerate(best):
            side = 0 if c.weights_a[0, 0, 0, n] > c.weights_b[0, 0, 0, n] else 1
            parts += [" and " if place else "", '"', _key_label(c, int(n), side),
                      f'" in {c.names[side]} ({100 * shares[n]:.0f} %)']  # fmt: skip
        yield Text((*parts, "."))


def _key_label(c: Comparison, n: int, side: int) -> Label:
    place = c.key_pairs[n][side]
    other = c.key_pairs[n][1 - side]
    tokens: tuple[Tokens, Tokens] = (c.a.keys, c.b.keys)
    if place is None:
        return Label("" if other is None else tokens[1 - side].labels[other])
    label = tokens[side].labels[place]
    if other is not None and tokens[1 - side].labels[other].casefold() != label.casefold():
        return Label(f"{label} | {tokens[1 - side].labels[other]}")  # aligned by position
    return Label(label)


def _by_head(c: Comparison) -> Table:
    means = c.bits.mean(axis=-1)
    order = by_size(means.ravel(), N_HEADS)
    rows = []
    for rank in order:
        i, j = divmod(int(rank), means.shape[1])
        worst = int(largest(c.bits[i, j]))
        rows.append((
            _place(c, i, j), float(means[i, j]), float(c.bits[i, j, worst]),
            Label(c.a.tokens.labels[c.rows[worst][0]]),
            _number(None if c.z_cosine is None else float(c.z_cosine[i, j].mean())),
        ))  # fmt: skip
    total = means.size
    return Table(
        "heads that differ most" + (f", {len(rows)} of {total}" if total > len(rows) else ""),
        (Column("head", "text"), Column("mean bits"), Column("largest"), Column("at", "label"),
         Column("mean cosine of z")),
        tuple(rows),
        formula="bits: Jensen-Shannon divergence of two rows of weights, mean over the rows",
    )  # fmt: skip


def _largest_cells(c: Comparison) -> Table:
    change = c.weights_b - c.weights_a
    flat = by_size(abs(change).ravel(), N_CELLS)
    rows = []
    for n in flat:
        i, j, row, column = np.unravel_index(int(n), change.shape)
        rows.append((
            _place(c, int(i), int(j)), Label(c.a.tokens.labels[c.rows[row][0]]),
            _key_label(c, int(column), 0), float(c.weights_a[i, j, row, column]),
            float(c.weights_b[i, j, row, column]), float(change[i, j, row, column]),
        ))  # fmt: skip
    return Table(
        "cells that changed most",
        (Column("head", "text"), Column("query", "label"), Column("key", "label"),
         Column(Label(c.names[0])), Column(Label(c.names[1])), Column("difference")),
        tuple(rows),
        n_keys=3,
    )  # fmt: skip


def _picture(c: Comparison) -> Heatmap:
    change = c.weights_b - c.weights_a
    size = float(abs(change).max(initial=0.0)) or 1.0
    rows = tuple(Label(c.a.tokens.labels[i]) for i, _ in c.rows)
    columns = tuple(_key_label(c, n, 0) for n in range(len(c.key_pairs)))
    panels = tuple(
        Matrix(_place(c, i, j), change[i, j], rows, columns, scale="diverging")
        for i, j in np.ndindex(change.shape[:2])
    )
    sides = [[name_of(t.source), *what_if(t.run.overrides)] for t in (c.b, c.a)]
    sentences = [sentence_of(t.tokens.text) for t in (c.b, c.a)]
    if sides[0] != sides[1]:
        sentences = [" · ".join((*side, own)) for side, own in zip(sides, sentences, strict=True)]
    shared = sides[0] if sides[0] == sides[1] else []
    told = " · ".join((*shared, " − ".join(dict.fromkeys(sentences))))
    return Heatmap(
        f"weights of {visible(c.names[1])} − {visible(c.names[0])} · {told}",
        panels,
        (-size, size),
        value_name="difference of weight",
        scale="diverging",
        is_thumbnails=len(panels) > 12,
        n_columns=change.shape[1] if change.shape[0] > 1 else 0,
    )


def _number(value: float | None) -> float | str:
    return "" if value is None or not np.isfinite(value) else float(value)


def _data(c: Comparison) -> Table:
    rows = []
    for i, j, row, n in np.ndindex(c.weights_a.shape):
        left, right = c.key_pairs[n]
        query_a, query_b = c.rows[row]
        rows.append((
            c.a.layers[i], c.a.heads[j], query_a, query_b, Label(c.a.tokens.labels[query_a]),
            left, None if left is None else Label(c.a.keys.labels[left]),
            right, None if right is None else Label(c.b.keys.labels[right]),
            float(c.weights_a[i, j, row, n]), float(c.weights_b[i, j, row, n]),
            float(c.weights_b[i, j, row, n] - c.weights_a[i, j, row, n]),
            float(c.bits[i, j, row]),
            None if c.z_cosine is None else _finite(c.z_cosine[i, j, row]),
            None if c.x_cosine is None else _finite(c.x_cosine[i, row]),
            None if c.blame is None else float(c.blame[i, j, row, n]),
        ))  # fmt: skip
    return Table("compare", DATA_COLUMNS, tuple(rows))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
