"""One self-contained interactive page; ``_repr_html_`` and ``_repr_png_`` of a trace.

What lives here: which record becomes a page. What does not: the page itself (``render.page``).
"""

from __future__ import annotations

from attnviz.errors import UsageError
from attnviz.records import LayerStack, Trace
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".html", ".htm")
IS_BINARY = False


def render(document: Document, screen: Screen) -> str:
    """Write the layers and heads behind a document as an interactive page.

    Raises
    ------
    UsageError
        The document is no result with q and k.
    ResourceError
        The page would be too large.
    """
    from attnviz.render.page.build import build_page
    from attnviz.render.page.encode import stack_of

    record = document.record
    if isinstance(record, LayerStack):
        return build_page(record)
    if isinstance(record, Trace):
        return build_page(stack_of(record))
    raise UsageError("this result has no q and k to make a page of: choose .json, .csv or .md")


def notebook_html(trace: Trace) -> str | None:
    """Return what a notebook shows for a trace: see ``render.notebook``."""
    from attnviz.render.notebook import html_of

    return html_of(trace)


def notebook_png(trace: Trace) -> bytes | None:
    """Return what a notebook shows where it takes pictures only."""
    from attnviz.render.notebook import png_of

    return png_of(trace)
