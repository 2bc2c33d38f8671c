"""Boxed tables for a terminal, drawn by rich; blocks of columns where a screen is narrow.

What lives here: borders and colours. What does not: which cells there are (``render.text``).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from attnviz.render.colors import Rgb, color_of, ink_on
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Links, Matrix, Series, Shape, Table, Text
from attnviz.render.text import Grid, column_blocks, matrix_grid, table_grid, write_text

if TYPE_CHECKING:
    from rich.box import Box
    from rich.console import Console
    from rich.text import Text as RichText

SUFFIXES = (".txt",)
IS_BINARY = False

_ROLE_STYLES = {"title": "bold", "plain": "", "note": "dim", "check": "green", "notice": "yellow"}


def render(document: Document, screen: Screen) -> str:
    """Draw a document as text with box-drawing characters (plain ones where there are none)."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out,
        width=screen.width or 1_000_000,
        force_terminal=screen.colors != "none",
        color_system=None if screen.colors == "none" else screen.colors,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for shape in document.shapes:
        _draw(shape, console, screen)
    return out.getvalue()


def _draw(shape: Shape, console: Console, screen: Screen) -> None:
    from rich.text import Text as RichText

    if isinstance(shape, Text):
        style = _ROLE_STYLES[shape.role]
        console.print(RichText(write_text(shape, screen), style=style), soft_wrap=not screen.width)
    elif isinstance(shape, Matrix):
        _draw_grid(matrix_grid(shape, screen), shape, console, screen)
    elif isinstance(shape, Table):
        _draw_grid(table_grid(shape, screen), shape, console, screen)
    elif isinstance(shape, Heatmap):
        _draw_heatmap(shape, console, screen)
    elif isinstance(shape, Links | Series):
        from attnviz.render.text import links_table, series_table

        if _draw_lines(shape, console, screen):
            return
        table = links_table(shape) if isinstance(shape, Links) else series_table(shape)
        _draw_grid(table_grid(table, screen), table, console, screen)


def _draw_lines(shape: Links | Series, console: Console, screen: Screen) -> bool:
    """Draw links of a short text as lines above their table, long curves as bars; True if done."""
    from rich.text import Text as RichText

    from attnviz.render import braille
    from attnviz.render.loglog import loglog_lines

    if isinstance(shape, Series) and shape.log_axes:
        lines = loglog_lines(shape, screen)
    elif not braille.can_draw(screen):
        return False
    elif isinstance(shape, Links):
        if max(len(shape.query_labels), len(shape.key_labels)) > braille.MAX_DRAWN:
            return False
        lines = braille.links_lines(shape, screen)
    elif len(shape.x) > braille.MAX_DRAWN:
        lines = braille.series_lines(shape, screen)
    else:
        return False
    console.print()
    console.print(RichText(screen.house(shape.title), style="bold cyan"), soft_wrap=True)
    for line in lines:
        console.print(RichText(line), soft_wrap=True)
    return isinstance(shape, Series)


def _draw_heatmap(heatmap: Heatmap, console: Console, screen: Screen) -> None:
    from rich.color import Color, ColorSystem
    from rich.style import Style
    from rich.text import Text as RichText

    from attnviz.render.halfblocks import heatmap_lines

    systems = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT}
    system = systems.get(screen.colors, ColorSystem.TRUECOLOR)

    def color(rgb: Rgb | None) -> Color | None:
        # rich keeps a style's codes whatever terminal it meets next: give it the final colour
        return None if rgb is None else Color.from_rgb(*rgb).downgrade(system)

    console.print()
    console.print(
        RichText(screen.house(heatmap.title), style="bold cyan"), soft_wrap=not screen.width
    )
    for line in heatmap_lines(heatmap, screen):
        drawn = RichText(no_wrap=True, overflow="ignore")
        for piece in line:
            style = Style(
                color=color(piece.ink), bgcolor=color(piece.paper), dim=piece.is_dim or None
            )
            drawn.append(piece.text, style)
        console.print(drawn, soft_wrap=True)


def _draw_grid(grid: Grid, shape: Matrix | Table, console: Console, screen: Screen) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    console.print()
    console.print(
        RichText(screen.house(shape.title), style="bold cyan"), soft_wrap=not screen.width
    )
    if shape.formula:
        console.print(RichText(screen.house(shape.formula)), soft_wrap=not screen.width)
    blocks = column_blocks(grid, screen, gap=3, edge=4)
    for number, block in enumerate(blocks, start=1):
        if len(blocks) > 1:
            first, last = block.header[block.n_keys], block.header[-1]
            span = first if len(block.header) == block.n_keys + 1 else f"{first} to {last}"
            words = screen.house(f"columns {span} · part {number} of {len(blocks)}")
            console.print(RichText(words, style="dim"), soft_wrap=True)
        table = RichTable(box=_box(screen), show_edge=True, pad_edge=True, padding=(0, 1))
        for i, name in enumerate(block.header):
            table.add_column(
                RichText(name),
                justify="right" if block.is_right[i] else "left",
                no_wrap=True,
                header_style="bold" if i < block.n_keys else "",
            )
        for row_number, row in enumerate(block.rows):
            shares = block.shares[row_number] if block.shares else (None,) * len(row)
            table.add_row(*(_cell(c, s, screen) for c, s in zip(row, shares, strict=True)))
        console.width = max(screen.width or 1_000_000, _width_of(block))  # no number is ever cut
        console.print(table, crop=False, no_wrap=True)
        console.width = screen.width or 1_000_000
    for note in shape.notes:
        console.print(RichText(screen.house(note), style="dim"), soft_wrap=not screen.width)


def _width_of(block: Grid) -> int:
    """Return the display width of a block with its borders and padding."""
    from rich.cells import cell_len

    lines = (block.header, *block.rows)
    widths = (max(cell_len(line[i]) for line in lines) for i in range(len(block.header)))
    return sum(width + 3 for width in widths) + 1


def _cell(text: str, share: float | None, screen: Screen) -> RichText:
    from rich.text import Text as RichText

    if share is None or screen.colors in ("none", "standard"):
        return RichText(text)
    background = color_of(share)
    return RichText(text, style=f"rgb{ink_on(background)} on rgb{background}".replace(" ", "", 0))


def _box(screen: Screen) -> Box:
    from rich import box

    return box.ROUNDED if screen.can("╭─┼") else box.ASCII2
