"""Boxed tables for a terminal, drawn by rich; blocks of columns where a screen is narrow.

What lives here: borders and colours. What does not: which cells there are (``render.text``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from attnviz.render.colors import Rgb, color_of, ink_on
from attnviz.render.formats._blocks import Block, Paragraph, blocks
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Links, Series, Shaded, Shape
from attnviz.render.text import Grid, column_blocks, padded

if TYPE_CHECKING:
    from rich.box import Box
    from rich.console import Console
    from rich.text import Text as RichText

    from attnviz.render.terminal.heatmap import Line

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
    return out.getvalue().removeprefix("\n")


def _draw(shape: Shape, console: Console, screen: Screen) -> None:
    from rich.text import Text as RichText

    if isinstance(shape, Heatmap):
        from attnviz.render.terminal.heatmap import heatmap_lines

        _draw_colored(shape, heatmap_lines(shape, screen), console, screen)
        return
    if isinstance(shape, Shaded) and screen.colors != "none":
        from attnviz.render.terminal.shaded import shaded_lines

        _draw_colored(shape, shaded_lines(shape, screen), console, screen)
        return
    if isinstance(shape, Links | Series) and _draw_lines(shape, console, screen):
        return
    for block in blocks(shape, screen):
        if isinstance(block, Paragraph):
            words = RichText(block.text, style=_ROLE_STYLES[block.role])
            console.print(words, soft_wrap=not screen.width)
        else:
            _draw_block(block, console, screen)


def _draw_lines(shape: Links | Series, console: Console, screen: Screen) -> bool:
    """Draw links as lines, in a pipe above their table, and long curves as bars; True if that is all."""
    from rich.text import Text as RichText

    from attnviz.render.terminal.lines import MAX_DRAWN, can_draw, links_lines, series_lines
    from attnviz.render.terminal.loglog import loglog_lines

    if isinstance(shape, Series) and shape.log_axes:
        lines = loglog_lines(shape, screen)
    elif isinstance(shape, Links):
        lines = links_lines(shape, screen)
    elif can_draw(screen) and (len(shape.x) > MAX_DRAWN or screen.is_terminal):
        lines = series_lines(shape, screen)
    else:
        return False
    console.print()
    console.print(
        RichText(screen.house(shape.title), style="bold cyan"), soft_wrap=not screen.width
    )
    for line in lines:
        console.print(RichText(line), soft_wrap=True)
    if isinstance(shape, Links):
        for note in shape.notes if screen.is_terminal else ():
            console.print(RichText(screen.house(note), style="dim"), soft_wrap=not screen.width)
        return screen.is_terminal
    return True


def _draw_colored(
    shape: Heatmap | Shaded, lines: Iterable[Line], console: Console, screen: Screen
) -> None:
    from rich.color import Color, ColorSystem
    from rich.style import Style
    from rich.text import Text as RichText

    systems = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT}
    system = systems.get(screen.colors, ColorSystem.TRUECOLOR)

    def color(rgb: Rgb | None) -> Color | None:
        # rich keeps a style's codes whatever terminal it meets next: give it the final colour
        return None if rgb is None else Color.from_rgb(*rgb).downgrade(system)

    console.print()
    console.print(
        RichText(screen.house(shape.title), style="bold cyan"), soft_wrap=not screen.width
    )
    for line in lines:
        drawn = RichText(no_wrap=True, overflow="ignore")
        for piece in line:
            style = Style(
                color=color(piece.ink), bgcolor=color(piece.paper), dim=piece.is_dim or None
            )
            drawn.append(piece.text, style)
        console.print(drawn, soft_wrap=True)


def _draw_block(block: Block, console: Console, screen: Screen) -> None:
    from rich.text import Text as RichText

    console.print()
    if screen.is_compact:
        console.print(_heading(block))
    else:
        console.print(RichText(block.title, style="bold cyan"), soft_wrap=not screen.width)
        if block.formula:
            console.print(RichText(block.formula), soft_wrap=not screen.width)
    gap, edge = (2, 0) if screen.is_compact else (3, 4)
    parts = column_blocks(block.grid, screen, gap=gap, edge=edge)
    for number, part in enumerate(parts, start=1):
        if len(parts) > 1:
            first, last = part.header[part.n_keys], part.header[-1]
            span = first if len(part.header) == part.n_keys + 1 else f"{first} to {last}"
            words = screen.house(f"columns {span} · part {number} of {len(parts)}")
            console.print(RichText(words, style="dim"), soft_wrap=not screen.width)
        for line in _open(part, screen) if screen.is_compact else _boxed(part, screen):
            console.file.write(f"{line}\n")
    for note in block.notes:
        console.print(RichText(note, style="dim"), soft_wrap=not screen.width)


def _heading(block: Block) -> RichText:
    """Return a title and its formula as one line; the formula alone where it begins with the title."""
    from rich.text import Text as RichText

    if block.formula.startswith((f"{block.title} ", f"{block.title}:")):
        return RichText.assemble((block.title, "bold cyan"), block.formula[len(block.title) :])
    return RichText.assemble((block.title, "bold cyan"), "   " * bool(block.formula), block.formula)


def _open(grid: Grid, screen: Screen) -> Iterator[str]:
    """Yield the lines of a grid without a box, a rule under its header."""
    bold, paint = _painters(screen)
    widths, lines = padded(grid)
    for number, line in enumerate(lines):
        if not number:
            yield "  ".join(map(bold, line)).rstrip()
            yield screen.house("─" if screen.can("─") else "-") * (
                sum(widths) + 2 * len(widths) - 2
            )
        elif grid.shares:
            shares = grid.shares[number - 1]
            cells = [paint(f" {cell}", share) for cell, share in zip(line, shares, strict=True)]
            yield " ".join(cells)[1:]
        else:
            yield "  ".join(line).rstrip()


def _boxed(grid: Grid, screen: Screen) -> Iterator[str]:
    """Yield the lines of a grid in a box, no wider than its cells: no number is ever cut.

    The box's characters are rich's. Its tables are not used: they lay out every cell as a text
    that may wrap, which takes minutes for a million numbers.
    """
    box = _box(screen)
    bold, paint = _painters(screen)
    widths, lines = padded(grid)
    spans = [width + 2 for width in widths]
    yield box.get_top(spans)
    for number, line in enumerate(lines):
        shares = grid.shares[number - 1] if number and grid.shares else None
        if not number:
            cells = [bold(f" {cell} ") for cell in line]
        elif shares is None:
            cells = [f" {cell} " for cell in line]
        else:
            cells = [paint(f" {c} ", share) for c, share in zip(line, shares, strict=True)]
        left, between, right = (
            (box.head_left, box.head_vertical, box.head_right)
            if not number
            else (box.mid_left, box.mid_vertical, box.mid_right)
        )
        yield f"{left}{between.join(cells)}{right}"
        if not number:
            yield box.get_row(spans, "head")
    yield box.get_bottom(spans)


def _painters(screen: Screen) -> tuple[Callable[[str], str], Callable[[str, float | None], str]]:
    """Return how a header is written, and a cell with the share it is coloured by."""
    if screen.colors == "none":
        return lambda text: text, lambda text, _: text
    from rich.color import ColorSystem
    from rich.style import Style

    system = {
        "standard": ColorSystem.STANDARD,
        "256": ColorSystem.EIGHT_BIT,
        "truecolor": ColorSystem.TRUECOLOR,
    }[screen.colors]

    def bold(text: str) -> str:
        return Style(bold=True).render(text, color_system=system)

    def paint(text: str, share: float | None) -> str:
        if share is None or screen.colors == "standard":
            return text
        background = color_of(share)
        style = Style.parse(f"rgb{ink_on(background)} on rgb{background}".replace(", ", ","))
        return style.render(text, color_system=system)

    return bold, paint


def _box(screen: Screen) -> Box:
    from rich import box

    return box.ROUNDED if screen.can("╭─┼") else box.ASCII2
