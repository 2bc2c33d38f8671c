"""How spread each query's weights are: entropy in bits, per head and query.

What lives here: the shapes. What does not: the formula (``core.reference.entropy_bits``).
"""

from __future__ import annotations

import numpy as np

from attnviz.core.reference import entropy_bits
from attnviz.records import Array, Trace
from attnviz.render.overview import choice
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Series, Shape, Table
from attnviz.render.titles import title_of
from attnviz.render.views.heatmap import plain_labels
from attnviz.render.views.walk import headline

HEADS = "all"
_UNIFORM = "all visible keys alike"


def view(trace: Trace) -> Document:
    """Show H = −Σ w·log₂ w of each row: 0 bits looks at one key, log₂ n at n keys alike.

    One head is a curve beside the most it could be; several are a row each on one scale.
    """
    bits = np.stack([entropy_bits(np.asarray(layer)) for layer in trace.stages["weights"]])
    most = np.log2(np.maximum(1, np.asarray(trace.visible).sum(axis=-1)))
    shapes: tuple[Shape, ...]
    if bits.shape[0] * bits.shape[1] == 1:
        shapes = (_table(trace, bits[0, 0], most[0, 0]), _curve(trace, bits[0, 0], most[0, 0]))
    else:
        shapes = (_rows(trace, bits, float(most.max(initial=0.0))),)
    return Document(
        (headline(trace), *choice(trace), *shapes),
        trace,
        "entropy",
        ("weights",),
        data=_data(trace, bits, most),
    )


def _data(trace: Trace, bits: Array, most: Array) -> Table:
    columns = (
        Column("layer", "int"), Column("head", "int"), Column("query", "int"),
        Column("query_label", "label"), Column("bits"), Column("bits_at_most"),
    )  # fmt: skip
    rows = tuple(
        (trace.layers[i], trace.heads[j], row, Label(trace.tokens.labels[row]),
         float(bits[i, j, row]), float(most[i, j, row]))
        for i, j, row in np.ndindex(*bits.shape)
    )  # fmt: skip
    return Table("entropy", columns, rows)


def _curve(trace: Trace, bits: Array, most: Array) -> Series:
    return Series(
        title_of(trace, "entropy"),
        np.arange(len(bits)),
        {f"L{trace.layers[0]}.H{trace.heads[0]}": bits, _UNIFORM: most},
        "query",
        "bits",
        x_labels=plain_labels(trace.tokens),
        references=(_UNIFORM,),
    )


def _table(trace: Trace, bits: Array, most: Array) -> Table:
    rows = tuple(
        (i, Label(label), float(bits[i]), float(most[i]), float(2 ** bits[i]),
         float(bits[i] / most[i]) if most[i] > 0 else 0.0)
        for i, label in enumerate(trace.tokens.labels)
    )  # fmt: skip
    columns = (
        Column("#", "int"),
        Column("query", "label"),
        Column("bits"),
        Column("at most"),
        Column("like n keys"),
        Column("", "bar"),
    )
    return Table(
        title_of(trace, "entropy"),
        columns,
        rows,
        formula="H = −Σ w·log2 w; a query looks as widely as one that looks at 2^H keys alike",
        n_keys=2,
    )


def _rows(trace: Trace, bits: Array, most: float) -> Heatmap:
    heads = tuple(Label(f"L{layer}.H{head}") for layer in trace.layers for head in trace.heads)
    panel = Matrix(
        "entropy",
        bits.reshape(len(heads), -1),
        heads,
        plain_labels(trace.tokens),
        row_axis="head",
        column_axis="query",
    )
    return Heatmap(
        title_of(trace, "entropy"),
        (panel,),
        (0.0, most if most > 0 else 1.0),
        value_name="entropy",
        unit="bits",
        notes=("0 bits looks at one key; the end of the scale is all keys alike",),
    )
