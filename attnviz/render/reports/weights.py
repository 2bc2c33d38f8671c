"""What a weight file holds, as tables: tensors and their meaning, sizes, metadata.

What lives here: ``attnviz weights show``. What does not: reading the file (``sources.weights``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnviz.render.shapes import Column, Document, Label, Shape, Table, Text


def view(facts: Mapping[str, Any], *, limits: str = "") -> Document:
    """Show the record that ``sources.weights.describe`` gives, and what the weights cannot show."""
    shapes: list[Shape] = [
        Text((Label(facts["name"]), f" · {facts['format']} · sha256 {facts['sha256']}"), "title"),
        Table(
            "tensors",
            (
                Column("name", "label"),
                Column("shape", "text"),
                Column("type", "text"),
                Column("bytes", "int"),
                Column("read as", "text"),
            ),
            tuple(
                (
                    Label(tensor["name"]),
                    " × ".join(map(str, tensor["shape"])) or "one number",
                    Label(tensor["dtype"]),
                    tensor["bytes"],
                    tensor["role"],
                )
                for tensor in facts["tensors"]
            ),
        ),
    ]
    for title, rows in (("sizes", facts["sizes"]), ("metadata", facts["metadata"])):
        if rows:
            cells = tuple((Label(name), Label(value)) for name, value in rows.items())
            shapes.append(Table(title, (Column("what", "label"), Column("value", "label")), cells))
    if facts["problem"]:
        shapes.append(Text(("not a layer: ", Label(facts["problem"])), "notice"))
    if limits:
        shapes.append(Text((limits,), "note"))
    return Document(tuple(shapes), facts, title="weights")
