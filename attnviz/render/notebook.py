"""A trace in a notebook: the page in a frame that may run scripts and nothing else.

What lives here: the frame, and when there is none. What does not: the page (``page``).
"""

from __future__ import annotations

import html

from attnviz.errors import AttnvizError
from attnviz.records import Trace
from attnviz.render.page.build import page_of

_BUDGET_MB = 16.0
_FRAME = (
    '<iframe sandbox="allow-scripts" title="attnviz" referrerpolicy="no-referrer" '
    'style="width:100%;height:820px;border:0" srcdoc="{page}"></iframe>'
)


def html_of(trace: Trace) -> str | None:
    """Return the page in a sandboxed frame, or None where a trace has no page.

    The frame has an origin of its own: it cannot reach the notebook, its storage or its cookies.
    A mean over heads, or a trace whose page is above 16 MB even when compact, has none.
    """
    for compact in (False, True):
        try:
            page = page_of(trace, compact=compact, budget_mb=_BUDGET_MB)
        except AttnvizError:
            continue
        return _FRAME.format(page=html.escape(page, quote=True))
    return None


def png_of(trace: Trace) -> bytes | None:
    """Return the heatmap of the weights as a PNG, or None where it cannot be drawn."""
    from attnviz.render.formats.png_svg_pdf import png
    from attnviz.render.views import heatmap

    try:
        return png.render(heatmap.view(trace))
    except AttnvizError:
        return None
