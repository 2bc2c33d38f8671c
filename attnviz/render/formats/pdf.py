"""PDF pictures: one embedded image and embedded fonts, no dates.

What lives here: the ending. What does not: drawing (``render.figure``).
"""

from __future__ import annotations

from collections.abc import Callable

from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".pdf",)
IS_BINARY = True
TELLS_NOTICES = True


def render(document: Document, screen: Screen, say: Callable[[str], None] | None = None) -> bytes:
    """Draw a document; ``say`` is told what could not be drawn as it is (a missing glyph)."""
    from attnviz.render.picture import figure

    picture = figure.draw(document, screen)
    if say is not None:
        for notice in picture.notices:
            say(notice)
    return figure.to_pdf(picture)
