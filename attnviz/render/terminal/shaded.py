"""A text for a terminal, every token on a ground of its share."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len

from attnviz.render.colors import color_of, ink_on
from attnviz.render.screen import Screen
from attnviz.render.shapes import Shaded
from attnviz.render.terminal.heatmap import PIPE_WIDTH, Line, Piece
from attnviz.render.tokens import fit


def shaded_lines(shape: Shaded, screen: Screen) -> Iterator[Line]:
    """Yield the tokens in lines that fit the screen, then the strongest with their per cent.

    The token that is asked about stands in brackets: colour alone says nothing to some readers.
    """
    width = screen.width or PIPE_WIDTH
    name = screen.paper.colormap or "weights"
    line: Line = []
    used = 0
    for place, (label, share) in enumerate(zip(shape.tokens, shape.shares, strict=True)):
        text = fit(screen.label(label), width - 2)
        text = f"[{text}]" if place == shape.marked else text
        paper = color_of(float(share / shape.top), name)
        room = cell_len(text) + bool(line)
        if line and used + room > width:
            yield line
            line, used, room = [], 0, cell_len(text)
        if line:
            line.append(Piece(" "))
        line.append(Piece(text, ink_on(paper), paper))
        used += room
    yield line
    for note in shape.notes:
        yield [Piece(fit(screen.house(note), width), is_dim=True)]
