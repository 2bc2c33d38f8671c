r"""Tab-separated values for programs: exact text, with \t \n \r \\ and controls escaped.

A control is ``\u`` and four hexadecimal digits, beyond the first 65,536 characters ``\U`` and eight.

What lives here: syntax. What does not: spreadsheet safety (``csv``).
"""

from __future__ import annotations

from typing import Any

from attnviz.render.export import records
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".tsv",)
IS_BINARY = False

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def render(document: Document, screen: Screen) -> str:
    """Write one record per line, with a header."""
    lines: list[str] = []
    header: list[str] = []
    for record in records(document):
        if list(record) != header:
            header = list(record)
            lines.append("\t".join(cell(name) for name in header))
        lines.append("\t".join(cell(value) for value in record.values()))
    return "".join(line + "\n" for line in lines)


def cell(value: Any) -> str:
    r"""Write one value so that it can be read back exactly.

    Examples
    --------
    >>> cell("a\tb"), cell(0.1), cell("\x1b")
    ('a\\tb', '0.1', '\\u001b')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))
    return "".join(_ESCAPES.get(c, c if c.isprintable() else _spelled(c)) for c in str(value))


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
