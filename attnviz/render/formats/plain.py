"""Text without boxes and colour: aligned columns, for screen readers, logs and ``cut``.

What lives here: alignment. What does not: which cells there are (``render.text``).
"""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.render.formats._blocks import Paragraph, blocks
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Shape
from attnviz.render.text import Grid, column_blocks, padded

SUFFIXES: tuple[str, ...] = ()
IS_BINARY = False


def render(document: Document, screen: Screen) -> str:
    """Write a document as aligned text."""
    return "".join(line + "\n" for shape in document.shapes for line in _lines(shape, screen))


def _lines(shape: Shape, screen: Screen) -> Iterator[str]:
    if isinstance(shape, Heatmap):
        from attnviz.render.terminal.reading import heatmap_sentences

        yield ""
        for sentence in heatmap_sentences(shape, screen):
            yield from _wrap(sentence, screen)
        return
    for block in blocks(shape, screen):
        if isinstance(block, Paragraph):
            yield from _wrap(block.text, screen)
            continue
        yield ""
        yield from _wrap(block.title, screen)
        if block.formula:
            yield from _wrap(block.formula, screen)
        for number, part in enumerate(column_blocks(block.grid, screen, gap=2, edge=0)):
            if number:
                yield ""
            yield from align(part)
        for note in block.notes:
            yield from _wrap(note, screen)


def align(grid: Grid) -> Iterator[str]:
    """Yield the lines of a grid, columns aligned by display width and two blanks apart."""
    for line in padded(grid)[1]:
        yield "  ".join(line).rstrip()


def _wrap(text: str, screen: Screen) -> list[str]:
    if screen.width is None:
        return [text]
    import textwrap

    return textwrap.wrap(text, max(20, screen.width), break_long_words=False) or [""]
