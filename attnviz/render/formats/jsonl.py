"""One JSON object per line: one record per (layer, head, query, key), or per table row."""

from __future__ import annotations

import json

from attnviz.render.export import json_ready, records
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".jsonl", ".ndjson")
IS_BINARY = False


def render(document: Document, screen: Screen) -> str:
    """Write the records behind a document, exactly, one per line."""
    return "".join(
        json.dumps(json_ready(record), allow_nan=False) + "\n" for record in records(document)
    )
