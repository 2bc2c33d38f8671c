"""Markdown with pipe tables (GitHub flavour).

What lives here: escaping and the table syntax. What does not: which cells there are.
"""

from __future__ import annotations

import json
import re

from attnviz.render.export import provenance
from attnviz.render.formats._blocks import Block, Paragraph, blocks
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".md", ".markdown")
IS_BINARY = False

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&])")


def render(document: Document, screen: Screen) -> str:
    """Write a document as Markdown; every label and number is escaped text."""
    parts = (part for shape in document.shapes for part in blocks(shape, screen))
    return _origin_comment(document) + "\n\n".join(map(_write, parts)) + "\n"


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


def _write(part: Paragraph | Block) -> str:
    if isinstance(part, Paragraph):
        return escape(part.text)
    grid = part.grid
    rule = _row(tuple("---:" if right else ":---" for right in grid.is_right), raw=True)
    table = "\n".join([_row(grid.header), rule, *map(_row, grid.rows)])
    formula = [escape(part.formula)] if part.formula else []
    return "\n\n".join([f"### {escape(part.title)}", *formula, table, *map(escape, part.notes)])


def _row(cells: tuple[str, ...], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else escape(cell) for cell in cells) + " |"
