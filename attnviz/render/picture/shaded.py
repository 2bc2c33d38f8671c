"""A text as a picture: its tokens in lines, each on a ground of its share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from unicodedata import east_asian_width

from matplotlib.axes import Axes

from attnviz.render.colors import color_of, ink_on
from attnviz.render.picture.draw import INK, Pen
from attnviz.render.shapes import Shaded
from attnviz.render.tokens import visible

WIDTH_PT, LINE_PT, SIZE_PT = 468.0, 21.0, 11.0
_LONGEST = 40
_GAP_PT = 7.0


def shaded_height(shape: Shaded) -> float:
    """Return how many points high the lines of a text are."""
    return LINE_PT * (1 + max(y for _, _, y, _ in _placed(shape)))


def draw_shaded(shape: Shaded, ax: Axes, pen: Pen) -> None:
    """Write the tokens from left to right and top to bottom; the one asked about has a frame."""
    name = pen.colormap or "weights"
    n_lines = round(shaded_height(shape) / LINE_PT)
    ax.set(xlim=(0, WIDTH_PT), ylim=(n_lines - 0.5, -0.5))
    ax.set_axis_off()
    for place, x, y, width in _placed(shape):
        paper = color_of(float(shape.shares[place] / shape.top), name)
        ground = {
            "boxstyle": "square,pad=0.25", "linewidth": 1.2 if place == shape.marked else 0,
            "facecolor": _css(paper), "edgecolor": INK,
        }  # fmt: skip
        ax.text(
            x + width / 2, y, pen.book.text(shape.tokens[place], _LONGEST), bbox=ground,
            ha="center", va="center", color=_css(ink_on(paper)), **pen.words(SIZE_PT),
        )  # fmt: skip


def _placed(shape: Shaded) -> Iterator[tuple[int, float, int, float]]:
    """Yield (place, x, line, width) of each token; widths in points, by the kind of its letters."""
    x, line = 0.0, 0
    for place, label in enumerate(shape.tokens):
        shown = visible(label)[:_LONGEST]
        ems = math.fsum(1.0 if east_asian_width(c) in "WF" else 0.58 for c in shown)
        width = SIZE_PT * (ems + 0.5)
        if x and x + width > WIDTH_PT:
            x, line = 0.0, line + 1
        yield place, x, line, width
        x += width + _GAP_PT


def _css(color: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = color
    return red / 255, green / 255, blue / 255
