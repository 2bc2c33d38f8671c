"""The pictures a batch makes: every layer and head of a text in one grid.

What lives here: a trace → a picture's bytes, for workers that know a painter by its name only. What
does not: the heatmap (``views``) and its formats.
"""

from __future__ import annotations

from attnviz.records import Trace


def heatmap(trace: Trace, format: str) -> bytes:
    """Return a picture of a text's weights.

    Parameters
    ----------
    trace
        One text; a panel for every layer and head of it.
    format
        ``png`` or ``svg``.
    """
    from attnviz import registry
    from attnviz.render.screen import Screen
    from attnviz.render.views import heatmap as view

    picture: bytes = registry.load("formats", format).render(view.view(trace), Screen())
    return picture
