"""PNG pictures: every drawable shape of a document, provenance as text chunks.

What lives here: the ending. What does not: drawing (``render.figure``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnviz.records import Trace
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".png",)
IS_BINARY = True
TELLS_NOTICES = True


def render(document: Document, screen: Screen, say: Callable[[str], None] | None = None) -> bytes:
    """Draw a document; ``say`` is told what could not be drawn as it is (a missing glyph)."""
    from attnviz.render.picture import figure

    picture = figure.draw(document, screen)
    if say is not None:
        for notice in picture.notices:
            say(notice)
    return figure.to_png(picture)


def plot(trace: Trace, ax: Any, stage: str) -> Any:
    """Draw a stage of a trace into matplotlib axes, or as a new Figure (``render.plot``)."""
    from attnviz.render.picture.plot import plot as draw

    return draw(trace, ax, stage)
