"""CSV for spreadsheets (RFC 4180, UTF-8): full precision, and no cell that runs as a formula.

Rule: a text cell that starts with = + - @ TAB CR or LF, also behind leading blanks or after an
inner line break, gets an apostrophe in front. Numbers are never touched. For exact text choose
TSV or JSONL. On a terminal, and nowhere else, line breaks and tabs of a token are
shown, not written.

Source: OWASP "CSV Injection".
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from attnviz.render.export import records
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document
from attnviz.render.tokens import visible

SUFFIXES = (".csv",)
IS_BINARY = False

_FORMULA = re.compile(r"(?:^|(?<=[\r\n]))(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n])")


def render(document: Document, screen: Screen) -> str:
    """Write one record per line, with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n" if screen.is_terminal else "\r\n")
    header: list[str] = []
    for record in records(document):
        if list(record) != header:
            header = list(record)
            writer.writerow(header)
        cells = [cell(value) for value in record.values()]
        writer.writerow([visible(text) for text in cells] if screen.is_terminal else cells)
    return out.getvalue()


def cell(value: Any) -> str:
    """Write one value: numbers at full precision, text safe for a spreadsheet, nothing for None.

    Examples
    --------
    >>> cell("=1+1"), cell(-0.5), cell(None)
    ("'=1+1", '-0.5', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, int):
        return str(int(value))
    text = str(value)
    kept = "".join(c if c in "\t\r\n" or c.isprintable() else visible(c) for c in text)
    return _FORMULA.sub("'", kept)
