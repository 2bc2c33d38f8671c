"""attnviz as a library: every command is a call, with the same options by the same names.

What lives here: the public functions. What does not: their work (``runs``) and screens (``cli``).
"""

from __future__ import annotations

from typing import Any

from attnviz.core.summary import Summary as Summary
from attnviz.records import Trace
from attnviz.runs.compare import compare as compare
from attnviz.runs.heads import rank_heads as rank_heads
from attnviz.runs.pipeline import explain as explain
from attnviz.runs.summaries import summarize as summarize

__all__ = ["Summary", "Trace", "compare", "explain", "load", "rank_heads", "summarize"]


def load(path: str, **options: Any) -> Any:
    """Open a weight file as a source: ``.info``, ``.tokenize(text)``, ``.run(…)``."""
    from attnviz.runs.pipeline import open_source

    return open_source(weights=path, **options)
