"""A Heatmap as a picture: one image of all panels, labels, numbers, colour bar and legend.

What lives here: drawing. What does not: sizes and places (``celllayout``), text and pixels
(``sketch``), pooling (``pooling``), other shapes (``lineplot``).

All panels and the gaps between them are one image; labels are thinned where they would touch:
nothing is drawn once per cell, and no text once per token of a long sentence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.records import Array
from attnviz.render.colors import color_of, ink_on, masked_color
from attnviz.render.picture.celllayout import HeatmapLayout, Layout
from attnviz.render.picture.sketch import HAIRLINE, LABEL_PT, MUTED, SMALL_PT, TITLE_PT, Sketch
from attnviz.render.pooling import BLANK, N_LEVELS, levels_of, pool, shares_of, stretch
from attnviz.render.shapes import Matrix

_MAX_NUMBERS = 900


class HeatmapBlock(HeatmapLayout):
    """One Heatmap to be drawn."""

    def draw(self, sketch: Sketch, layout: Layout, x: int, y: int) -> None:
        """Draw the block with its top left corner at this pixel."""
        self._draw_cells(sketch, layout, x, y)
        self._draw_labels(sketch, layout, x, y)
        self._draw_bar(sketch, layout, x, y)

    def raster(self, layout: Layout) -> Array:
        """Return all panels and their gaps as palette numbers, (height, width) uint8."""
        width, height = layout.area
        whole = np.full((height, width), BLANK, np.uint8)
        for panel, left, top in self._places(layout):
            values, hidden = self._pooled(panel, layout)
            levels = levels_of(values, hidden, self.heatmap.limits)
            whole[top : top + layout.panel[1], left : left + layout.panel[0]] = stretch(
                levels, (layout.panel[1], layout.panel[0])
            )
        return whole

    def _pooled(self, panel: Matrix, layout: Layout) -> tuple[Array, Array]:
        return pool(panel.values, panel.hidden, layout.factors, is_diverging=self._is_diverging)

    def _places(self, layout: Layout) -> Iterator[tuple[Matrix, int, int]]:
        for n, panel in enumerate(self.heatmap.panels):
            row, column = divmod(n, layout.grid[1])
            yield (
                panel,
                column * (layout.panel[0] + layout.gap[0]),
                row * (layout.panel[1] + layout.gap[1]),
            )

    def _palette(self) -> Array:
        colors = [color_of(i / (N_LEVELS - 1), self.scale) for i in range(N_LEVELS)]
        colors += [masked_color(self.scale), (255, 255, 255), (255, 255, 255)]
        return np.array(colors, np.uint8)

    def _draw_cells(self, sketch: Sketch, layout: Layout, x: int, y: int) -> None:
        left, top = x + layout.left, y + layout.top
        width, height = layout.area
        extent: tuple[float, float, float, float] = (0, width, height, 0)
        if len(self.heatmap.panels) == 1:
            extent = (-0.5, self.n_columns - 0.5, self.n_rows - 0.5, -0.5)
        sketch.image(self.raster(layout), self._palette(), (left, top, width, height), extent)
        cell = layout.panel[0] / self.n_columns, layout.panel[1] / self.n_rows
        for _, across, down in self._places(layout):
            if layout.factors == (1, 1) and min(cell) >= sketch.px(14):
                sketch.lines(_rulings(left + across, top + down, layout.panel, cell), "white", 0.6)
        n_cells = self.n_rows * self.n_columns * len(self.heatmap.panels)
        if n_cells <= _MAX_NUMBERS and not self.heatmap.is_thumbnails:
            self._draw_numbers(sketch, layout, cell, left, top)

    def _draw_numbers(
        self, sketch: Sketch, layout: Layout, cell: tuple[float, float], left: int, top: int
    ) -> None:
        """Write the numbers into their cells, in the largest size and precision that fits all."""
        fits = self._number_form(sketch, cell) if layout.factors == (1, 1) else None
        if fits is None:
            return
        digits, size = fits
        for panel, across, down in self._places(layout):
            values, hidden = self._pooled(panel, layout)
            shares = shares_of(values, self.heatmap.limits)
            for i, j in zip(*np.nonzero(~hidden), strict=True):
                red, green, blue = ink_on(color_of(float(shares[i, j]), self.scale))
                sketch.write(
                    sketch.words(_number(float(values[i, j]), digits), size),
                    left + across + (j + 0.5) * cell[0], top + down + (i + 0.5) * cell[1],
                    ha="center", color=f"#{red:02x}{green:02x}{blue:02x}",
                )  # fmt: skip

    def _number_form(self, sketch: Sketch, cell: tuple[float, float]) -> tuple[int, float] | None:
        shown = [v for p in self.heatmap.panels for v in np.ravel(_shown(p))]
        for digits, least in ((2, 6.5), (1, 6.0), (0, 6.0)):
            if digits == 0 and self.heatmap.scale == "weights":
                break
            widest = max((_number(float(v), digits) for v in shown), key=len, default="0")
            per_pt = sketch.words(widest, 10.0).width / 10
            size = min(
                LABEL_PT, 0.84 * cell[0] / per_pt, 0.62 * cell[1] * 72 / sketch.dpi / sketch.zoom
            )
            if size >= least:
                return digits, size
        return None

    def _draw_labels(self, sketch: Sketch, layout: Layout, x: int, y: int) -> None:
        px, first = sketch.px, self.heatmap.panels[0]
        left, top = x + layout.left, y + layout.top
        width, height = layout.area
        line = y + px(8) + px(TITLE_PT) / 2
        for words in layout.title:
            sketch.write(words, x + px(8), line)
            line += px(TITLE_PT * 1.35)
        self._draw_panel_titles(sketch, layout, left, top)
        cell = layout.panel[0] / self.n_columns, layout.panel[1] / self.n_rows
        ticks = []
        for row in range(layout.grid[0]):
            start = top + row * (layout.panel[1] + layout.gap[1])
            for i, words in layout.row_words:
                middle = start + (i + 0.5) * cell[1]
                sketch.write(words, left - px(5), middle, ha="right", gid=f"query-{row}-{i}")
                ticks.append(((left - px(3), middle), (left - px(1), middle)))
        head = top
        for column in range(layout.grid[1]):
            start = left + column * (layout.panel[0] + layout.gap[0])
            for j, words in layout.column_words:
                middle = start + (j + 0.5) * cell[0]
                ha, va = ("center", "baseline") if not layout.rotation else ("left", "center")
                sketch.write(words, middle, head - px(4), ha=ha, va=va,
                             rotation=layout.rotation, gid=f"key-{column}-{j}")  # fmt: skip
                ticks.append(((middle, head - px(3)), (middle, head - px(1))))
        if ticks:
            sketch.lines(np.array(ticks), HAIRLINE, 0.6)
        if layout.row_words:
            axis = sketch.words(f"{first.row_axis}", LABEL_PT)
            sketch.write(axis, x + px(8) + px(LABEL_PT) / 2, top + height / 2, ha="center",
                         color=MUTED, rotation=90)  # fmt: skip
        if layout.column_words:
            axis = sketch.words(f"{first.column_axis}", LABEL_PT)
            above = head - layout.column_room - px(4) - px(LABEL_PT) / 2
            above -= px(13) if len(self.heatmap.panels) > 1 else 0
            sketch.write(axis, left + width / 2, above, ha="center", color=MUTED)
        below = top + height + px(7) + px(SMALL_PT) / 2
        if self.has_hidden:
            side = px(7)
            sketch.swatch((left, round(below - side / 2), side, side), masked_color(self.scale))
            sketch.write(sketch.words("masked: this query may not look there", SMALL_PT),
                         left + side + px(4), below, color=MUTED)  # fmt: skip
            below += px(13)
        for words in layout.notes:
            sketch.write(words, left, below, color=MUTED)
            below += px(SMALL_PT * 1.35)

    def _draw_panel_titles(self, sketch: Sketch, layout: Layout, left: int, top: int) -> None:
        if len(self.heatmap.panels) == 1:
            return
        size = SMALL_PT if self.heatmap.is_thumbnails else LABEL_PT
        offset = sketch.px(2.5)
        for n, (panel, across, down) in enumerate(self._places(layout)):
            words = sketch.words(panel.title, size)
            under = n < layout.grid[1] and bool(layout.column_words)
            lift = layout.column_room + sketch.px(3) if under else 0
            sketch.write(words, left + across, top + down - lift - offset, va="baseline")

    def _draw_bar(self, sketch: Sketch, layout: Layout, x: int, y: int) -> None:
        """Draw the colour bar, as high as the panels, with its unit."""
        px = sketch.px
        width, height = layout.area
        left, top = x + layout.left + width + px(10), y + layout.top
        levels = stretch(np.arange(N_LEVELS, dtype=np.uint8)[::-1, None], (height, px(9)))
        low, high = self.heatmap.limits
        sketch.image(levels, self._palette(), (left, top, px(9), height), (0, 1, low, high))
        ticks, widest = [], 0.0
        for value, text in self._bar_ticks(layout.panel[1]):
            middle = top + height * (1 - (value - low) / (high - low if high > low else 1))
            words = sketch.words(text, SMALL_PT)
            widest = max(widest, words.width)
            edge = px(SMALL_PT) * 0.4
            sketch.write(
                words, left + px(9) + px(4), min(max(middle, top + edge), top + height - edge)
            )
            ticks.append(((left + px(9), middle), (left + px(11), middle)))
        sketch.lines(np.array(ticks), MUTED, 0.6)
        unit = f" in {self.heatmap.unit}" if self.heatmap.unit else ""
        sketch.write(
            sketch.words(self.heatmap.value_name + unit, SMALL_PT),
            left + px(9) + px(4) + widest + px(4) + px(SMALL_PT) / 2, top + height / 2,
            ha="center", color=MUTED, rotation=90,
        )  # fmt: skip


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return (text if float(text) else text.lstrip("-")).replace("-", "−")


def _shown(panel: Matrix) -> Array:
    values, hidden = pool(panel.values, panel.hidden, (1, 1))
    return values[~hidden]


def _rulings(left: float, top: float, panel: tuple[int, int], cell: tuple[float, float]) -> Array:
    """Return thin lines between cells, (N, 2, 2) pixels."""
    width, height = panel
    across = np.arange(cell[0], width - 1, cell[0])
    down = np.arange(cell[1], height - 1, cell[1])
    lines = [((left + a, top), (left + a, top + height)) for a in across]
    lines += [((left, top + d), (left + width, top + d)) for d in down]
    return np.array(lines) if lines else np.zeros((0, 2, 2))
