"""Links and Series as pictures: lines from queries to keys, curves and bars over a common axis.

What lives here: their layout. What does not: cells (``cellplot``), text and pixels (``sketch``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.records import Array
from attnviz.render.picture.celllayout import MAX_LABEL_COLUMNS, MAX_LABELLED, ordinal, tick_text
from attnviz.render.picture.sketch import (
    HAIRLINE,
    INK,
    LABEL_PT,
    MUTED,
    SMALL_PT,
    TITLE_PT,
    Sketch,
    Words,
)
from attnviz.render.shapes import Label, Links, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#882255")
"""Distinct with the common kinds of colour blindness (Okabe & Ito 2008, then Tol)."""
_LINK_POINTS = 24


@dataclass(frozen=True, slots=True)
class Place:
    """Size of a block and, inside it, where its drawing area is, in pixels."""

    size: tuple[int, int]
    area: tuple[int, int, int, int]
    detail: Any = None


class LinksBlock:
    """One or several Links side by side: queries on the left, keys on the right of each."""

    def __init__(self, links: Sequence[Links], title: str = "") -> None:
        self.links = tuple(links)
        self.title = title

    def measure(
        self, sketch: Sketch, *, max_px: int, size: tuple[int, int] | None = None, left: int = 0
    ) -> Place:
        """Find the layout; a long text gets closer lines and every n-th label."""
        px = sketch.px
        longest = max(max(len(k.query_labels), len(k.key_labels)) for k in self.links)
        pitch = px(14 if longest <= 24 else 11 if longest <= MAX_LABELLED else 9)
        height = min(longest * pitch, px(MAX_LABELLED * 11))
        if size is not None:
            height = max(px(40), size[1] - px(64))
        step = max(1, math.ceil(px(LABEL_PT * 1.05) * longest / height - 0.02))
        columns = []
        for links in self.links:
            named = [[(i, sketch.words(labels[i], LABEL_PT, MAX_LABEL_COLUMNS))
                      for i in range(0, len(labels), step)]
                     for labels in (links.query_labels, links.key_labels)]  # fmt: skip
            widths = [max(round(w.width) for _, w in side) for side in named]
            columns.append((named, widths))
        labels = sum(sum(widths) for _, widths in columns)
        n = len(columns)
        fixed = px(16) + labels + n * px(12) + (n - 1) * px(18)
        between = px(150 if n == 1 else 105)
        if size is not None:
            between = max(px(24), (size[0] - fixed) // n)
        width = max(fixed + n * between, px(230))
        title = sketch.wrap(self.title, TITLE_PT, width - px(16)) if self.title else []
        said = [f"every {ordinal(step)} token is labelled"] if step > 1 else []
        notes = [*said, *dict.fromkeys(note for k in self.links for note in k.notes)]
        lines = [w for text in notes for w in sketch.wrap(text, SMALL_PT, width - px(16))]
        top = px(8) + len(title) * px(TITLE_PT * 1.35) + px(22)
        bottom = px(8) + len(lines) * px(SMALL_PT * 1.35) + px(4)
        return Place(
            (width, top + height + bottom),
            (px(8), top, width - px(16), height),
            (columns, between, title, lines, longest),
        )

    def draw(self, sketch: Sketch, place: Place, x: int, y: int) -> None:
        """Draw the block with its top left corner at this pixel."""
        px = sketch.px
        columns, between, title, notes, longest = place.detail
        _write_lines(sketch, title, x + px(8), y + px(8) + px(TITLE_PT) / 2, TITLE_PT, INK)
        left, top = x + place.area[0], y + place.area[1]
        height = place.area[3]
        row = height / longest
        for n, (links, (named, widths)) in enumerate(zip(self.links, columns, strict=True)):
            start = left + widths[0] + px(6)
            end = start + between
            head = top - px(10)
            if len(self.links) > 1:
                sketch.write(
                    sketch.words(links.title, LABEL_PT), (start + end) / 2, head, ha="center"
                )
            sketch.write(sketch.words("query", SMALL_PT), start, head, ha="right", color=MUTED)
            sketch.write(sketch.words("key", SMALL_PT), end, head, color=MUTED)
            for i, words in named[0]:
                sketch.write(words, start - px(5), top + (i + 0.5) * row, ha="right",
                             gid=f"query-{n}-{i}")  # fmt: skip
            for i, words in named[1]:
                sketch.write(words, end + px(5), top + (i + 0.5) * row, gid=f"key-{n}-{i}")
            _draw_links(sketch, links, start, end, top, row, COLORS[n % len(COLORS)])
            left = end + px(6) + widths[1] + px(18)
        below = top + height + px(10)
        _write_lines(sketch, notes, x + px(8), below, SMALL_PT, MUTED)


def _draw_links(
    sketch: Sketch, links: Links, start: float, end: float, top: float, row: float, color: str
) -> None:
    """Draw all lines as one artist: strength is both width and opacity; strongest on top."""
    if not links.links:
        return
    from matplotlib.colors import to_rgb

    ordered = np.array(links.links[::-1], np.float64)
    strength = np.clip(ordered[:, 2], 0.0, 1.0)
    t = np.linspace(0.0, 1.0, _LINK_POINTS)
    ease = t * t * (3 - 2 * t)
    from_y = top + (ordered[:, :1] + 0.5) * row
    to_y = top + (ordered[:, 1:2] + 0.5) * row
    points = np.empty((len(ordered), _LINK_POINTS, 2))
    points[..., 0] = start + (end - start) * t
    points[..., 1] = from_y + (to_y - from_y) * ease
    rgba = np.empty((len(ordered), 4))
    rgba[:, :3] = to_rgb(color)
    rgba[:, 3] = 0.12 + 0.88 * strength
    sketch.lines(points, rgba, 0.3 + 3.2 * strength)


class SeriesBlock:
    """Curves or bars over a common axis, with a legend where there are several."""

    def __init__(self, series: Series, title: str = "") -> None:
        self.series = series
        self.title = title or series.title

    def measure(
        self, sketch: Sketch, *, max_px: int, size: tuple[int, int] | None = None, left: int = 0
    ) -> Place:
        """Find the layout."""
        px, series = sketch.px, self.series
        width, height = px(72 * 6.5), px(72 * 2.1)
        step = max(1, math.ceil(px(LABEL_PT * 1.15) * len(series.x) / width - 0.02))
        named = [(i, sketch.words(series.x_labels[i], LABEL_PT, MAX_LABEL_COLUMNS))
                 for i in range(0, len(series.x_labels), step)]  # fmt: skip
        widest = max((w.width for _, w in named), default=0)
        is_turned = bool(named) and widest + px(4) > width / max(1, len(series.x)) * step
        room = (round(widest) if is_turned else px(LABEL_PT)) + px(5)
        values = [*_ticks(*_limits(series))]
        own_left = px(8 + LABEL_PT + 6 + 5) + round(
            max(sketch.words(tick_text(v, values[-1] - values[0]), SMALL_PT).width for v in values)
        )
        own_left = max(own_left, left)
        names = list(series.curves)
        right = px(10)
        if len(names) > 1:
            right += px(22) + round(max(sketch.words(n, SMALL_PT).width for n in names))
        notes_width = own_left + width + right - px(16)
        said = [f"every {ordinal(step)} token is labelled"] if step > 1 and named else []
        notes = [w for t in (*said, *series.notes) for w in sketch.wrap(t, SMALL_PT, notes_width)]
        title = sketch.wrap(self.title, TITLE_PT, notes_width)
        top = px(8) + len(title) * px(TITLE_PT * 1.35) + px(6)
        bottom = room + px(LABEL_PT + 8) + len(notes) * px(SMALL_PT * 1.35) + px(6)
        if size is not None:
            width = max(px(40), size[0] - own_left - right)
            height = max(px(40), size[1] - top - bottom)
        return Place(
            (own_left + width + right, top + height + bottom),
            (own_left, top, width, height),
            (title, notes, named, is_turned, room),
        )

    def draw(self, sketch: Sketch, place: Place, x: int, y: int) -> None:
        """Draw the block with its top left corner at this pixel."""
        px, series = sketch.px, self.series
        title, notes, named, is_turned, room = place.detail
        _write_lines(sketch, title, x + px(8), y + px(8) + px(TITLE_PT) / 2, TITLE_PT, INK)
        left, top, width, height = place.area
        left, top = x + left, y + top
        axes = sketch.axes((left, top, width, height))
        low, high = _limits(series)
        edge = 0.5 if series.style == "bar" or series.x_labels else 0.0
        first, last = float(series.x[0]) - edge, float(series.x[-1]) + edge
        if series.log_axes:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.set_xlim(first, last if last > first else first + 1)
        self._draw_ticks(sketch, axes, (left, top, width, height), x)
        self._draw_curves(sketch, axes)
        if len(series.curves) > 1:
            self._draw_legend(sketch, left + width + px(8), top)
        for i, words in named:
            where = axes.transData.transform((float(series.x[i]), low))[0]
            if is_turned:
                sketch.write(words, where, top + height + px(5), ha="right", rotation=90)
            else:
                sketch.write(words, where, top + height + px(5), ha="center", va="top")
        under = top + height + room + px(LABEL_PT) / 2 + px(3)
        sketch.write(sketch.words(series.x_name, LABEL_PT), left + width / 2, under, ha="center",
                     color=MUTED)  # fmt: skip
        _write_lines(sketch, notes, x + px(8), under + px(LABEL_PT + 5), SMALL_PT, MUTED)

    def _draw_ticks(
        self, sketch: Sketch, axes: Axes, box: tuple[int, int, int, int], x: int
    ) -> None:
        px, series = sketch.px, self.series
        left, top, width, height = box
        low, high = _limits(series)
        values = _log_ticks(low, high) if series.log_axes else _ticks(low, high)
        rulers = []
        for value in values:
            y = sketch.height - axes.transData.transform((1.0, value))[1]
            if not top - 1 <= y <= top + height + 1:
                continue
            rulers.append(((left, y), (left + width, y)))
            text = f"{value:g}" if series.log_axes else tick_text(value, values[-1] - values[0])
            sketch.write(sketch.words(text, SMALL_PT), left - px(5), y, ha="right", color=MUTED)
        sketch.lines(np.array(rulers), HAIRLINE, 0.5)
        if series.style == "bar":
            zero = sketch.height - axes.transData.transform((1.0, 0.0))[1]
            sketch.lines(np.array([((left, zero), (left + width, zero))]), MUTED, 0.7)
        sketch.write(sketch.words(series.y_name, LABEL_PT), x + px(8) + px(LABEL_PT) / 2,
                     top + height / 2, ha="center", color=MUTED, rotation=90)  # fmt: skip
        if series.x_labels:
            return
        numbers = np.asarray(series.x, np.float64)
        ends = (float(numbers.min()), float(numbers.max()))
        for value in numbers if series.log_axes else _ticks(*ends):
            if not ends[0] <= value <= ends[1]:
                continue
            at = axes.transData.transform((value, low))[0]
            text = tick_text(value, ends[1] - ends[0] or 1.0)
            sketch.write(sketch.words(text, SMALL_PT), at, top + height + px(5), ha="center",
                         va="top", color=MUTED)  # fmt: skip

    def _draw_curves(self, sketch: Sketch, axes: Axes) -> None:
        series = self.series
        for n, (name, values) in enumerate(series.curves.items()):
            numbers = np.asarray(values, np.float64)
            if name in series.references:
                axes.plot(series.x, numbers, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            elif series.style == "bar":
                x = np.asarray(series.x, np.float64)
                fill = [COLORS[1] if v >= 0 else COLORS[0] for v in numbers]
                axes.vlines(x, 0.0, numbers, colors=fill, linewidth=_bar_pt(sketch, axes, len(x)))
            else:
                marker = "o" if len(numbers) <= MAX_LABELLED else None
                axes.plot(series.x, numbers, color=COLORS[n % len(COLORS)], linewidth=1.4,
                          marker=marker, markersize=3, linestyle=_dash(n), clip_on=False)  # fmt: skip

    def _draw_legend(self, sketch: Sketch, x: int, top: int) -> None:
        px = sketch.px
        for n, name in enumerate(self.series.curves):
            y = top + px(4) + n * px(SMALL_PT * 1.5)
            is_reference = name in self.series.references
            color = MUTED if is_reference else COLORS[n % len(COLORS)]
            sketch.lines(np.array([((x, y), (x + px(12), y))]), color, 1.0 if is_reference else 1.8)
            sketch.write(sketch.words(Label(name), SMALL_PT), x + px(16), y)


def _bar_pt(sketch: Sketch, axes: Axes, n: int) -> float:
    """Return the width of one of ``n`` bars in points."""
    return max(0.6, 0.72 * float(axes.bbox.width) * 72 / sketch.dpi / max(1, n))


def _dash(n: int) -> Any:
    return "solid" if n < len(COLORS) else (0, (3, 1))


def _limits(series: Series) -> tuple[float, float]:
    """Return the ends of the y axis: 0 included (but of a log axis), a little air at the top."""
    values = np.concatenate([np.ravel(np.asarray(v, np.float64)) for v in series.curves.values()])
    values = values[np.isfinite(values)]
    if series.log_axes:
        values = values[values > 0]
        return float(values.min(initial=np.inf)) / 1.4, float(values.max(initial=0.0)) * 1.4
    low, high = min(0.0, float(values.min(initial=0.0))), max(0.0, float(values.max(initial=0.0)))
    air = 0.06 * ((high - low) or 1.0)
    return low - (air if low < 0 else 0.0), high + (air if high > 0 else 0.0)


def _ticks(low: float, high: float) -> Array:
    """Return about five round numbers between two ends (steps of 1, 2 or 5 times a power of 10)."""
    span = (high - low) or 1.0
    raw = span / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return np.arange(first, math.floor(high / step + 1e-9) + 1) * step


def _log_ticks(low: float, high: float) -> Array:
    """Return powers of 10 between two positive ends; 2 and 5 times them where these are few."""
    powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = powers[(powers >= low) & (powers <= high)]
    return inside if len(inside) >= 3 else np.sort(np.outer((1, 2, 5), powers).ravel())


def _write_lines(
    sketch: Sketch, lines: Sequence[Words], x: float, y: float, size_pt: float, color: str
) -> None:
    for n, words in enumerate(lines):
        sketch.write(words, x, y + n * sketch.px(size_pt * 1.35), color=color)
