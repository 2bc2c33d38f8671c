"""A Heatmap in sentences, for a screen reader: the strongest cells, one after the other.

What lives here: which cells are told, in words. What does not: tables and blocks of colour.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.render.pooling import pool
from attnviz.render.screen import Screen
from attnviz.render.shapes import Heatmap, Label, Matrix
from attnviz.render.text import number_writer
from attnviz.rounding import by_size

_MAX_CELLS = 12


def heatmap_sentences(heatmap: Heatmap, screen: Screen) -> Iterator[str]:
    """Yield the title, the size and scale, and each panel's strongest cells, visible.

    Strongest is the largest, or on a diverging scale the farthest from 0.
    """
    first = heatmap.panels[0]
    n_rows, n_columns = np.asarray(first.values).shape
    unit = f" in {heatmap.unit}" if heatmap.unit else ""
    yield screen.house(heatmap.title)
    yield screen.house(
        f"{heatmap.value_name}{unit}, {n_rows} rows ({first.row_axis}) by {n_columns} columns "
        f"({first.column_axis}), scale {heatmap.limits[0]:g} to {heatmap.limits[1]:g}."
    )
    for panel in heatmap.panels:
        if len(heatmap.panels) > 1:
            yield f"{screen.label(panel.title)}:"
        yield from _panel_sentences(panel, heatmap, screen)
    for note in heatmap.notes:
        yield screen.house(note)


def _panel_sentences(panel: Matrix, heatmap: Heatmap, screen: Screen) -> Iterator[str]:
    values, hidden = pool(panel.values, panel.hidden, (1, 1))
    strength = np.abs(values) if heatmap.scale == "diverging" else values
    strength = np.where(hidden, -np.inf, strength)
    n_shown = min(_MAX_CELLS, int((~hidden).sum()))
    if not n_shown:
        yield "Every cell is masked."
        return
    strongest = by_size(strength.ravel(), n_shown)
    write = number_writer(values[~hidden], screen.precision)
    for place in strongest:
        row, column = (int(n) for n in np.unravel_index(place, values.shape))
        row_name = _name(panel.row_axis, row, panel.row_labels, screen)
        column_name = _name(panel.column_axis, column, panel.column_labels, screen)
        number = screen.house(write(float(values[row, column])))
        yield f"{row_name}, {column_name}: {heatmap.value_name} {number}."
    if hidden.any():
        yield f"{int(hidden.sum())} cells are masked: the query may not look there."
    rest = int((~hidden).sum()) - n_shown
    if rest:
        yield f"{rest} weaker cells are left out; --format csv has every number."


def _name(axis: str, index: int, labels: tuple[Label, ...], screen: Screen) -> str:
    return f'{axis} {index} "{screen.label(labels[index])}"' if labels else f"{axis} {index}"
