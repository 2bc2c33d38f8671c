"""One walk over a document for all formats that write text: paragraphs, and titled grids of cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnviz.render.screen import Screen
from attnviz.render.shapes import Heatmap, Links, Matrix, Series, Shaded, Shape, Text
from attnviz.render.text import (
    Grid,
    links_table,
    matrix_grid,
    panels_of,
    series_table,
    shaded_text,
    table_grid,
    write_text,
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Words, the labels in them made visible."""

    text: str
    role: str


@dataclass(frozen=True, slots=True)
class Block:
    """A grid of cells under its title, in characters that the screen can show."""

    title: str
    formula: str
    grid: Grid
    notes: tuple[str, ...]


def blocks(shape: Shape, screen: Screen) -> Iterator[Paragraph | Block]:
    """Yield a shape as text; heatmaps, links and curves as the numbers behind them."""
    if isinstance(shape, Text):
        yield Paragraph(write_text(shape, screen), shape.role)
        return
    if isinstance(shape, Heatmap):
        for panel in panels_of(shape):
            yield from blocks(panel, screen)
        return
    if isinstance(shape, Shaded):
        yield Paragraph(screen.house(shape.title), "title")
        yield Paragraph(shaded_text(shape, screen), "plain")
        yield from (Paragraph(screen.house(note), "note") for note in shape.notes)
        return
    if isinstance(shape, Links):
        shape = links_table(shape)
    elif isinstance(shape, Series):
        shape = series_table(shape)
    grid = matrix_grid(shape, screen) if isinstance(shape, Matrix) else table_grid(shape, screen)
    notes = tuple(map(screen.house, shape.notes))
    yield Block(screen.house(shape.title), screen.house(shape.formula), grid, notes)
