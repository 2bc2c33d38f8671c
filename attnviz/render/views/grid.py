"""All layers and heads at a glance: a thumbnail each, layers down and heads across.

What lives here: their order. What does not: drawing (``formats``).
"""

from __future__ import annotations

from attnviz.records import Trace
from attnviz.render.overview import choice
from attnviz.render.shapes import Document, Heatmap
from attnviz.render.titles import title_of
from attnviz.render.views.heatmap import stage_panels
from attnviz.render.views.walk import headline

HEADS = "all"
"""Heads shown unless others are asked for."""


def view(trace: Trace) -> Document:
    """Show the weights of every layer and head of a trace as thumbnails on one scale."""
    shape = Heatmap(
        title_of(trace, "weights of every head"),
        stage_panels(trace, "weights"),
        (0.0, 1.0),
        n_columns=len(trace.heads),
        is_thumbnails=True,
    )
    return Document(
        (headline(trace), *choice(trace), shape), trace, title="grid", stages=("weights",)
    )
