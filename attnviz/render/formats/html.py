"""One self-contained interactive page; a quiet page of tables where there are no q and k."""

from __future__ import annotations

import html
from collections.abc import Iterator

from attnviz.records import LayerStack, Trace
from attnviz.render.formats._blocks import Block, Paragraph, blocks
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".html", ".htm")
IS_BINARY = False

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;"
    "color:#1b1b1b;background:#fff}table{border-collapse:collapse;margin:.4rem 0 1.6rem}"
    "th,td{padding:.15rem .7rem;border-bottom:1px solid #ddd;text-align:left;white-space:pre}"
    ".n{text-align:right;font-variant-numeric:tabular-nums}p.note{color:#555}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}"
    "th,td{border-color:#3a3a3a}p.note{color:#aaa}}"
)


def render(document: Document, screen: Screen) -> str:
    """Write the layers and heads behind a document as an interactive page, any other as tables.

    Raises
    ------
    ResourceError
        The interactive page would be too large.
    """
    from attnviz.render.page.build import build_page, page_of

    record = document.record
    if isinstance(record, LayerStack):
        return build_page(record)
    if isinstance(record, Trace):
        return page_of(record)
    return _page_of_tables(document, screen)


def _page_of_tables(document: Document, screen: Screen) -> str:
    """Write paragraphs and tables: no script, nothing loaded, every label and cell escaped."""
    parts = (part for shape in document.shapes for part in blocks(shape, screen))
    body = "\n".join(line for part in parts for line in _lines(part))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(document.title)}</title><style>{_STYLE}</style></head><body>\n"
        f"{body}\n</body></html>\n"
    )


def _lines(part: Paragraph | Block) -> Iterator[str]:
    if isinstance(part, Paragraph):
        text = html.escape(part.text)
        yield f"<h1>{text}</h1>" if part.role == "title" else f'<p class="{part.role}">{text}</p>'
        return
    kinds = [' class="n"' if right else "" for right in part.grid.is_right]
    yield f"<h2>{html.escape(part.title)}</h2>"
    if part.formula:
        yield f"<p>{html.escape(part.formula)}</p>"
    yield "<table>"
    for tag, rows in (("th", (part.grid.header,)), ("td", part.grid.rows)):
        for row in rows:
            cells = (
                f"<{tag}{kind}>{html.escape(cell)}</{tag}>"
                for cell, kind in zip(row, kinds, strict=True)
            )
            yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"
    for note in part.notes:
        yield f'<p class="note">{html.escape(note)}</p>'


def notebook_html(trace: Trace) -> str | None:
    """Return what a notebook shows for a trace: see ``render.notebook``."""
    from attnviz.render.notebook import html_of

    return html_of(trace)


def notebook_png(trace: Trace) -> bytes | None:
    """Return what a notebook shows where it takes pictures only."""
    from attnviz.render.notebook import png_of

    return png_of(trace)
