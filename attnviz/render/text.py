"""Shapes laid out as cells of text: what the formats table, plain and markdown share.

What lives here: how a number, a label and a vector are written, and how a wide table is cut into
blocks of columns. What does not: borders, colours and escapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnviz.render.screen import Screen
from attnviz.render.shapes import Column, Label, Matrix, Shaded, Table, Text
from attnviz.render.tokens import fit

_ENDS = (3, 3)
_VECTOR_CELL = 9


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text: header and rows of cells, the first ``n_keys`` columns naming the row.

    ``shares`` holds, for each cell, a number in [0, 1] that a format may colour it by, or None.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_keys: int
    is_right: tuple[bool, ...]
    shares: tuple[tuple[float | None, ...], ...] = ()


def number_writer(values: Any, precision: int) -> Callable[[float], str]:
    """Choose one way to write all numbers of a table: fixed digits, or powers of ten.

    Fixed digits unless the largest number would lose its digits or need more than 7 before
    the point.

    Examples
    --------
    >>> number_writer([0.5, 2.0], 4)(0.5), number_writer([1e-9], 4)(1e-9)
    ('0.5000', '1.0000e-09')
    """
    numbers = np.abs(np.asarray(values, dtype=np.float64))
    numbers = numbers[np.isfinite(numbers)]
    top = float(numbers.max(initial=0.0))
    kind = "f" if top == 0 or 0.5 * 10.0 ** (1 - precision) <= top < 1e7 else "e"

    def write(number: float) -> str:
        if math.isnan(number):
            return "nan"
        if math.isinf(number):
            return "∞" if number > 0 else "−∞"
        return _without_minus_zero(f"{number:.{precision}{kind}}")

    return write


def _without_minus_zero(text: str) -> str:
    """A number that is shown as 0 has no sign: rounding alone may have given it one."""
    return text[1:] if text.startswith("-") and float(text) == 0 else text


def write_percent(share: float, precision: int) -> str:
    """Write a share as per cent, two digits fewer behind the point than a number.

    Examples
    --------
    >>> write_percent(0.92822, 4)
    '92.82 %'
    """
    return f"{_without_minus_zero(f'{100 * share:.{max(0, precision - 2)}f}')} %"


def write_text(text: Text, screen: Screen) -> str:
    """Write a paragraph, labels made visible."""
    return "".join(
        screen.label(part) if isinstance(part, Label) else screen.house(part) for part in text.parts
    )


def matrix_grid(matrix: Matrix, screen: Screen) -> Grid:
    """Lay a matrix out as text; vectors by their ends and their length unless asked whole."""
    values = np.asarray(matrix.values, dtype=np.float64)
    n_rows, n_columns = values.shape
    shown: list[int | None] = list(range(n_columns))
    if matrix.is_vectors and not screen.full_vectors and n_columns > sum(_ENDS) + 1:
        ends = _ends_for(matrix, screen)
        shown = [*range(ends[0]), None, *range(n_columns - ends[1], n_columns)]
    write = number_writer(values, screen.precision)
    if matrix.unit == "percent":
        write = _percent_writer(screen.precision)
    hidden_mark = screen.house("·")
    header = [screen.house(matrix.row_axis)]
    for column in shown:
        if column is None:
            header.append(screen.house("…"))
        elif matrix.column_labels:
            header.append(screen.label(matrix.column_labels[column]) or str(column))
        else:
            header.append(f"[{column}]")
    rows, shares = [], []
    numbers = values.tolist()  # one by one out of an array is ten times as slow
    hidden = None if matrix.hidden is None else np.asarray(matrix.hidden, bool).tolist()
    lengths = np.sqrt((values**2).sum(axis=1)) if matrix.is_vectors else None
    write_length = number_writer(lengths, screen.precision) if lengths is not None else None
    for i in range(n_rows):
        cells = [screen.label(matrix.row_labels[i])]
        colors: list[float | None] = [None]
        for column in shown:
            if column is None:
                cells.append(screen.house("…"))
                colors.append(None)
                continue
            is_hidden = hidden is not None and hidden[i][column]
            number = numbers[i][column]
            cells.append(hidden_mark if is_hidden and number == 0 else screen.house(write(number)))
            colors.append(number if matrix.scale == "weights" and not is_hidden else None)
        if write_length is not None and lengths is not None:
            cells.append(write_length(float(lengths[i])))
            colors.append(None)
        rows.append(tuple(cells))
        shares.append(tuple(colors))
    if lengths is not None:
        header.append(screen.house("length"))
    return Grid(
        tuple(header),
        tuple(rows),
        1,
        (False, *([True] * (len(header) - 1))),
        tuple(shares),
    )


def _ends_for(matrix: Matrix, screen: Screen) -> tuple[int, int]:
    """Return how many entries of a vector are shown at either end."""
    if screen.width is None:
        return _ENDS
    if not screen.is_compact:
        return _ENDS if screen.width >= 72 else (1, 1)
    widest = max((_width(screen.label(label)) for label in matrix.row_labels), default=0)
    room = screen.width - min(widest, max(6, screen.width // 3)) - 2 * _VECTOR_CELL
    n = max(1, min(_ENDS[0], room // (2 * _VECTOR_CELL)))
    return n, n


def table_grid(table: Table, screen: Screen, *, bar_width: int = 20) -> Grid:
    """Lay a table out as text, each column by its kind."""
    if any(column.kind == "bar" for column in table.columns):
        bar_width = min(bar_width, _room_for_bar(table, screen))
    writers = [
        _cell_writer(column, [row[i] for row in table.rows], screen, bar_width)
        for i, column in enumerate(table.columns)
    ]
    header = tuple(
        screen.label(c.name) if isinstance(c.name, Label) else screen.house(c.name)
        for c in table.columns
    )
    rows = tuple(
        tuple(write(cell) for write, cell in zip(writers, row, strict=True)) for row in table.rows
    )
    is_right = tuple(c.kind in ("int", "number", "percent") for c in table.columns)
    return Grid(header, rows, table.n_keys, is_right)


def _room_for_bar(table: Table, screen: Screen) -> int:
    """Return how wide a bar may be for the table to stay in one piece; 20 at most, 5 at least."""
    from rich.cells import cell_len

    if screen.width is None:
        return 20
    kept = [i for i, column in enumerate(table.columns) if column.kind != "bar"]
    rest = replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
    )
    grid = table_grid(rest, screen)
    most = max(6, screen.width // 3)
    used = 1 + sum(
        3 + min(most, max(map(cell_len, cells)))
        for cells in zip(grid.header, *grid.rows, strict=True)
    )
    n_bars = len(table.columns) - len(kept)
    return max(5, (screen.width - used) // n_bars - 3)


def column_blocks(
    grid: Grid, screen: Screen, *, gap: int, edge: int, max_label: int | None = None
) -> list[Grid]:
    """Cut a grid into blocks of columns that fit the screen, each with the row's labels.

    A block has at least one column of numbers, whatever the width: a number is never cut.

    Parameters
    ----------
    gap, edge
        Display columns between two cells, and at both ends of a line together.
    max_label
        Widest label; longer ones are cut with an ellipsis. Default: a third of the width.
    """
    if screen.width is None:
        return [grid]
    ellipsis = screen.house("…")
    room_for_label = max_label or max(6, screen.width // 3)
    n_keys = grid.n_keys

    def cut(cell: str) -> str:
        return fit(cell, room_for_label, ellipsis=ellipsis)

    header = tuple(cut(c) if not i or grid.is_right[i] else c for i, c in enumerate(grid.header))
    rows = tuple(
        (*(cut(c) if not grid.is_right[i] else c for i, c in enumerate(r[:n_keys])), *r[n_keys:])
        for r in grid.rows
    )
    widths = [
        max(_width(header[i]), *(_width(row[i]) for row in rows), 1) for i in range(len(header))
    ]
    fixed = edge + sum(widths[:n_keys]) + gap * (n_keys - 1)
    blocks: list[list[int]] = []
    used = fixed
    for i in range(n_keys, len(header)):
        need = gap + widths[i]
        if not blocks or (used + need > screen.width and used > fixed):
            blocks.append([])
            used = fixed
        blocks[-1].append(i)
        used += need
    if not blocks:
        return [Grid(header, rows, n_keys, grid.is_right, grid.shares)]
    keys = list(range(n_keys))
    return [
        Grid(
            _pick(header, keys + block),
            tuple(_pick(row, keys + block) for row in rows),
            n_keys,
            _pick(grid.is_right, keys + block),
            tuple(_pick(row, keys + block) for row in grid.shares),
        )
        for block in blocks
    ]


def padded(grid: Grid) -> tuple[list[int], Iterator[list[str]]]:
    """Return the display width of every column, and the lines of cells filled up to it.

    The header is the first line; numbers stand at the right of their column.
    """
    lines = (grid.header, *grid.rows)
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]

    def fill() -> Iterator[list[str]]:
        for line in lines:
            cells = []
            for cell, width, is_right in zip(line, widths, grid.is_right, strict=True):
                blank = " " * (width - _width(cell))
                cells.append(blank + cell if is_right else cell + blank)
            yield cells

    return widths, fill()


def _width(cell: str) -> int:
    """Return how many columns of a terminal a cell takes; plain characters need no library."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def _pick(items: Sequence[Any], places: list[int]) -> tuple[Any, ...]:
    return tuple(items[i] for i in places)


def _percent_writer(precision: int) -> Callable[[float], str]:
    return lambda share: write_percent(share, precision)


def _cell_writer(
    column: Column, cells: list[Any], screen: Screen, bar_width: int
) -> Callable[[Any], str]:
    if column.kind == "number":
        numbers = [c for c in cells if isinstance(c, int | float)]
        write = number_writer(numbers, screen.precision)
        return lambda c: screen.house(write(float(c)) if isinstance(c, int | float) else str(c))
    if column.kind == "percent":
        return lambda c: (
            write_percent(c, screen.precision)
            if isinstance(c, int | float)
            else screen.house(str(c))
        )
    if column.kind == "bar":
        return lambda share: screen.house(draw_bar(float(share), bar_width))
    return lambda c: screen.label(c) if isinstance(c, Label) else screen.house(str(c))


def draw_bar(share: float, width: int) -> str:
    """Draw a share between 0 and 1 as a bar of at most ``width`` cells, half cells included."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    return "█" * (halves // 2) + ("▌" if halves % 2 else "")


def in_columns(texts: Sequence[str], width: int, *, gap: int = 3) -> Iterator[str]:
    """Yield short texts side by side, read downwards, in as few lines as a width allows.

    Examples
    --------
    >>> list(in_columns(["a", "bb", "c"], 8))
    ['a    c', 'bb']
    """
    widest = max(map(_width, texts), default=0)
    n_across = max(1, (width + gap) // (widest + gap))
    n_lines = -(-len(texts) // n_across)
    for n in range(n_lines):
        row = texts[n::n_lines]
        cells = (text + " " * (widest - _width(text) + gap) for text in row)
        yield "".join(cells).rstrip()


def panels_of(heatmap: Any) -> tuple[Matrix, ...]:
    """Return a heatmap's matrices under its title, for formats that cannot draw."""
    panels: tuple[Matrix, ...] = heatmap.panels
    if len(panels) == 1:
        return (replace(panels[0], title=heatmap.title or panels[0].title, notes=heatmap.notes),)
    return tuple(replace(p, title=f"{heatmap.title} {p.title}") for p in panels)


def links_table(links: Any) -> Table:
    """Return links as a table, for formats that cannot draw lines."""
    rows = tuple(
        (q, Label(links.query_labels[q]), k, Label(links.key_labels[k]), strength, strength)
        for q, k, strength in links.links
    )
    columns = (
        Column("#", "int"),
        Column("query", "label"),
        Column("# key", "int"),
        Column("key", "label"),
        Column("weight"),
        Column("share", "bar"),
    )
    return Table(links.title, columns, rows, notes=links.notes, n_keys=2)


def series_table(series: Any) -> Table:
    """Return curves as a table, for formats that cannot draw."""
    names = tuple(series.curves)
    rows = tuple(
        (float(x), *(float(series.curves[name][i]) for name in names))
        for i, x in enumerate(series.x)
    )
    columns: tuple[Column, ...] = (Column(series.x_name), *(Column(Label(name)) for name in names))
    if series.x_labels:
        rows = tuple((label, *row[1:]) for label, row in zip(series.x_labels, rows, strict=True))
        columns = (Column(series.x_name, "label"), *columns[1:])
    return Table(series.title, columns, rows, formula=series.y_name, notes=series.notes)


def shaded_text(shape: Shaded, screen: Screen) -> str:
    """Return a shaded text without colour: per cent behind every token of at least one.

    The token that is asked about stands in brackets.
    """
    words = []
    for place, (label, share) in enumerate(zip(shape.tokens, shape.shares, strict=True)):
        shown = screen.label(label)
        shown = f"[{shown}]" if place == shape.marked else shown
        words.append(f"{shown} ({100 * share:.0f} %)" if share >= 0.01 else shown)
    return " ".join(words)
