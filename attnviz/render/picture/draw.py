"""A shape drawn into matplotlib axes: cells, a mosaic of many heads, links, curves, shaded text.

Whatever is beside the axes (tick labels, colour bar, legend) hangs on them, so that a figure only has
to ask how much room the axes need. Nothing is drawn once per cell but numbers where they fit, and
no label once per token of a long text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from attnviz.render.colors import ink_on, masked_color, palette
from attnviz.render.picture.fonts import FontBook
from attnviz.render.pooling import MAX_LABELLED, Shading, ordinal, pool, scale_note, shading_of
from attnviz.render.shapes import Heatmap, Label, Links, Series

INK, MUTED, HAIRLINE = "#1f2328", "#59636e", "#c9d1d9"
TITLE_PT, LABEL_PT, SMALL_PT = 11.0, 8.5, 7.0
MAX_LABEL_COLUMNS = 24
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#882255")
"""Distinct with the common kinds of colour blindness (Okabe & Ito 2008, then Tol)."""
_N_COLORS = 253  # odd, so that zero has the middle one
_MAX_NUMBERS = 900
_BAR_IN = 4.4
_ROUND_STEPS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 200, 256, 500, 512,
                1000, 1024, 2000, 2048, 4096)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paint:
    """How values become colours: the scale, and matplotlib's view of it."""

    shading: Shading
    norm: Normalize
    mappable: ScalarMappable


@dataclass(frozen=True, slots=True)
class Pen:
    """What all axes of a picture are drawn with: fonts, colours, and how much larger text is."""

    book: FontBook
    colormap: str | None = None
    color_scale: str = "auto"
    zoom: float = 1.0

    def words(self, size_pt: float, **more: Any) -> dict[str, Any]:
        """Return the properties of a text of this size that may hold a stranger's words."""
        return {**self.book.of_labels, "fontsize": size_pt * self.zoom, **more}

    def paint(self, heatmap: Heatmap) -> Paint:
        """Return the colour map of a heatmap with its scale."""
        name = self.colormap or heatmap.scale
        table = np.array(palette(name, _N_COLORS)) / 255
        colors = ListedColormap(table, bad=_rgb(masked_color(name)))
        shading = shading_of(heatmap, self.color_scale)
        is_linear = shading.spread == "linear"
        norm = Normalize(shading.low, shading.high) if is_linear else _ShadingNorm(shading)
        return Paint(shading, norm, ScalarMappable(norm, colors))


def draw_cells(
    heatmap: Heatmap,
    ax: Axes,
    pen: Pen,
    *,
    panel: int = 0,
    factors: tuple[int, int] = (1, 1),
    aspect: Literal["auto", "equal"] = "auto",
) -> list[str]:
    """Draw one panel with its labels; return what the picture must say about itself.

    Parameters
    ----------
    ax
        Axes that already have their size: it decides how many labels fit.
    factors
        Rows and columns that become one cell, the one farthest from 0 or the largest.
    """
    matrix = heatmap.panels[panel]
    n_rows, n_columns = np.shape(matrix.values)
    is_diverging = heatmap.scale == "diverging"
    values, hidden = pool(matrix.values, matrix.hidden, factors, is_diverging=is_diverging)
    paint = pen.paint(heatmap)
    ax.imshow(
        np.ma.array(values, mask=hidden), cmap=paint.mappable.cmap, norm=paint.norm, aspect=aspect,
        interpolation="none", extent=(-0.5, n_columns - 0.5, n_rows - 0.5, -0.5),
    )  # fmt: skip
    ax.spines[:].set_zorder(-1)  # a frame on top would hide half of the outermost cells
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    steps = [_label_axis(ax.yaxis, matrix.row_labels, pen)]
    if matrix.column_labels:
        steps.append(_label_axis(ax.xaxis, matrix.column_labels, pen))
    else:
        ax.xaxis.set_major_locator(
            MaxNLocator(16, integer=True, steps=[1, 2, 4, 8, 10], min_n_ticks=1)
        )
    ax.set_ylabel(matrix.row_axis)
    ax.set_xlabel(matrix.column_axis)
    said = []
    if len(set(steps)) == 1 and steps[0] > 1:
        said.append(f"every {ordinal(steps[0])} token is labelled")
    else:
        axes = (matrix.row_axis, matrix.column_axis)
        said += [f"every {ordinal(n)} {a} is labelled" for n, a in zip(steps, axes, strict=False) if n > 1]  # fmt: skip
    return said + said_of_cells(heatmap, factors, paint)


def said_of_cells(heatmap: Heatmap, factors: tuple[int, int], paint: Paint) -> list[str]:
    """Return what must be known to read the colours: pooled cells, a scale that is not linear."""
    said = []
    rows, columns = (f * heatmap.pooled for f in factors)
    if (rows, columns) != (1, 1):
        which = "farthest from 0" if heatmap.scale == "diverging" else "largest"
        said.append(f"each cell is the {which} of {rows} × {columns} cells")
    if note := scale_note(paint.shading):
        said.append(note)
    return said


def rule_cells(ax: Axes, n_rows: int, n_columns: int, width_pt: float = 0.6) -> None:
    """Draw thin white lines between cells."""
    ax.vlines(np.arange(1, n_columns) - 0.5, -0.5, n_rows - 0.5, colors="white", linewidth=width_pt)
    ax.hlines(np.arange(1, n_rows) - 0.5, -0.5, n_columns - 0.5, colors="white", linewidth=width_pt)


def write_numbers(heatmap: Heatmap, grid: Sequence[Axes], pen: Pen) -> None:
    """Write the numbers into the cells of all panels, where one size and precision fits them all."""
    panels = [pool(p.values, p.hidden, (1, 1)) for p in heatmap.panels]
    shown = np.concatenate([values[~hidden] for values, hidden in panels])
    if not 0 < len(shown) <= _MAX_NUMBERS:
        return
    height, width = (
        side / n * 72 / grid[0].figure.dpi / pen.zoom
        for side, n in zip(grid[0].bbox.size[::-1], panels[0][0].shape, strict=True)
    )
    forms = [(2, 6.5), (1, 6.0), (0, 6.0)] if np.abs(shown).max() >= 0.1 else [(4, 6.0), (3, 6.0)]
    for digits, least in forms[: 2 if heatmap.scale == "weights" else 3]:
        widest = max((_number(v, digits) for v in shown), key=len)
        size = min(LABEL_PT, 0.84 * width / (0.62 * len(widest)), 0.62 * height)
        if size >= least:
            break
    else:
        return
    paint = pen.paint(heatmap)
    for ax, (values, hidden) in zip(grid, panels, strict=True):
        colors = paint.mappable.to_rgba(values, bytes=True)
        for i, j in zip(*np.nonzero(~hidden), strict=True):
            red, green, blue = (int(c) for c in colors[i, j, :3])
            text = ax.text(
                j, i, _number(values[i, j], digits), ha="center", va="center_baseline",
                color=_rgb(ink_on((red, green, blue))), fontsize=size * pen.zoom,
            )  # fmt: skip
            text.set_in_layout(False)


def draw_mosaic(
    heatmap: Heatmap, ax: Axes, pen: Pen, *, columns: int, gap: int, factor: int
) -> list[str]:
    """Draw many panels as one image, ``columns`` side by side with ``gap`` cells between them.

    Where panels are ``L0.H0``, ``L0.H1``, … layers are named once on the left and heads at the top.
    """
    is_diverging = heatmap.scale == "diverging"
    paint = pen.paint(heatmap)
    tiles = []
    for panel in heatmap.panels:
        values, hidden = pool(
            panel.values, panel.hidden, (factor, factor), is_diverging=is_diverging
        )
        tiles.append(paint.mappable.to_rgba(np.ma.array(values, mask=hidden), bytes=True))
    n_rows, n_columns = tiles[0].shape[:2]
    rows = math.ceil(len(tiles) / columns)
    pitch = n_rows + gap, n_columns + gap
    whole = np.empty((rows * pitch[0] - gap, columns * pitch[1] - gap, 4), np.uint8)
    whole[:] = (234, 236, 239, 255)
    for n, tile in enumerate(tiles):
        top, left = n // columns * pitch[0], n % columns * pitch[1]
        whole[top : top + n_rows, left : left + n_columns] = tile
    ax.imshow(whole, aspect="auto", interpolation="none")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    titles = [panel.title for panel in heatmap.panels]
    names = [title.split(".") for title in titles]
    middles = [np.arange(k) * p + (n - 1) / 2
               for k, p, n in zip((rows, columns), pitch, (n_rows, n_columns), strict=True)]  # fmt: skip
    if all(len(n) == 2 and n[0] == names[i - i % columns][0] and n[1] == names[i % columns][1]
           for i, n in enumerate(names)):  # fmt: skip
        ax.set_yticks(middles[0], [names[i * columns][0] for i in range(rows)])
        ax.set_xticks(middles[1], [names[i][1] for i in range(columns)])
        ax.set_ylabel("layer")
        ax.set_xlabel("head")
    else:
        ax.set(xticks=[], yticks=[])
        for n, title in enumerate(titles):
            at = n % columns * pitch[1] - 0.5, n // columns * pitch[0] - 0.5
            ax.annotate(title, at, (0, 2), textcoords="offset points", **pen.words(SMALL_PT))
    return said_of_cells(heatmap, (factor, factor), paint)


def draw_bar(heatmap: Heatmap, ax: Axes, pen: Pen) -> None:
    """Hang the colour bar on the right of axes, as high as they are but of human height."""
    width, height = ax.bbox.size
    dpi = ax.figure.dpi
    share = min(1.0, _BAR_IN * dpi * pen.zoom / height)
    point = pen.zoom * dpi / 72 / width
    cax = ax.inset_axes((1 + 10 * point, 1 - share, 9 * point, share))
    paint = pen.paint(heatmap)
    bar = ax.figure.colorbar(paint.mappable, cax=cax)
    if paint.shading.spread != "linear":
        ticks = paint.shading.ticks()
        bar.set_ticks(ticks, labels=[f"{v:g}".replace("-", "−") for v in ticks])
        bar.minorticks_off()
    bar.outline.set_visible(False)
    cax.tick_params(labelsize=SMALL_PT * pen.zoom, colors=MUTED, length=2, pad=2)
    unit = f" in {heatmap.unit}" if heatmap.unit else ""
    bar.set_label(heatmap.value_name + unit, size=SMALL_PT * pen.zoom, color=MUTED)


def explain_masked(heatmap: Heatmap, ax: Axes, pen: Pen) -> None:
    """Hang below axes what the colour of masked cells means, where there are any."""
    if not any(np.any(pool(p.values, p.hidden, (1, 1))[1]) for p in heatmap.panels):
        return
    color = _rgb(masked_color(pen.colormap or heatmap.scale))
    swatch = Patch(facecolor=color, label="masked: this query may not look there")
    ax.legend(
        handles=[swatch], loc="upper left", bbox_to_anchor=(0, 0), borderpad=0, borderaxespad=0.6,
        handlelength=1, handleheight=1, handletextpad=0.5,
    )  # fmt: skip


def draw_links(links: Links, ax: Axes, pen: Pen, color: str = COLORS[0]) -> int:
    """Draw queries on the left, keys on the right and curves between them; return every how many are named.

    Strength is both width and opacity; the strongest are on top.
    """
    longest = max(len(links.query_labels), len(links.key_labels))
    ax.set(xlim=(0, 1), ylim=(longest - 0.5, -0.5), xticks=[])
    right = ax.secondary_yaxis("right")
    steps = []
    for axes, labels, name in ((ax, links.query_labels, "query"), (right, links.key_labels, "key")):
        steps.append(_label_axis(axes.yaxis, labels, pen))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        ax.annotate(
            name, (float(axes is right), 1), (0, 3), xycoords="axes fraction",
            textcoords="offset points", ha="left" if axes is right else "right", color=MUTED,
            fontsize=SMALL_PT * pen.zoom,
        )  # fmt: skip
    if links.links:
        ordered = np.array(links.links[::-1], np.float64)
        strength = np.clip(ordered[:, 2], 0.0, 1.0)
        t = np.linspace(0.0, 1.0, 24)
        start, end = ordered[:, :1], ordered[:, 1:2]
        y = start + (end - start) * (t * t * (3 - 2 * t))
        points = np.stack([np.broadcast_to(t, y.shape), y], axis=-1)
        rgba = np.column_stack([np.tile(to_rgb(color), (len(y), 1)), 0.12 + 0.88 * strength])
        ax.add_collection(
            LineCollection(
                list(points), colors=rgba, linewidths=0.3 + 3.2 * strength, capstyle="butt"
            ),
            autolim=False,
        )
    return max(steps)


def draw_series(series: Series, ax: Axes, pen: Pen) -> list[str]:
    """Draw curves or bars, with a legend where there are several; return what is said below."""
    x = np.asarray(series.x, np.float64)
    if series.log_axes:
        ax.set(xscale="log", yscale="log")
    else:
        edge = 0.5 if series.style == "bar" or series.x_labels else 0.0
        ax.set_xlim(x[0] - edge, max(x[-1] + edge, x[0] + 0.5))
    for n, (name, values) in enumerate(series.curves.items()):
        numbers = np.asarray(values, np.float64)
        label = pen.book.text(name)
        if name in series.references:
            ax.plot(x, numbers, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), label=label)
        elif series.style == "bar":
            ax.bar(
                x, numbers, 0.72, color=np.where(numbers >= 0, COLORS[1], COLORS[0]), label=label
            )
            ax.axhline(0, color=MUTED, linewidth=0.7)
        else:
            ax.plot(
                x, numbers, color=COLORS[n % len(COLORS)], linewidth=1.4, markersize=3, label=label,
                marker="o" if len(x) <= MAX_LABELLED else None, clip_on=False,
                linestyle="solid" if n < len(COLORS) else (0, (3, 1)),
            )  # fmt: skip
    if not series.log_axes and series.style == "line":
        ax.set_ylim(bottom=min(0.0, ax.dataLim.y0))
    ax.spines[:].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis="y")
    ax.tick_params(length=0)
    ax.set_xlabel(series.x_name)
    ax.set_ylabel(series.y_name)
    step = 1
    if series.x_labels:
        step = _label_axis(ax.xaxis, series.x_labels, pen)
    elif series.log_axes:
        ax.xaxis.set_major_locator(FixedLocator(x.tolist()))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
    if len(series.curves) > 1:
        legend = ax.legend(loc="upper left", bbox_to_anchor=(1, 1), handlelength=1.6)
        for text in legend.get_texts():
            text.set(**pen.book.of_labels)
    return [f"every {ordinal(step)} token is labelled"] if step > 1 else []


def width_of(text: str, ax: Axes | Any, **properties: Any) -> float:
    """Return how many pixels a text takes."""
    figure: Any = ax.figure if isinstance(ax, Axes) else ax
    probe = Text(0, 0, text, figure=figure, **properties)
    return float(probe.get_window_extent().width)


def _label_axis(axis: Any, labels: tuple[Label, ...], pen: Pen) -> int:
    """Name every place of an axis, or every n-th where more would touch; return n."""
    is_x = axis.axis_name == "x"
    ax = axis.axes
    side = (ax.bbox if ax.bbox.height > 1 else ax.figure.bbox).size[0 if is_x else 1]
    n = len(labels)
    cell_pt = side / n * 72 / ax.figure.dpi / pen.zoom
    size = min(LABEL_PT, max(5.5, 0.8 * cell_pt)) if n <= MAX_LABELLED else LABEL_PT - 0.5
    need = math.ceil(size * 1.12 / cell_pt - 0.02)
    if n > MAX_LABELLED:
        need = max(need, math.ceil(n / MAX_LABELLED))
    step = next((k for k in _ROUND_STEPS if k >= need), need)
    names = [pen.book.text(labels[i], MAX_LABEL_COLUMNS) for i in range(0, n, step)]
    words = pen.words(size)
    turned: dict[str, Any] = {}
    if is_x:
        room = step * side / n - 3 * ax.figure.dpi / 72
        fits = all(width_of(name, ax, **words) <= room for name in names)
        is_top = axis.get_ticks_position() == "top"
        if not fits and n <= 24 and is_top and step * cell_pt >= 1.5 * size:
            turned = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
        elif not fits:
            turned = {"rotation": 90}
    axis.set_ticks(range(0, n, step), names, **words, **turned)
    return step


class _ShadingNorm(Normalize):
    """matplotlib's view of a ``Shading`` that is not linear."""

    def __init__(self, shading: Shading) -> None:
        super().__init__(shading.low, shading.high)
        self.shading = shading

    def __call__(self, value: Any, clip: bool | None = None) -> Any:
        return np.ma.array(self.shading.share(np.ma.getdata(value)), mask=np.ma.getmask(value))

    def inverse(self, value: Any) -> Any:
        return self.shading.value(value)


def _rgb(color: tuple[int, int, int]) -> tuple[float, float, float]:
    return color[0] / 255, color[1] / 255, color[2] / 255


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return (text if float(text) else text.lstrip("-")).replace("-", "−")
