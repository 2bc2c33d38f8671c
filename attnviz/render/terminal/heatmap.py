"""A Heatmap for a terminal: coloured cells with numbers, half blocks, digits or shades.

What lives here: which of these fits a width, and the lines of text. What does not: turning
colours into a terminal's codes (``formats.table``), pooling (``pooling``).

Modes, the first that fits: ``numbers`` (a number per cell, short ones from 4 columns on), ``wide``
(two columns per cell; per cent without colour), ``half`` (a column per cell, two rows per line;
shades without colour), then ``half`` with pooled cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Literal, TypeAlias

import numpy as np

from attnviz.records import Array
from attnviz.render.colors import Rgb, color_of, ink_on
from attnviz.render.pooling import factor_for, ordinal, pool, shading_of, tick_text
from attnviz.render.screen import Screen
from attnviz.render.shapes import Heatmap, Label, Matrix
from attnviz.render.terminal.names import name_lines
from attnviz.render.text import in_columns, number_writer, write_text
from attnviz.render.tokens import fit

Mode: TypeAlias = Literal["numbers", "wide", "half"]
PIPE_WIDTH = 200
_MAX_NUMBERED = 64
_LEAST_NUMBER, _LEAST_PERCENT = 4, 3
_MIN_LABEL = 3
_ASIDE = "  "
_RAMP = 24
_ASCII_POSITIVE, _POSITIVE = " .:-=+*#%@", " ░▒▓█"
_SIGNED = "%=- +*#"
_RAMPS: dict[str, tuple[Rgb, ...]] = {
    # sixteen colours: only those every terminal shows as told apart by lightness
    "weights": ((255, 255, 255), (192, 192, 192), (0, 128, 128), (0, 0, 255), (0, 0, 128)),
    "diverging": ((0, 0, 128), (0, 128, 128), (192, 192, 192), (128, 128, 0), (128, 0, 0)),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text with one pair of colours; None is the terminal's own."""

    text: str
    ink: Rgb | None = None
    paper: Rgb | None = None
    is_dim: bool = False


Line: TypeAlias = list[Piece]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a panel is drawn: the mode, the pooling, and the width of the labels."""

    mode: Mode
    factor: tuple[int, int]
    label_width: int
    cell_width: int
    has_remarks_beside: bool = False


def heatmap_lines(heatmap: Heatmap, screen: Screen) -> Iterator[Line]:
    """Yield the lines of all panels, then the legend.

    A line is never wider than the screen. Whatever the size of the matrix, there are at most as
    many cells in a line as columns: more are pooled by the largest, and the legend says so.
    """
    scale = screen.paper.colormap or heatmap.scale
    if heatmap.is_thumbnails:
        yield from _thumbnail_lines(heatmap, screen, scale)
        return
    labels = _row_labels(heatmap, screen)
    plan = _plan(heatmap, screen, labels)
    for panel in heatmap.panels:
        if len(heatmap.panels) > 1:
            yield [Piece(screen.label(panel.title), is_dim=False)]
        yield from _panel_lines(panel, heatmap, screen, plan, labels, scale)
    yield from _legend(heatmap, screen, plan, scale)
    if heatmap.remarks and not plan.has_remarks_beside:
        texts = [write_text(text, screen) for text in heatmap.remarks]
        yield from ([Piece(line)] for line in in_columns(texts, screen.width or PIPE_WIDTH))


def _thumbnail_lines(heatmap: Heatmap, screen: Screen, scale: str) -> Iterator[Line]:
    """Yield thumbnails side by side under their titles, without labels.

    A grid has a row per layer and a column per head where the width allows, named once.
    """
    width = screen.width or 80
    n_rows, n_columns = np.asarray(heatmap.panels[0].values).shape
    wanted = heatmap.n_columns or len(heatmap.panels)
    titles = [screen.label(panel.title) for panel in heatmap.panels]
    is_grid = heatmap.n_columns > 1 and all("." in title for title in titles)
    layers = [title.partition(".")[0] + " " if is_grid else "" for title in titles]
    names = [title.rpartition(".")[2] if is_grid else title for title in titles]
    margin, widest = max(map(len, layers)), max(map(len, names))
    left = width - margin + 1
    across = max(1, min(wanted, left // (max(3 if is_grid else 6, widest) + 1)))
    across = -(-wanted // -(-wanted // across))  # lines of one length
    side = max(1, min(max(n_columns, widest), left // across - 1))
    factor = factor_for(max(n_rows, n_columns), side)
    plan = Plan("half", (factor, factor), 0, 1)
    room = max(widest, -(-n_columns // factor))
    shading, is_diverging = (
        shading_of(heatmap, screen.paper.color_scale),
        heatmap.scale == "diverging",
    )
    at = 0
    while at < len(titles):
        end = min(at + across, (at // wanted + 1) * wanted, len(titles))
        if at and at % wanted == 0:
            yield [Piece("")]
        if not (is_grid and at and across == wanted):
            cells = (fit(name, room).ljust(room) for name in names[at:end])
            yield [Piece((" " * margin + " ".join(cells)).rstrip())]
        blocks = []
        for panel in heatmap.panels[at:end]:
            pooled = pool(panel.values, panel.hidden, plan.factor, is_diverging=is_diverging)
            shares, blank = shading.share(pooled[0]), ("",) * n_rows
            drawn = _half_lines(shares, pooled[1], screen, plan, blank, scale, is_diverging)
            blocks.append(list(drawn))
        for n, lines in enumerate(zip(*blocks, strict=True)):
            joined: Line = [Piece((layers[at] if n == 0 else "").ljust(margin))]
            for line in lines:
                cells_used = sum(len(piece.text) for piece in line[1:])
                joined += [*line[1:], Piece(" " * (room - cells_used + 1))]
            yield _merged(joined[:-1])
        at = end
    yield from _legend(heatmap, screen, plan, scale)


def _row_labels(heatmap: Heatmap, screen: Screen) -> tuple[str, ...]:
    """Return ``12 bear``: the index, right-aligned, so that a column can be found by number."""
    own = heatmap.panels[0].row_labels
    if heatmap.pooled > 1:
        return tuple(screen.label(label) for label in own)
    digits = len(str(max(0, len(own) - 1)))
    return tuple(f"{i:>{digits}} {screen.label(label)}" for i, label in enumerate(own))


def _plan(heatmap: Heatmap, screen: Screen, labels: tuple[str, ...]) -> Plan:
    from rich.cells import cell_len

    n_rows, n_columns = np.asarray(heatmap.panels[0].values).shape
    width = screen.width or PIPE_WIDTH
    widest = max(cell_len(label) for label in (*labels[:4096], heatmap.panels[0].row_axis))
    label_width = max(_MIN_LABEL, min(widest, max(_MIN_LABEL, width // 4)))
    room = max(1, width - label_width - 1)
    if n_columns <= _MAX_NUMBERED and n_rows <= _MAX_NUMBERED:
        header = [cell_len(screen.label(c)) for c in heatmap.panels[0].column_labels]
        wanted = max([_number_width(heatmap, screen), *(min(w + 1, 9) for w in header)])
        for has_remarks, left in _rooms(heatmap, screen, room):
            for cells in range(wanted, _least_width(heatmap, screen) - 1, -1):
                if n_columns * cells <= left or screen.width is None:
                    return Plan("numbers", (1, 1), label_width, cells, has_remarks)
    if n_columns * 3 <= room and n_rows <= 4 * _MAX_NUMBERED and screen.colors == "none":
        return Plan("wide", (1, 1), label_width, 3)
    if n_columns * 2 <= room and n_rows <= 4 * max(n_columns, _MAX_NUMBERED):
        return Plan("wide", (1, 1), label_width, 2)
    factor = factor_for(n_columns, room)
    rows = factor if heatmap.is_pairwise else factor_for(n_rows, 2 * room)
    return Plan("half", (rows, factor), label_width, 1)


def _rooms(heatmap: Heatmap, screen: Screen, room: int) -> Iterator[tuple[bool, int]]:
    """Yield the columns left for cells: with the remarks beside them, then without."""
    from rich.cells import cell_len

    if len(heatmap.remarks) == len(heatmap.panels[0].values):
        widest = max(cell_len(write_text(text, screen)) for text in heatmap.remarks)
        yield True, room - widest - len(_ASIDE)
    yield False, room


def _number_width(heatmap: Heatmap, screen: Screen) -> int:
    texts = [_write(heatmap, screen)(v) for p in heatmap.panels for v in _ends(p)]
    return max((len(text) for text in texts), default=1) + 2


def _least_width(heatmap: Heatmap, screen: Screen) -> int:
    """Return the fewest columns in which every number can be read, a blank included."""
    if heatmap.panels[0].unit == "percent":
        top = max(v for p in heatmap.panels for v in _ends(p))
        is_glued = top >= 0.995 and screen.colors == "none"  # 0 and 100 would read 0100
        return _LEAST_NUMBER if top < 0.1 or is_glued else _LEAST_PERCENT
    texts = [_short(v, _LEAST_NUMBER - 1) for p in heatmap.panels for v in _ends(p)]
    return max(_LEAST_NUMBER, max(map(len, texts)) + 1)


def _short(number: float, room: int) -> str:
    """Write a number in few columns: .38, 1.0, -62."""
    for digits in (2, 1, 0):
        text = f"{number:.{digits}f}"
        if digits:
            text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
        if len(text) <= room:
            break
    return text.removeprefix("-") if not text.strip("-.0") else text


def _ends(panel: Matrix) -> list[float]:
    values, hidden = pool(panel.values, panel.hidden, (1, 1))
    shown = values[~hidden]
    return [float(shown.min()), float(shown.max())] if shown.size else [0.0]


def _write(heatmap: Heatmap, screen: Screen) -> Callable[[float], str]:
    """Return how a cell's number is written: two digits, four where all are small; whole per cent."""
    if heatmap.panels[0].unit == "percent":
        n_digits = 0 if max(v for p in heatmap.panels for v in _ends(p)) >= 0.1 else 1
        return lambda share: f"{100 * share:.{n_digits}f}"
    top = max(abs(v) for p in heatmap.panels for v in _ends(p))
    digits = min(screen.precision, 2 if top >= 0.1 else 4)
    return number_writer([top], digits)


def _panel_lines(
    panel: Matrix,
    heatmap: Heatmap,
    screen: Screen,
    plan: Plan,
    labels: tuple[str, ...],
    scale: str,
) -> Iterator[Line]:
    is_diverging = heatmap.scale == "diverging"
    values, hidden = pool(panel.values, panel.hidden, plan.factor, is_diverging=is_diverging)
    shares = shading_of(heatmap, screen.paper.color_scale).share(values)
    yield from _header(panel, screen, plan, values.shape[1])
    if plan.mode == "half":
        yield from _half_lines(shares, hidden, screen, plan, labels, scale, is_diverging)
        return
    write = _write(heatmap, screen)
    if plan.mode == "numbers" and plan.cell_width < _number_width(heatmap, screen):
        write = partial(_short, room=plan.cell_width - 1) if panel.unit != "percent" else write
    for i in range(len(values)):
        line = [_label(labels[i], plan, screen)]
        for j in range(values.shape[1]):
            if hidden[i, j]:
                line.append(Piece(screen.house("·").rjust(plan.cell_width), is_dim=True))
                continue
            share = float(shares[i, j])
            paper = _cell_color(share, screen, scale)
            if plan.mode == "numbers":
                text = screen.house(write(float(values[i, j])))
                is_roomy = paper and plan.cell_width > len(text) + 1
                text = text.center(plan.cell_width) if is_roomy else text.rjust(plan.cell_width)
            elif paper:
                text = " " * plan.cell_width
            else:
                text = _digits(share, plan.cell_width, is_diverging, screen)
            line.append(Piece(text, ink_on(paper) if paper else None, paper))
        if plan.has_remarks_beside:
            line.append(Piece(_ASIDE + write_text(heatmap.remarks[i], screen)))
        yield _merged(line)


def _half_lines(
    shares: Array,
    hidden: Array,
    screen: Screen,
    plan: Plan,
    labels: tuple[str, ...],
    scale: str,
    is_diverging: bool,
) -> Iterator[Line]:
    """Yield two rows of cells per line of text; one where there are neither colours nor blocks."""
    has_colors = screen.colors != "none" and screen.can("▀")
    step = 2 if has_colors else 1
    for i in range(0, len(shares), step):
        line = [_label(labels[i * plan.factor[0]], plan, screen)]
        for j in range(shares.shape[1]):
            upper = None if hidden[i, j] else float(shares[i, j])
            if not has_colors:
                text = screen.house("·") if upper is None else _shade(upper, is_diverging, screen)
                line.append(Piece(text, is_dim=upper is None))
                continue
            has_lower = i + 1 < len(shares) and not hidden[i + 1, j]
            lower = float(shares[i + 1, j]) if has_lower else None
            line.append(_half_cell(upper, lower, screen, scale))
        yield [line[0], *_merged(line[1:])]


def _half_cell(upper: float | None, lower: float | None, screen: Screen, scale: str) -> Piece:
    if upper is None and lower is None:
        return Piece(" ")
    if upper is None:
        return Piece("▄", _cell_color(lower or 0.0, screen, scale))
    if lower is None:
        return Piece("▀", _cell_color(upper, screen, scale))
    return Piece("▀", _cell_color(upper, screen, scale), _cell_color(lower, screen, scale))


def _header(panel: Matrix, screen: Screen, plan: Plan, n_cells: int) -> Iterator[Line]:
    """Yield the keys' names over their cells, and numbers where cells are too narrow for names."""
    from rich.cells import cell_len

    corner = fit(panel.row_axis, plan.label_width, ellipsis=screen.house("…"))
    start = corner + " " * (plan.label_width - cell_len(corner) + 1)
    if plan.mode != "numbers":
        yield [Piece(start + _ruler(n_cells, plan, panel.column_axis), is_dim=True)]
        if plan.factor[1] > 1 or not panel.column_labels:
            return
        start = ""
    names = panel.column_labels or tuple(Label(i) for i in range(n_cells))
    lines = name_lines(
        [screen.label(name) for name in names],
        plan.cell_width if plan.mode == "numbers" else min(2, plan.cell_width),
        room=(screen.width or PIPE_WIDTH + n_cells * plan.cell_width) - plan.label_width - 1,
        centered=screen.colors != "none",
        ellipsis=screen.house("…"),
    )
    for n, line in enumerate(lines):
        indent = start if n == 0 and start else " " * (plan.label_width + 1)
        yield [Piece((indent + line).rstrip())]


def _ruler(n_cells: int, plan: Plan, axis: str) -> str:
    """Write every so many cells its number, so that ``12`` stands above cell 12."""
    step = 5 if plan.cell_width == 2 else 10
    line = ""
    for cell in range(0, n_cells, step):
        number = str(cell * plan.factor[1])
        at = cell * plan.cell_width
        if at < len(line) + bool(line) or at + len(number) > n_cells * plan.cell_width:
            continue
        line = line.ljust(at) + number
    tail = f" {axis}"
    return line + tail if len(line) + len(tail) <= n_cells * plan.cell_width else line


def _label(label: str, plan: Plan, screen: Screen) -> Piece:
    from rich.cells import cell_len

    text = fit(label, plan.label_width, ellipsis=screen.house("…"))
    return Piece(text + " " * (plan.label_width - cell_len(text) + 1))


def _cell_color(share: float, screen: Screen, scale: str) -> Rgb | None:
    if screen.colors == "none":
        return None
    if screen.colors == "standard":
        from attnviz.render.colors import DIVERGING

        ramp = _RAMPS["diverging" if scale == "diverging" or scale in DIVERGING else "weights"]
        return ramp[min(len(ramp) - 1, int(share * len(ramp)))]
    return color_of(share, scale)


def _digits(share: float, width: int, is_diverging: bool, screen: Screen) -> str:
    """Write a cell: per cent in three columns, tenths in two; with its sign where it has one."""
    if is_diverging:
        tenths = min(9, int(abs(2 * share - 1) * 10))
        sign = screen.house("−") if share < 0.5 else "+"
        return (f"{sign}{tenths}" if tenths else "0").rjust(width)
    if width == 2:
        tenths = int(10 * share + 0.5)
        return ("#" if tenths > 9 else str(tenths)).rjust(width)
    percent = round(100 * share)
    return ("##" if percent >= 100 else str(percent)).rjust(width)


def _shade(share: float, is_diverging: bool, screen: Screen) -> str:
    if is_diverging:
        return _SIGNED[min(len(_SIGNED) - 1, int(share * len(_SIGNED)))]
    ramp = _POSITIVE if screen.can(_POSITIVE) else _ASCII_POSITIVE
    return ramp[min(len(ramp) - 1, int(share * (len(ramp) - 1) + 0.999))] if share > 0 else ramp[0]


def _legend(heatmap: Heatmap, screen: Screen, plan: Plan, scale: str) -> Iterator[Line]:
    """Yield the scale with its ends, what masked cells look like, and what was pooled or left out."""
    is_percent = heatmap.panels[0].unit == "percent"
    low, high = (100 * end if is_percent else end for end in heatmap.limits)
    unit = " in %" if is_percent else f" in {heatmap.unit}" if heatmap.unit else ""
    ends = [screen.house(tick_text(v, high - low)) for v in (low, high)]
    is_diverging = heatmap.scale == "diverging"
    line = [Piece(screen.house(f"{heatmap.value_name}{unit} {ends[0]} "))]
    width = screen.width or PIPE_WIDTH
    n = max(2, min(_RAMP, width - len(line[0].text) - len(ends[1]) - 1))
    for i in range(n):
        share = i / (n - 1)
        color = _cell_color(share, screen, scale)
        if color is not None:
            line.append(Piece(" ", None, color))
        elif plan.mode == "half":
            line.append(Piece(_shade(share, is_diverging, screen)))
    if screen.colors == "none" and plan.mode != "half":
        line.append(Piece("to"))
    line.append(Piece(screen.house(f" {ends[1]}")))
    if any(p.hidden is not None and np.any(p.hidden) for p in heatmap.panels):
        how = "blank" if plan.mode == "half" and screen.colors != "none" else screen.house("·")
        said = Piece(f"   {how} masked", is_dim=True)
        if sum(len(piece.text) for piece in (*line, said)) <= width:
            line.append(said)
        else:
            yield _merged(line)
            line = [Piece(said.text.lstrip(), is_dim=True)]
    yield _merged(line)
    for text in _sayings(heatmap, screen, plan, is_diverging):
        for part in wrap(screen.house(text), width):
            yield [Piece(part, is_dim=True)]


def _sayings(heatmap: Heatmap, screen: Screen, plan: Plan, is_diverging: bool) -> Iterator[str]:
    rows, columns = (f * heatmap.pooled for f in plan.factor)
    if (rows, columns) != (1, 1):
        which = "farthest from 0" if is_diverging else "largest"
        yield f"each cell is the {which} of {rows} × {columns} cells"
    if plan.mode == "half":
        per_line = 2 if screen.colors != "none" and screen.can("▀") else 1
        if per_line * rows > 1 and not heatmap.is_thumbnails:
            yield f"every {ordinal(per_line * rows)} {heatmap.panels[0].row_axis} is labelled"
    if plan.mode == "wide" and screen.colors == "none":
        if is_diverging:
            yield "in tenths of the scale's end"
        else:
            yield "in per cent; ## is 100" if plan.cell_width == 3 else "in tenths; # is 1"
    yield from heatmap.notes


def _merged(line: Line) -> Line:
    """Join neighbours of the same colours into one piece."""
    merged: Line = []
    for piece in line:
        last = merged[-1] if merged else None
        if last and (last.ink, last.paper, last.is_dim) == (piece.ink, piece.paper, piece.is_dim):
            merged[-1] = Piece(last.text + piece.text, last.ink, last.paper, last.is_dim)
        else:
            merged.append(piece)
    return merged
