"""The layout of a Heatmap as a picture: how large its cells are, which labels fit, what it says.

What lives here: sizes and places in pixels. What does not: drawing (``cellplot``), text and pixels
(``sketch``), pooling (``pooling``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnviz.render.picture.sketch import LABEL_PT, SMALL_PT, TITLE_PT, Sketch, Words
from attnviz.render.pooling import factor_for
from attnviz.render.shapes import Heatmap, Label, Matrix

MAX_LABEL_COLUMNS = 24
MAX_LABELLED = 64
_ROUND_STEPS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 200, 256, 500, 512,
                1000, 1024, 2000, 2048, 4096)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a heatmap goes, in pixels from the block's own corner."""

    panel: tuple[int, int]
    factors: tuple[int, int]
    grid: tuple[int, int]
    gap: tuple[int, int]
    left: int
    top: int
    right: int
    bottom: int
    label_pt: float
    steps: tuple[int, int]
    rotation: int
    row_words: tuple[tuple[int, Words], ...]
    column_words: tuple[tuple[int, Words], ...]
    notes: tuple[Words, ...]
    title: tuple[Words, ...]
    column_room: int

    @property
    def area(self) -> tuple[int, int]:
        """Width and height of all panels with their gaps."""
        n_rows, n_columns = self.grid
        return (
            n_columns * self.panel[0] + (n_columns - 1) * self.gap[0],
            n_rows * self.panel[1] + (n_rows - 1) * self.gap[1],
        )

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the block."""
        width, height = self.area
        return self.left + width + self.right, self.top + height + self.bottom


class HeatmapLayout:
    """One Heatmap, and the layouts it can have.

    Parameters
    ----------
    heatmap
        What to draw.
    colormap
        Name of a map, or None for the usual one of the heatmap's scale.
    title
        Heading above it; empty for none.
    """

    def __init__(self, heatmap: Heatmap, colormap: str | None = None, title: str = "") -> None:
        self.heatmap = heatmap
        self.scale = colormap or heatmap.scale
        self.title = title
        self.n_rows, self.n_columns = np.asarray(heatmap.panels[0].values).shape
        self.has_hidden = any(_has_hidden(p) for p in heatmap.panels)

    def measure(
        self, sketch: Sketch, *, max_px: int, size: tuple[int, int] | None = None, left: int = 0
    ) -> Layout:
        """Find a layout of at most ``max_px`` pixels, or of exactly this size.

        Cells shrink first, then labels are thinned, then cells are pooled.
        """
        cell = self._wanted_cell(sketch)
        factors = (1, 1)
        for _ in range(64):
            panel = (
                max(1, round(math.ceil(self.n_columns / factors[1]) * cell[0])),
                max(1, round(math.ceil(self.n_rows / factors[0]) * cell[1])),
            )
            layout = self._lay_out(sketch, panel, factors, left)
            if size is not None:
                room = self._room(layout, size)
                pooled = factor_for(self.n_rows, room[1]), factor_for(self.n_columns, room[0])
                if self.heatmap.is_pairwise:
                    pooled = (max(pooled), max(pooled))
                fitted = self._lay_out(sketch, room, pooled, left)
                room = self._room(fitted, size)
                return self._lay_out(sketch, room, pooled, left)
            total = layout.size[0] * layout.size[1]
            if total <= max_px:
                return layout
            ratio = math.sqrt(max_px / total)
            if max(cell) > 1:
                cell = (max(1, int(cell[0] * ratio)), max(1, int(cell[1] * ratio)))
            else:
                factors = (
                    min(self.n_rows, math.ceil(factors[0] / min(ratio, 0.98))),
                    min(self.n_columns, math.ceil(factors[1] / min(ratio, 0.98))),
                )
        return layout

    def _wanted_cell(self, sketch: Sketch) -> tuple[int, int]:
        """Return a cell's width and height in pixels, were there no limit."""
        n_panels = len(self.heatmap.panels)
        if self.heatmap.is_thumbnails:
            side = sketch.plain_px(72 * (1.1 if n_panels <= 64 else 0.8))
            cell = max(1, round(side / max(self.n_rows, self.n_columns)))
            return cell, cell
        if not self.heatmap.is_pairwise:
            width = _clamp(72 * 6.5 / self.n_columns, 0.0, 26.0)
            height = _clamp(72 * 2.6 / self.n_rows, 10.5 if self.n_rows <= MAX_LABELLED else 0, 24)
            return max(1, sketch.plain_px(width)), max(1, sketch.plain_px(height))
        longest = max(self.n_rows, self.n_columns)
        if longest <= MAX_LABELLED:
            inches, least = (4.4, 9.6) if n_panels == 1 else (2.5, 8.0)
            most = 44.0 if n_panels == 1 else 32.0
            square = max(1, sketch.plain_px(_clamp(72 * inches / longest, least, most)))
        else:
            side_in = 8.0 if n_panels == 1 else 4.0 if n_panels <= 4 else 3.0
            square = max(1, round(sketch.plain_px(72 * side_in) / longest))
        return square, square

    def _room(self, layout: Layout, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of a panel that makes the block exactly this large."""
        n_rows, n_columns = layout.grid
        width = size[0] - layout.left - layout.right - (n_columns - 1) * layout.gap[0]
        height = size[1] - layout.top - layout.bottom - (n_rows - 1) * layout.gap[1]
        width, height = max(8, width // n_columns), max(8, height // n_rows)
        if self.heatmap.is_pairwise:
            cell = min(width / self.n_columns, height / self.n_rows)
            return max(1, int(cell * self.n_columns)), max(1, int(cell * self.n_rows))
        return width, height

    def _lay_out(
        self, sketch: Sketch, panel: tuple[int, int], factors: tuple[int, int], left: int
    ) -> Layout:
        heatmap, px = self.heatmap, sketch.px
        first = heatmap.panels[0]
        n_panels = len(heatmap.panels)
        columns = heatmap.n_columns or choose_columns(n_panels)
        grid = (math.ceil(n_panels / columns), columns)
        cell = panel[0] / self.n_columns, panel[1] / self.n_rows
        points = 72 / sketch.dpi / sketch.zoom
        label_pt: float = _clamp(min(cell) * points * 0.8, 5.5, LABEL_PT)
        if not heatmap.is_pairwise or max(self.n_rows, self.n_columns) > MAX_LABELLED:
            label_pt = LABEL_PT - 0.5
        pitch = px(label_pt * 1.12)
        rows: tuple[tuple[int, Words], ...] = ()
        named: tuple[tuple[int, Words], ...] = ()
        steps, rotation = (1, 1), 0
        if not heatmap.is_thumbnails:
            steps = _label_step(cell[1], pitch), _label_step(cell[0], pitch)
            labels = first.column_labels or tuple(Label(i) for i in range(self.n_columns))
            rows = tuple(_words(sketch, first.row_labels, steps[0], label_pt))
            if not heatmap.is_pairwise:
                steps = steps[0], _power_step(cell[0], px(label_pt * 2.6))
            named = tuple(_words(sketch, labels, steps[1], label_pt))
            rotation = _rotation(named, cell[0] * steps[1], px(3), self.n_columns)
        widest = max((w.width for _, w in rows), default=0)
        turned = math.radians(rotation)
        room = max(
            (w.width * math.sin(turned) + px(label_pt) * math.cos(turned) for _, w in named),
            default=0,
        )
        gap = (px(7), px(7 + 9)) if heatmap.is_thumbnails else (px(14), px(12 + 10))
        has_titles = n_panels > 1
        lead = px(5) + (px(LABEL_PT) + px(5) if rows else 0)
        own_left = px(8) + round(widest) + lead
        over = 0.0
        area = grid[1] * panel[0] + (grid[1] - 1) * gap[0]
        for i, w in named:
            end = (i + 0.5) * cell[0] + (grid[1] - 1) * (panel[0] + gap[0])
            reach = w.width * math.cos(turned) if rotation == 45 else w.width / 2
            over = max(over, end + (reach if rotation != 90 else px(label_pt)) - area)
        bar_words = max(sketch.words(t, SMALL_PT).width for _, t in self._bar_ticks(panel[1]))
        right = px(10 + 9 + 4) + round(bar_words) + px(4 + SMALL_PT + 10)
        right = max(right, round(over) + px(6))
        own_left = max(own_left, left)
        width = own_left + area + right
        title = tuple(sketch.wrap(self.title, TITLE_PT, width - px(16))) if self.title else ()
        column_room = round(room) + (px(4) if named else 0)
        top = px(8) + len(title) * px(TITLE_PT * 1.35) + (px(4) if title else 0)
        top += (px(LABEL_PT) + px(5) if named else 0) + column_room
        top += px(13) if has_titles else 0
        found = Layout(panel, factors, grid, gap, own_left, top, right, 0, label_pt, steps,
                       rotation, rows, named, (), title, column_room)  # fmt: skip
        said = self._sayings(found)
        notes_room = width - own_left - px(8)
        notes = tuple(w for text in said for w in sketch.wrap(text, SMALL_PT, notes_room))
        bottom = px(7) + (px(13) if self.has_hidden else 0) + len(notes) * px(SMALL_PT * 1.35)
        return replace(found, notes=notes, bottom=bottom + px(5))

    def _sayings(self, layout: Layout) -> list[str]:
        """Return what the picture must say about itself: thinned labels, pooling, cuts."""
        said = []
        rows, columns = layout.steps
        if not self.heatmap.is_thumbnails:
            axes = self.heatmap.panels[0].row_axis, self.heatmap.panels[0].column_axis
            if rows > 1 and rows == columns:
                said.append(f"every {ordinal(rows)} token is labelled")
            else:
                said += [f"every {ordinal(n)} {axis} is labelled"
                         for n, axis in zip(layout.steps, axes, strict=True) if n > 1]  # fmt: skip
            drawn = (*layout.row_words, *layout.column_words)
            if any(w.text.endswith("…") for _, w in drawn):
                said.append(f"labels are cut to {MAX_LABEL_COLUMNS} columns")
        pooled = tuple(f * self.heatmap.pooled for f in layout.factors)
        if pooled != (1, 1):
            which = "farthest from 0" if self._is_diverging else "largest"
            said.append(f"each cell is the {which} of {pooled[0]} × {pooled[1]} cells")
        return [" · ".join(said)] * bool(said) + list(self.heatmap.notes)

    @property
    def _is_diverging(self) -> bool:
        return self.heatmap.scale == "diverging"

    def _bar_ticks(self, height: int) -> list[tuple[float, str]]:
        low, high = self.heatmap.limits
        n = 5 if height >= 200 else 3
        values = [low + (high - low) * i / (n - 1) for i in range(n)]
        return [(v, tick_text(v, high - low)) for v in values]


def choose_columns(n_panels: int) -> int:
    """Return how many panels stand side by side: few left over, a little wider than high.

    Examples
    --------
    >>> [choose_columns(n) for n in (1, 2, 4, 6, 8, 12)]
    [1, 2, 2, 3, 4, 4]
    """
    wanted = 1.3 * math.sqrt(n_panels)
    return min(range(1, n_panels + 1), key=lambda c: (-n_panels % c) + abs(c - wanted))


def ordinal(n: int) -> str:
    """Return 2nd, 3rd, 4th, 11th, 22nd.

    Examples
    --------
    >>> [ordinal(n) for n in (2, 3, 11, 21)]
    ['2nd', '3rd', '11th', '21st']
    """
    last = 0 if n % 100 in (11, 12, 13) else n % 10
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def tick_text(value: float, span: float) -> str:
    """Write a tick of a colour bar with the digits that its span needs."""
    digits = max(0, min(6, 2 - math.floor(math.log10(span)))) if span > 0 else 2
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−") if float(text or 0) else "0"


def _has_hidden(panel: Matrix) -> bool:
    return bool(panel.hidden is not None and np.any(panel.hidden)) or not bool(
        np.isfinite(panel.values).all()
    )


def _words(
    sketch: Sketch, labels: tuple[Label, ...], step: int, size_pt: float
) -> Iterator[tuple[int, Words]]:
    for i in range(0, len(labels), step):
        yield i, sketch.words(labels[i], size_pt, MAX_LABEL_COLUMNS)


def _label_step(cell: float, pitch: int) -> int:
    """Return every how many cells a label fits: 1 to 4, then a round number."""
    step = max(1, math.ceil(pitch / cell - 0.02))
    return next((n for n in _ROUND_STEPS if n >= step), step)


def _power_step(cell: float, pitch: int) -> int:
    """Return the same as a power of 2, as widths of vectors are."""
    return 1 << max(0, math.ceil(math.log2(max(1.0, pitch / cell - 0.02))))


def _rotation(words: tuple[tuple[int, Words], ...], pitch: float, gap: int, n: int) -> int:
    """Return 0 where all labels fit side by side, 45 for few long ones, else 90 degrees."""
    widest = max((w.width for _, w in words), default=0)
    if widest + gap <= pitch:
        return 0
    tall = max((w.size_pt for _, w in words), default=0)
    return 45 if n <= 24 and pitch >= 1.5 * tall else 90


def _clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
