"""Text without boxes and colour: aligned columns, for screen readers, logs and ``cut``.

What lives here: alignment. What does not: which cells there are (``render.text``).
"""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Links, Matrix, Series, Shape, Text
from attnviz.render.text import (
    Grid,
    column_blocks,
    links_table,
    matrix_grid,
    padded,
    series_table,
    table_grid,
    write_text,
)

SUFFIXES: tuple[str, ...] = ()
IS_BINARY = False


def render(document: Document, screen: Screen) -> str:
    """Write a document as aligned text."""
    return "".join(line + "\n" for shape in document.shapes for line in _lines(shape, screen))


def _lines(shape: Shape, screen: Screen) -> Iterator[str]:
    if isinstance(shape, Text):
        yield from _wrap(write_text(shape, screen), screen)
        return
    if isinstance(shape, Heatmap):
        from attnviz.render.terminal.reading import heatmap_sentences

        yield ""
        for sentence in heatmap_sentences(shape, screen):
            yield from _wrap(sentence, screen)
        return
    if isinstance(shape, Links):
        shape = links_table(shape)
    elif isinstance(shape, Series):
        shape = series_table(shape)
    grid = matrix_grid(shape, screen) if isinstance(shape, Matrix) else table_grid(shape, screen)
    yield ""
    yield from _wrap(screen.house(shape.title), screen)
    if shape.formula:
        yield from _wrap(screen.house(shape.formula), screen)
    for number, block in enumerate(column_blocks(grid, screen, gap=2, edge=0)):
        if number:
            yield ""
        yield from align(block)
    for note in shape.notes:
        yield from _wrap(screen.house(note), screen)


def align(grid: Grid) -> Iterator[str]:
    """Yield the lines of a grid, columns aligned by display width and two blanks apart."""
    for line in padded(grid)[1]:
        yield "  ".join(line).rstrip()


def _wrap(text: str, screen: Screen) -> list[str]:
    if screen.width is None:
        return [text]
    import textwrap

    return textwrap.wrap(text, max(20, screen.width), break_long_words=False) or [""]
