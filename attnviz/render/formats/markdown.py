"""Markdown with pipe tables (GitHub flavour).

What lives here: escaping and the table syntax. What does not: which cells there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from attnviz.render.export import provenance
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Links, Matrix, Series, Shape, Text
from attnviz.render.text import (
    links_table,
    matrix_grid,
    panels_of,
    series_table,
    table_grid,
    write_text,
)

SUFFIXES = (".md", ".markdown")
IS_BINARY = False

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&])")


def render(document: Document, screen: Screen) -> str:
    """Write a document as Markdown; every label and number is escaped text."""
    blocks = ("\n".join(_lines(shape, screen)) for shape in document.shapes)
    return _origin_comment(document) + "\n\n".join(blocks) + "\n"


def _origin_comment(document: Document) -> str:
    """Say where the numbers come from, in a comment that no label can end."""
    facts = json.dumps(provenance(document), ensure_ascii=True, sort_keys=True)
    return "<!-- attnviz " + re.sub("[-<>]", lambda c: f"\\u{ord(c[0]):04x}", facts) + " -->\n\n"


def escape(text: str) -> str:
    r"""Escape what Markdown would read as its own.

    Examples
    --------
    >>> escape("[INST]|*x*")
    '\\[INST\\]\\|\\*x\\*'
    """
    return _SPECIAL.sub(r"\\\1", text)


def _lines(shape: Shape, screen: Screen) -> Iterator[str]:
    if isinstance(shape, Text):
        yield escape(write_text(shape, screen))
        return
    if isinstance(shape, Heatmap):
        for number, panel in enumerate(panels_of(shape)):
            if number:
                yield ""
            yield from _lines(panel, screen)
        return
    if isinstance(shape, Links):
        shape = links_table(shape)
    elif isinstance(shape, Series):
        shape = series_table(shape)
    grid = matrix_grid(shape, screen) if isinstance(shape, Matrix) else table_grid(shape, screen)
    yield f"### {escape(screen.house(shape.title))}"
    yield ""
    if shape.formula:
        yield escape(screen.house(shape.formula))
        yield ""
    yield _row(grid.header)
    yield _row(tuple("---:" if right else ":---" for right in grid.is_right), raw=True)
    for row in grid.rows:
        yield _row(row)
    for note in shape.notes:
        yield ""
        yield escape(screen.house(note))


def _row(cells: tuple[str, ...], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else escape(cell) for cell in cells) + " |"
