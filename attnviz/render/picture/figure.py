"""A document as one matplotlib figure, its shapes one above the other, and its bytes as PNG, SVG or PDF.

The axes of cells have sizes in whole pixels, so that every cell is whole pixels too; matplotlib lays
out what hangs on them, the figure grows around them. The user's matplotlib settings are not looked
at: the same command gives the same bytes.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnviz.errors import UsageError
from attnviz.records import Trace
from attnviz.render.export import provenance
from attnviz.render.picture import draw as d
from attnviz.render.picture.fonts import FontBook
from attnviz.render.picture.shaded import WIDTH_PT, draw_shaded, shaded_height
from attnviz.render.pooling import MAX_LABELLED, factor_for, ordinal, symmetric_limits
from attnviz.render.screen import Paper, Screen
from attnviz.render.shapes import Document, Heatmap, Links, Matrix, Series, Shaded
from attnviz.render.tokens import visible

MAX_PX = 16_000_000
"""Largest picture, in pixels: above it cells are pooled."""
MOST_DETAILED = 16
"""Up to so many panels each has its own labels; more are a mosaic."""
_LINKS_PER_ROW = 4
Drawable: TypeAlias = Heatmap | Series | Shaded | tuple[Links, ...]
Margins: TypeAlias = tuple[int, int, int, int]
"""Pixels that hang out of axes at the left, top, right and bottom."""


class Sheet(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return to_png(Picture(self, (), {}))


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure, what had to be done otherwise than asked, and where its numbers are from."""

    figure: Figure
    notices: tuple[str, ...]
    about: dict[str, str]


@dataclass(slots=True)
class Block:
    """One shape of a figure: rows of axes of one size in pixels, words above and below."""

    grid: list[list[Axes]]
    panel: tuple[int, int]
    title: str
    notes: Sequence[str] = ()
    gap: tuple[int, int] = (14, 12)
    margins: list[list[Margins]] = field(default_factory=list)

    def measure(self) -> None:
        """Ask matplotlib how far labels, titles and legends hang out of each axes."""
        self.margins = [[_margins(ax) for ax in row] for row in self.grid]

    def places(self) -> tuple[list[int], list[int], int, int]:
        """Return the x of each column and the y of each row from the first, and the whole area."""
        columns = [
            [row[i] for row in self.margins if i < len(row)] for i in range(len(self.grid[0]))
        ]
        xs, ys = [0], [0]
        for left, right in pairwise(columns):
            room = max(m[2] for m in left) + max(m[0] for m in right) + self.gap[0]
            xs.append(xs[-1] + self.panel[0] + room)
        for above, below in pairwise(self.margins):
            room = max(m[3] for m in above) + max(m[1] for m in below) + self.gap[1]
            ys.append(ys[-1] + self.panel[1] + room)
        return xs, ys, xs[-1] + self.panel[0], ys[-1] + self.panel[1]

    def outer(self) -> Margins:
        """Return how far the block hangs out of the area of its axes."""
        return (max(row[0][0] for row in self.margins), max(m[1] for m in self.margins[0]),
                max(row[-1][2] for row in self.margins), max(m[3] for m in self.margins[-1]))  # fmt: skip


def draw(document: Document, screen: Screen) -> Picture:
    """Draw every shape of a document that can be drawn, one above the other.

    Parameters
    ----------
    document
        Heatmap, Links, Series, Shaded and Matrix shapes are drawn; text and tables are not.
    screen
        ``screen.paper`` says resolution, size, colours, font and title.

    Returns
    -------
    Picture
        At most 16 million pixels.

    Raises
    ------
    UsageError
        Nothing to draw; a size, resolution, colour map or font that cannot be.
    """
    paper = screen.paper
    if not 30 <= paper.dpi <= 1200:
        raise UsageError(f"--dpi {paper.dpi} is out of range: 30 to 1200")
    shapes = list(_drawable(document, paper.title))
    if not shapes:
        raise UsageError(
            "this result has nothing to draw: choose a text format (.md, .json, .csv), "
            "or attnviz heatmap"
        )
    size = None if paper.size_in is None else _pixels(paper.size_in, paper.dpi)
    book = FontBook(_texts(shapes), paper.font)
    budget = MAX_PX * 7 // 8 // len(shapes)
    longest = max(max(_wanted(shape, paper.dpi, budget)[0]) for shape, _ in shapes) / paper.dpi
    zoom = 1.0 if size else min(2.0, max(1.0, (longest + 1.5) / 10))
    pen = d.Pen(book, paper.colormap, paper.color_scale, zoom)
    with settings(book, zoom):
        sheet = Sheet(dpi=paper.dpi)
        FigureCanvasAgg(sheet)
        blocks = _blocks(sheet, shapes, pen, budget)
        if size is not None:
            rooms = [_room(b, size, len(blocks), paper) for b in blocks]
            sheet.clear()
            blocks = _blocks(sheet, shapes, pen, budget, rooms)
        n_px = _stack(sheet, blocks, zoom, size)
    if size is None and n_px > MAX_PX * 1.01:
        return draw(document, replace(screen, paper=_coarser(paper, n_px)))
    missing = book.notice()
    return Picture(sheet, (missing,) if missing else (), about_picture(document))


def plot(trace: Trace, ax: Axes | None = None, stage: str = "weights") -> Axes | Figure:
    """Draw a stage into axes, query down and key across; without axes make a whole Figure.

    Raises
    ------
    UsageError
        A stage that is not there, or axes for more than one head.
    """
    from attnviz.render.views import heatmap as view

    document = view.view(trace, stage=stage)
    if ax is None:
        return draw(document, Screen()).figure
    shape = document.shapes[-1]
    assert isinstance(shape, Heatmap)
    if len(shape.panels) != 1:
        raise UsageError(f"axes hold one head, this trace has {len(shape.panels)}: choose one")
    pen = d.Pen(FontBook(_texts([(shape, shape.title)])), color_scale="linear")
    d.draw_cells(shape, ax, pen, aspect="equal" if shape.is_pairwise else "auto")
    ax.set_title(shape.title, parse_math=False)
    return ax


def _drawable(document: Document, asked: str | None) -> Iterator[tuple[Drawable, str]]:
    """Yield what can be drawn, several links side by side, each with its title."""
    waiting: list[Links] = []
    found: list[tuple[Drawable, str]] = []
    for shape in (*document.shapes, None):
        if waiting and (not isinstance(shape, Links) or len(waiting) == _LINKS_PER_ROW):
            found.append(
                (tuple(waiting), waiting[0].title if len(waiting) == 1 else document.title)
            )
            waiting = []
        if isinstance(shape, Links):
            waiting.append(shape)
        elif isinstance(shape, Heatmap | Series | Shaded):
            found.append((shape, shape.title))
        elif isinstance(shape, Matrix) and shape.unit != "percent":
            found.append((heatmap_of(shape), shape.title))
    for n, (drawable, title) in enumerate(found):
        yield drawable, title if asked is None else asked if n == 0 else ""


def heatmap_of(matrix: Matrix) -> Heatmap:
    """Return one matrix as a heatmap: weights from 0 to 1, everything else centred on 0."""
    if matrix.scale == "weights":
        return Heatmap(matrix.title, (matrix,), (0.0, 1.0))
    return Heatmap(
        matrix.title, (matrix,), symmetric_limits([matrix]), value_name="value", scale="diverging"
    )


def _texts(shapes: Iterable[tuple[Drawable, str]]) -> Iterator[str]:
    for shape, title in shapes:
        yield title
        if isinstance(shape, Heatmap):
            first = shape.panels[0]
            yield from (*first.row_labels, *first.column_labels, *shape.notes)
            yield from (panel.title for panel in shape.panels)
        elif isinstance(shape, Series):
            yield from (*shape.x_labels, *shape.curves, *shape.notes)
        elif isinstance(shape, Shaded):
            yield from (*shape.tokens, *shape.notes)
        else:
            for links in shape:
                yield from (links.title, *links.query_labels, *links.key_labels, *links.notes)


# -- sizes --------------------------------------------------------------------------------------


def _wanted(shape: Drawable, dpi: int, budget: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the pixels of one panel, and how many rows and columns must become one cell.

    Cells shrink to one pixel first; then they are pooled.
    """
    px = dpi / 72
    if isinstance(shape, Series):
        return (round(468 * px), round(151 * px)), (1, 1)
    if isinstance(shape, Shaded):
        return (round(WIDTH_PT * px), round(shaded_height(shape) * px)), (1, 1)
    if isinstance(shape, tuple):
        longest = max(max(len(k.query_labels), len(k.key_labels)) for k in shape)
        pitch = 14 if longest <= 24 else 11
        height = min(longest * pitch, MAX_LABELLED * 11)
        return (round((150 if len(shape) == 1 else 105) * px), round(height * px)), (1, 1)
    n_rows, n_columns = np.shape(shape.panels[0].values)
    longest, n_panels = max(n_rows, n_columns), len(shape.panels)
    if _is_mosaic(shape):
        across = _columns(shape)
        down = math.ceil(n_panels / across)
        side_in = min(1.1, max(0.25, min(9.0 / down, 11.0 / across)))
        height = width = 72 * side_in / longest
    elif not shape.is_pairwise:
        width = min(26.0, 468 / n_columns)
        height = min(24.0, max(187 / n_rows, 10.5 if n_rows <= MAX_LABELLED else 0))
    elif longest <= MAX_LABELLED:
        inches, least, most = (4.4, 9.6, 44.0) if n_panels == 1 else (2.5, 8.0, 32.0)
        height = width = min(most, max(least, 72 * inches / longest))
    else:
        height = width = 72 * (8.0 if n_panels == 1 else 4.0 if n_panels <= 4 else 3.0) / longest
    n_cells = n_rows * n_columns * n_panels
    shrink = min(1.0, math.sqrt(budget / (n_cells * height * width * px * px)))
    cell = max(1, round(width * px * shrink)), max(1, round(height * px * shrink))
    factors = (1, 1)
    while (size := _cells(shape, factors))[0] * size[1] * cell[0] * cell[1] * n_panels > budget:
        if max(cell) > 1:
            cell = max(1, cell[0] - 1), max(1, cell[1] - 1)
        else:
            factors = min(n_rows, factors[0] + 1), min(n_columns, factors[1] + 1)
    return (size[1] * cell[0], size[0] * cell[1]), factors


def _cells(shape: Heatmap, factors: tuple[int, int]) -> tuple[int, int]:
    n_rows, n_columns = np.shape(shape.panels[0].values)
    return math.ceil(n_rows / factors[0]), math.ceil(n_columns / factors[1])


def _is_mosaic(shape: Heatmap) -> bool:
    return shape.is_thumbnails or len(shape.panels) > MOST_DETAILED


def _columns(shape: Heatmap) -> int:
    """Return how many panels stand side by side: as asked, or few left over, a little wider than high."""
    n_panels = len(shape.panels)
    if shape.n_columns:
        return min(shape.n_columns, n_panels)
    wanted = 1.3 * math.sqrt(n_panels)
    return min(range(1, n_panels + 1), key=lambda c: (-n_panels % c) + abs(c - wanted))


def _room(block: Block, size: tuple[int, int], n_blocks: int, paper: Paper) -> tuple[int, int]:
    """Return the size of a panel that makes the figure exactly this large."""
    left, top, right, bottom = block.outer()
    width, height = block.places()[2:]
    rows, columns = len(block.grid), len(block.grid[0])
    words = round((2.5 * bool(block.title) + len(block.notes)) * 10 * paper.dpi / 72)
    spare = (size[0] - (width - columns * block.panel[0]) - left - right - 12,
             size[1] // n_blocks - (height - rows * block.panel[1]) - top - bottom - words - 12)  # fmt: skip
    room = spare[0] // columns, spare[1] // rows
    if min(room) < 8:
        least = [size[i] + max(0, 8 - room[i]) * (columns, rows)[i] for i in (0, 1)]
        raise UsageError(
            f"--size {size[0] / paper.dpi:g}x{size[1] / paper.dpi:g} is too small for its labels: "
            f"at least {least[0] / paper.dpi:.1f}x{least[1] / paper.dpi:.1f} inches"
        )
    return room


def _pixels(size_in: tuple[float, float], dpi: int) -> tuple[int, int]:
    size = round(size_in[0] * dpi), round(size_in[1] * dpi)
    if min(size) < 1 or size[0] * size[1] > MAX_PX:
        raise UsageError(
            f"--size {size_in[0]:g}x{size_in[1]:g} at {dpi} dpi is {size[0] * size[1] / 1e6:.1f} million "
            f"pixels: at most {MAX_PX / 1e6:g}; give inches, for example 6x4"
        )
    return size


def _coarser(paper: Paper, n_px: int) -> Paper:
    dpi = max(30, int(paper.dpi * math.sqrt(MAX_PX / n_px) * 0.98))
    if dpi >= paper.dpi:
        raise UsageError("too much for one picture: choose one stage, or fewer heads")
    return replace(paper, dpi=dpi)


# -- blocks -------------------------------------------------------------------------------------


def _blocks(
    sheet: Figure,
    shapes: Sequence[tuple[Drawable, str]],
    pen: d.Pen,
    budget: int,
    rooms: Sequence[tuple[int, int]] = (),
) -> list[Block]:
    """Make the axes of every shape, in panels of the wanted size or of ``rooms``."""
    blocks: list[Block] = []
    strip = None
    for n, (shape, title) in enumerate(shapes):
        panel, factors = _wanted(shape, int(sheet.dpi), budget)
        if isinstance(shape, Series) and len(shape.x) == strip:
            panel = blocks[-1].panel[0], panel[1]  # bars stand under their columns
        if rooms:
            panel, factors = _fit(shape, rooms[n])
        title = pen.book.text(title) if title else ""
        if isinstance(shape, Heatmap):
            block = _heatmap_block(sheet, shape, title, pen, panel, factors)
            strip = None if shape.is_pairwise else np.shape(shape.panels[0].values)[1]
        elif isinstance(shape, Series):
            ax = _axes(sheet, panel)
            said = d.draw_series(shape, ax, pen)
            block = Block([[ax]], panel, title, (*said, *shape.notes))
        elif isinstance(shape, Shaded):
            ax = _axes(sheet, panel)
            draw_shaded(shape, ax, pen)
            block = Block([[ax]], panel, title, shape.notes)
        else:
            block = _links_block(sheet, shape, title, pen, panel)
        block.measure()
        blocks.append(block)
    return blocks


def _fit(shape: Drawable, room: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return a panel for a room: square cells where both sides are tokens, pooled where too many."""
    if not isinstance(shape, Heatmap) or _is_mosaic(shape):
        return room, (1, 1)
    n_rows, n_columns = np.shape(shape.panels[0].values)
    factors = factor_for(n_rows, room[1]), factor_for(n_columns, room[0])
    if not shape.is_pairwise:
        return room, factors
    cell = min(room[0] / n_columns, room[1] / n_rows)
    return (max(1, int(cell * n_columns)), max(1, int(cell * n_rows))), (max(factors), max(factors))


def _heatmap_block(
    sheet: Figure,
    shape: Heatmap,
    title: str,
    pen: d.Pen,
    panel: tuple[int, int],
    factors: tuple[int, int],
) -> Block:
    columns = _columns(shape)
    n_rows, n_columns = _cells(shape, factors)
    if _is_mosaic(shape):
        rows = math.ceil(len(shape.panels) / columns)
        cell = panel[0] / n_columns
        gap = max(1, round(pen.zoom * 4 * sheet.dpi / 72 / cell))
        whole = (round((columns * (n_columns + gap) - gap) * cell),
                 round((rows * (n_rows + gap) - gap) * cell))  # fmt: skip
        ax = _axes(sheet, whole)
        said = d.draw_mosaic(shape, ax, pen, columns=columns, gap=gap, factor=factors[0])
        grid, panel = [[ax]], whole
    else:
        axes = [_axes(sheet, panel) for _ in shape.panels]
        grid = [axes[i : i + columns] for i in range(0, len(axes), columns)]
        is_large = (
            factors == (1, 1)
            and min(panel[0] / n_columns, panel[1] / n_rows) >= 14 * sheet.dpi / 72
        )
        for n, ax in enumerate(axes):
            said = d.draw_cells(shape, ax, pen, panel=n, factors=factors)
            if is_large:
                d.rule_cells(ax, n_rows, n_columns)
            if n % columns:
                ax.set(yticks=[], ylabel="")
            if n >= columns:
                ax.set(xticks=[], xlabel="")
            if len(axes) > 1:
                ax.set_title(shape.panels[n].title, loc="left", **pen.words(d.LABEL_PT))
        if factors == (1, 1):
            d.write_numbers(shape, axes, pen)
    d.draw_bar(shape, grid[0][-1], pen)
    d.explain_masked(shape, grid[-1][0], pen)
    return Block(grid, panel, title, (*said, *shape.notes))


def _links_block(
    sheet: Figure, shapes: tuple[Links, ...], title: str, pen: d.Pen, panel: tuple[int, int]
) -> Block:
    axes = [_axes(sheet, panel) for _ in shapes]
    for n, (links, ax) in enumerate(zip(shapes, axes, strict=True)):
        step = d.draw_links(links, ax, pen, d.COLORS[n % len(d.COLORS)])
        if len(shapes) > 1:
            ax.set_title(links.title, **pen.words(d.LABEL_PT))
    said = [f"every {ordinal(step)} token is labelled"] if step > 1 else []
    notes = dict.fromkeys(note for links in shapes for note in links.notes)
    return Block([axes], panel, title, (*said, *notes))


def _axes(sheet: Figure, panel: tuple[int, int]) -> Axes:
    """Return axes of this size in pixels; where they are is found out later."""
    width, height = sheet.bbox.size
    return sheet.add_axes((0.0, 0.0, panel[0] / width, panel[1] / height))


def _margins(ax: Axes) -> Margins:
    tight: Any = ax.get_tightbbox()
    box = ax.bbox
    out = (box.x0 - tight.x0, tight.y1 - box.y1, tight.x1 - box.x1, box.y0 - tight.y0)
    left, top, right, bottom = (max(0, math.ceil(side)) for side in out)
    return left, top, right, bottom


def _stack(
    sheet: Figure, blocks: Sequence[Block], zoom: float, size: tuple[int, int] | None
) -> int:
    """Put the blocks one above the other in a figure that just holds them; return its pixels."""
    dpi = sheet.dpi

    def px(points: float) -> int:
        return round(points * zoom * dpi / 72)

    edge = px(8)
    left = edge + max(b.outer()[0] for b in blocks)
    width = max(left + b.places()[2] + b.outer()[2] + edge for b in blocks)
    width = max(width, px(250)) if size is None else size[0]
    words: list[tuple[Any, int, int]] = []
    boxes: list[tuple[Axes, tuple[int, int, int, int]]] = []

    def write(text: str, x: int, y: int, size_pt: float, color: str) -> int:
        style: dict[str, Any] = {"fontsize": size_pt * zoom, "parse_math": False}
        lines = _wrap(text, sheet, width - x - edge, **style)
        words.append((sheet.text(0, 0, "\n".join(lines), color=color, va="top", **style), x, y))
        return len(lines) * px(size_pt * 1.35)

    y = 0
    for block in blocks:
        xs, ys, across, down = block.places()
        _, top, right, bottom = block.outer()
        y += edge
        start = (
            left if size is None else max(left, (width - across - right + block.outer()[0]) // 2)
        )
        if block.title:
            y += write(block.title, edge, y, d.TITLE_PT, d.INK) + px(4)
        y += top
        for row, row_y in zip(block.grid, ys, strict=True):
            for ax, x in zip(row, xs, strict=False):
                boxes.append((ax, (start + x, y + row_y, *block.panel)))
        y += down + bottom + px(3)
        for note in block.notes:
            y += write(note, start, y, d.SMALL_PT, d.MUTED)
    height = y + px(5) if size is None else size[1]
    sheet.set_size_inches(width / dpi, height / dpi)
    for text, x, top in words:
        text.set_position((x / width, 1 - top / height))
    for ax, (x, y, w, h) in boxes:
        ax.set_position((x / width, 1 - (y + h) / height, w / width, h / height))
    return width * height


def _wrap(text: str, sheet: Figure, width: float, **style: Any) -> list[str]:
    """Break a text at blanks into lines not wider than this many pixels."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and d.width_of(longer, sheet, **style) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


# -- bytes --------------------------------------------------------------------------------------


def render(
    document: Document, screen: Screen, kind: str, say: Callable[[str], None] | None = None
) -> bytes:
    """Draw a document as ``png``, ``svg`` or ``pdf``; ``say`` is told of missing glyphs."""
    picture = draw(document, screen)
    for notice in picture.notices if say is not None else ():
        say(notice)  # type: ignore[misc]
    if kind == "png":
        return to_png(picture)
    about = picture.about
    facts: dict[str, str | None] = {"Title": about["Title"], "Creator": about["Software"]}
    if kind == "svg":
        facts |= {"Date": None, "Description": about["Description"]}
    else:
        facts |= {"Producer": about["Software"], "Subject": about["Description"]}
        facts["CreationDate"] = None
    out = io.BytesIO()
    with settings(svg_text="path" if screen.paper.outlines else "none"):
        for text in picture.figure.findobj(Text) if kind == "svg" else ():
            text.set_fontfamily([*text.get_fontfamily(), "sans-serif"])  # where it is not installed
        picture.figure.savefig(out, format=kind, metadata=facts)
    return out.getvalue()


def to_png(picture: Picture) -> bytes:
    """Return PNG bytes with provenance as text chunks, without a date."""
    out = io.BytesIO()
    level = 3  # half the time of 6 for a fifth more bytes
    with settings():
        canvas: Any = picture.figure.canvas
        canvas.print_png(out, metadata=picture.about, pil_kwargs={"compress_level": level})
    return out.getvalue()


def about_picture(document: Document) -> dict[str, str]:
    """Return what goes into a picture's metadata: ASCII, without user, host or path."""
    facts = provenance(document)
    title = visible(document.title or "attnviz").encode("ascii", "backslashreplace").decode()
    return {
        "Title": title,
        "Software": f"attnviz {facts['version']}",
        "Description": json.dumps(facts, ensure_ascii=True, sort_keys=True),
    }


def settings(
    book: FontBook | None = None, zoom: float = 1.0, svg_text: str = "none"
) -> AbstractContextManager[None]:
    """Return matplotlib's own defaults and ours, whatever the user's settings file says."""
    plain: dict[Any, Any] = {
        k: v for k, v in mpl.rcParamsDefault.items()
        if not k.startswith("backend") and mpl.rcParams[k] != v
    }  # fmt: skip
    fonts: dict[Any, Any] = {} if book is None else {"font.family": book.families, **book.style}
    ours: dict[Any, Any] = {
        **plain, **fonts,
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
        "font.size": d.LABEL_PT * zoom, "axes.titlesize": d.LABEL_PT * zoom, "axes.titlepad": 5 * zoom,
        "axes.labelsize": d.LABEL_PT * zoom, "axes.labelpad": 5 * zoom, "axes.labelcolor": d.MUTED,
        "axes.edgecolor": d.HAIRLINE, "axes.linewidth": 0.6, "text.color": d.INK,
        "xtick.labelsize": d.LABEL_PT * zoom, "ytick.labelsize": d.LABEL_PT * zoom,
        "xtick.color": d.HAIRLINE, "ytick.color": d.HAIRLINE, "xtick.labelcolor": d.INK,
        "ytick.labelcolor": d.INK, "xtick.major.size": 2, "ytick.major.size": 2,
        "xtick.major.pad": 2.5 * zoom, "ytick.major.pad": 2.5 * zoom,
        "grid.color": d.HAIRLINE, "grid.linewidth": 0.5, "legend.frameon": False,
        "legend.fontsize": d.SMALL_PT * zoom, "legend.labelcolor": d.MUTED,
        "image.composite_image": False, "text.usetex": False,
        "svg.hashsalt": "attnviz", "pdf.fonttype": 42, "svg.fonttype": svg_text,
    }  # fmt: skip
    return mpl.rc_context(ours)
