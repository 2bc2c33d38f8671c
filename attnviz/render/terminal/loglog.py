"""Curves over logarithmic axes for a terminal, drawn with letters: any encoding, any width.

What lives here: the lines of text. What does not: a picture of them (``lineplot``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from attnviz.render.screen import Screen
from attnviz.render.shapes import Series

_MARKS = "ox*+#@"
_HEIGHT = 13
_WIDEST = 72


def loglog_lines(series: Series, screen: Screen) -> Iterator[str]:
    """Yield the chart: every point a letter, dots between neighbours, the axes' ends named."""
    ticks = 9
    width = max(16, min(_WIDEST, (screen.width or _WIDEST) - ticks - 2))
    xs = np.log2(np.asarray(series.x, float))
    curves = {name: np.asarray(values, float) for name, values in series.curves.items()}
    shown = np.concatenate(
        [values[np.isfinite(values) & (values > 0)] for values in curves.values()]
    )
    low, high = math.log10(shown.min()), math.log10(shown.max())
    high = max(high, low + 0.1)
    canvas = [[" "] * width for _ in range(_HEIGHT)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - xs[0]) / max(xs[-1] - xs[0], 1e-9) * (width - 1)
        return round((high - math.log10(y)) / (high - low) * (_HEIGHT - 1)), round(across)

    marks = dict(zip(curves, _MARKS, strict=False))
    points = {
        name: [place(x, y) for x, y in zip(xs, values, strict=True) if np.isfinite(y) and y > 0]
        for name, values in curves.items()
    }
    for spots in points.values():
        for (row, column), (next_row, next_column) in pairwise(spots):
            for at in range(column + 1, next_column):
                share = (at - column) / (next_column - column)
                canvas[round(row + share * (next_row - row))][at] = "."
    for name, spots in points.items():
        for row, column in spots:
            canvas[row][column] = marks.get(name, "?")
    for number, line in enumerate(canvas):
        value = 10 ** (high - number / (_HEIGHT - 1) * (high - low))
        tick = (f"{value:,.0f}" if value >= 100 else f"{value:.2g}") if number % 4 == 0 else ""
        yield f"{tick:>{ticks - 1}} |{''.join(line)}".rstrip()
    yield " " * ticks + "+" + "-" * width
    first, last = f"{series.x[0]:,.0f}", f"{series.x[-1]:,.0f} {series.x_name}"
    yield " " * (ticks + 1) + first + " " * max(1, width - len(first) - len(last)) + last
    legend = "   ".join(f"{marks.get(name, '?')} {screen.house(name)}" for name in curves)
    yield f"{' ' * (ticks + 1)}{screen.house(series.y_name)}: {legend}"
