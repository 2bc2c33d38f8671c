"""A sheet to draw on by pixels from its top left corner, on top of one matplotlib ``Figure``.

What lives here: text that is never parsed, lines, swatches, images at exact pixels. What does
not: what is drawn (``cellplot``, ``lineplot``), or saved (``figure``). No pyplot, no global state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from attnviz.records import Array
from attnviz.render.picture.fonts import FontBook

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, HAIRLINE = "#1f2328", "#59636e", "#c9d1d9"
TITLE_PT, LABEL_PT, SMALL_PT = 11.0, 8.5, 7.0
Box: TypeAlias = tuple[int, int, int, int]
"""Left, top, width, height in pixels."""


@dataclass(frozen=True, slots=True)
class Words:
    """A prepared text with its font file and its width in pixels."""

    text: str
    path: Any
    size_pt: float
    width: float


class Sketch:
    """One sheet of a picture.

    Parameters
    ----------
    dpi
        Pixels per inch.
    book
        The fonts; it collects characters that no font has.

    Text and gaps are ``zoom`` times as large as on a page of usual size.
    """

    def __init__(self, dpi: int, book: FontBook) -> None:
        self.dpi = dpi
        self.book = book
        self.zoom = 1.0
        self.width = self.height = 0
        self._figure: Figure | None = None

    @property
    def figure(self) -> Figure:
        if self._figure is None:
            raise ValueError("the sheet has no size yet")
        return self._figure

    def open(self, width: int, height: int) -> None:
        """Make the sheet, white, in pixels."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self._figure = Figure(figsize=(width / self.dpi, height / self.dpi), dpi=self.dpi,
                              facecolor="white")  # fmt: skip
        FigureCanvasAgg(self._figure)

    def px(self, points: float) -> int:
        """Return a length in points (1/72 inch) as pixels; larger on a large sheet."""
        return round(points * self.zoom * self.dpi / 72)

    def plain_px(self, points: float) -> int:
        """Return a length in points as pixels, the same on every sheet."""
        return round(points * self.dpi / 72)

    def words(self, text: str, size_pt: float = LABEL_PT, max_width: int | None = None) -> Words:
        """Prepare a text of ours or of a stranger's: visible, in a font that has it, measured."""
        shown, path = self.book.prepare(text, max_width)
        size = size_pt * self.zoom
        return Words(shown, path, size, self.book.width_in(shown, path, size) * self.dpi)

    def write(
        self,
        words: Words | str,
        x: float,
        y: float,
        *,
        ha: str = "left",
        va: str = "center",
        color: str = INK,
        rotation: float = 0,
        gid: str | None = None,
    ) -> None:
        """Write a text at a pixel; ``va`` baseline, center, top or bottom."""
        chosen = self.words(words) if isinstance(words, str) else words
        self.figure.text(
            x / self.width, 1 - y / self.height, chosen.text,
            fontproperties=self.book.properties(chosen.path, chosen.size_pt),
            ha=ha, va={"center": "center_baseline" if not rotation else "center"}.get(va, va),
            color=color, rotation=rotation, rotation_mode="anchor", gid=gid, parse_math=False,
        )  # fmt: skip

    def wrap(self, text: str, size_pt: float, width: float) -> list[Words]:
        """Break a text at blanks into lines not wider than this many pixels."""
        lines: list[Words] = []
        current = ""
        for word in text.split(" "):
            longer = f"{current} {word}" if current else word
            if current and self.words(longer, size_pt).width > width:
                lines.append(self.words(current, size_pt))
                longer = word
            current = longer
        if current:
            lines.append(self.words(current, size_pt))
        return lines

    def axes(self, box: Box) -> Axes:
        """Return axes without frame and ticks on exactly these pixels."""
        left, top, width, height = box
        axes = self.figure.add_axes(
            (left / self.width, 1 - (top + height) / self.height,
             width / self.width, height / self.height)
        )  # fmt: skip
        axes.set_axis_off()
        return axes

    def image(
        self, levels: Array, palette: Array, box: Box, extent: tuple[float, float, float, float]
    ) -> Axes:
        """Draw palette numbers as one image, one number per pixel of the box.

        Parameters
        ----------
        levels : (height, width) uint8
        palette : (256, 3) uint8
        extent
            Left, right, bottom and top in the axes' own units.
        """
        from attnviz.render.picture.raster import Raster

        axes = self.axes(box)
        axes.add_image(Raster(axes, levels, palette, extent))
        axes.set_xlim(extent[0], extent[1])
        axes.set_ylim(extent[2], extent[3])
        return axes

    def lines(self, segments: Array, color: Any, width_pt: Any) -> None:
        """Draw (N, P, 2) polylines in pixels as one artist."""
        from matplotlib.collections import LineCollection

        points = np.asarray(segments, np.float64) / (self.width, self.height)
        points[..., 1] = 1 - points[..., 1]
        self.figure.add_artist(
            LineCollection(list(points), colors=color, linewidths=width_pt, capstyle="butt",
                           transform=self.figure.transFigure)
        )  # fmt: skip

    def swatch(self, box: Box, color: tuple[int, int, int]) -> None:
        """Fill a rectangle with a colour, for a legend."""
        from matplotlib.patches import Rectangle

        left, top, width, height = box
        self.figure.add_artist(
            Rectangle(
                (left / self.width, 1 - (top + height) / self.height),
                width / self.width, height / self.height,
                facecolor=tuple(c / 255 for c in color), edgecolor=HAIRLINE, linewidth=0.5,
                transform=self.figure.transFigure,
            )
        )  # fmt: skip
