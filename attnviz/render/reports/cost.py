"""What a length costs, as a table, two charts and the fitted exponents.

What lives here: words and shapes. What does not: measuring (``runs.cost``), drawing (formats).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.render.shapes import Column, Document, Series, Shape, Table, Text

_LONG = 4096
NAMES = {"naive": "naive matrix", "fused": "fused kernel", "stream": "our stream"}


def view(facts: Mapping[str, Any]) -> Document:
    """Show a record of schema ``attnviz.cost/1``: every length doubles the one before."""
    rows: Sequence[Mapping[str, Any]] = facts["rows"]
    causal = ", causal" if facts["causal"] else ""
    title = (
        f"One head, d_k {facts['d_k']}, float32{causal} · {facts['device']} · "
        f"torch {facts['torch_version']}"
    )
    shapes: list[Shape] = [Text((title,), "title"), _table(rows)]
    shapes += [Text((_exponent_line(one),)) for one in facts["exponents"]]
    shapes.append(_chart(rows, "time", "seconds", "seconds", 1.0))
    if any(row["peak_bytes"] for row in rows):
        shapes.append(_chart(rows, "memory beyond q, k, v", "peak_bytes", "MB", 1e-6))
    return Document(tuple(shapes), dict(facts), title="cost", data=_data(rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    before: dict[str, float] = {}
    cells = []
    for row in rows:
        seconds, name = row["seconds"], row["method"]
        ratio = ""
        if seconds and before.get(name):
            ratio = f"×{seconds / before[name]:.1f}"
        if seconds:
            before[name] = seconds
        cells.append(
            (
                row["length"],
                NAMES[name],
                f"{row['operations']:.1e}",
                _megabytes(row["predicted_bytes"]),
                "left out" if seconds is None else _time(seconds),
                ratio,
                _megabytes(row["peak_bytes"]),
            )
        )
    columns = (
        Column("tokens", "int"),
        Column("way", "text"),
        Column("operations", "int"),
        Column("predicted", "int"),
        Column("time", "int"),
        Column("× before", "int"),
        Column("memory", "int"),
    )
    notes = (
        "predicted and measured memory: beyond q, k, v, with the output; every measurement in a "
        "fresh process, the best of up to 7 runs",
        "naive matrix: softmax(q·kᵀ/√d_k)·v as written; fused kernel: PyTorch's "
        "scaled_dot_product_attention; our stream: the output and every figure of attnviz summary",
    )
    return Table("cost", columns, tuple(cells), notes=notes, n_keys=2)


def _data(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = (
        "length",
        "method",
        "operations",
        "predicted_bytes",
        "seconds",
        "peak_bytes",
        "skipped",
    )
    columns = tuple(
        Column(name, "text" if name in ("method", "skipped") else "number") for name in names
    )
    return Table("cost", columns, tuple(tuple(row[name] for name in names) for row in rows))


def _exponent_line(one: Mapping[str, Any]) -> str:
    short = "" if one["first"] >= _LONG else "; too short a text to say: fixed costs rule"
    return (
        f"{one['what']} of {NAMES[one['method']]} grows as L^{one['power']:.2f} ± {one['error']:.2f} "
        f"({one['n_points']} lengths from {one['first']:,}{short})"
    )


def _chart(
    rows: Sequence[Mapping[str, Any]], title: str, field: str, unit: str, factor: float
) -> Series:
    lengths = sorted({row["length"] for row in rows})
    curves = {}
    for method, name in NAMES.items():
        found = {row["length"]: row[field] for row in rows if row["method"] == method}
        values = [found.get(length) for length in lengths]
        if any(values):
            curves[name] = np.array([np.nan if not v else v * factor for v in values])
    return Series(title, np.array(lengths), curves, "tokens", unit, log_axes=True)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _megabytes(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 1e6:,.1f} MB"
