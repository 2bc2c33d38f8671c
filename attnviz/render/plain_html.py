"""Tables and paragraphs as one quiet HTML page: no script, nothing loaded, every cell escaped.

What lives here: the page of a report. What does not: the interactive page (``page``).
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from attnviz.errors import UsageError
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Shape, Table, Text
from attnviz.render.text import table_grid, write_text

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;"
    "color:#1b1b1b;background:#fff}table{border-collapse:collapse;margin:.4rem 0 1.6rem}"
    "th,td{padding:.15rem .7rem;border-bottom:1px solid #ddd;text-align:left;white-space:pre}"
    ".n{text-align:right;font-variant-numeric:tabular-nums}p.note{color:#555}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}"
    "th,td{border-color:#3a3a3a}p.note{color:#aaa}}"
)


def render(document: Document, screen: Screen) -> str:
    """Write a document of paragraphs and tables as a page.

    Raises
    ------
    UsageError
        A shape that is drawn, not written.
    """
    title = html.escape(document.title)
    body = "\n".join(line for shape in document.shapes for line in _lines(shape, screen))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _lines(shape: Shape, screen: Screen) -> Iterator[str]:
    if isinstance(shape, Text):
        text = html.escape(write_text(shape, screen))
        yield f"<h1>{text}</h1>" if shape.role == "title" else f'<p class="{shape.role}">{text}</p>'
        return
    if not isinstance(shape, Table):
        raise UsageError("this page holds tables only")
    grid = table_grid(shape, screen)
    kinds = [' class="n"' if right else "" for right in grid.is_right]
    yield f"<h2>{html.escape(screen.house(shape.title))}</h2><table>"
    for tag, rows in (("th", (grid.header,)), ("td", grid.rows)):
        for row in rows:
            cells = (
                f"<{tag}{kind}>{html.escape(cell)}</{tag}>"
                for cell, kind in zip(row, kinds, strict=True)
            )
            yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"
    for note in shape.notes:
        yield f'<p class="note">{html.escape(screen.house(note))}</p>'
