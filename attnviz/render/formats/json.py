"""Strict JSON (RFC 8259): no NaN, no Infinity; lone surrogates as escapes.

What lives here: syntax. What does not: which fields there are (``render.export``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from attnviz.core.stream.summary import Summary
from attnviz.records import Trace
from attnviz.render.export import json_ready, trace_to_dict, view_to_dict
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".json",)
IS_BINARY = False


def render(document: Document, screen: Screen) -> str:
    """Write the record behind a document as one line of JSON."""
    record = document.record
    has_schema = isinstance(record, Mapping) and "schema" in record
    if document.data is not None and not has_schema:
        return dump(view_to_dict(document))
    if isinstance(record, Trace):
        return dump(trace_to_dict(record, document.stages))
    return dump(json_ready(record))


def dump_trace(trace: Trace) -> str:
    """Write a whole trace."""
    return dump(trace_to_dict(trace))


def dump_summary(summary: Summary) -> str:
    """Write a streamed text."""
    from attnviz.render.reports.summary import view

    return dump(view_to_dict(view(summary)))


def dump(value: object) -> str:
    """Write JSON values; plain ASCII, so that every encoding and every string is right."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True) + "\n"
