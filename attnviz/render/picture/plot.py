"""A stage of a trace in matplotlib, for people who compose their own figures.

What lives here: one heatmap in axes of the caller's. What does not: whole pictures (``figure``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Trace
from attnviz.render.colors import masked_color, palette
from attnviz.render.screen import Screen
from attnviz.render.shapes import Heatmap, Label
from attnviz.render.tokens import visible
from attnviz.render.views import heatmap as view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 64


def plot(trace: Trace, ax: Axes | None = None, stage: str = "weights") -> Axes | Figure:
    """Draw a stage into axes, query down and key across; without axes make a whole Figure.

    Raises
    ------
    UsageError
        A stage that is not there, or axes for more than one head.
    """
    document = view.view(trace, stage=stage)
    if ax is None:
        from attnviz.render.picture.figure import draw

        return draw(document, Screen()).figure
    shape = document.shapes[-1]
    assert isinstance(shape, Heatmap)
    if len(shape.panels) != 1:
        raise UsageError(f"axes hold one head, this trace has {len(shape.panels)}: choose one")
    return _draw_panel(shape, ax)


def _draw_panel(shape: Heatmap, ax: Axes) -> Axes:
    from matplotlib.colors import ListedColormap

    red, green, blue = (part / 255 for part in masked_color(shape.scale))
    colors = ListedColormap(np.array(palette(shape.scale)) / 255, bad=(red, green, blue))
    panel = shape.panels[0]
    values = np.ma.masked_invalid(panel.values)
    if panel.hidden is not None:
        values = np.ma.array(values, mask=np.ma.getmaskarray(values) | panel.hidden)
    ax.imshow(
        values, cmap=colors, vmin=shape.limits[0], vmax=shape.limits[1],
        aspect="equal" if shape.is_pairwise else "auto", interpolation="nearest",
    )  # fmt: skip
    _label(ax.yaxis, panel.row_labels)
    if panel.column_labels:
        _label(ax.xaxis, panel.column_labels)
        ax.tick_params(axis="x", rotation=90)
    ax.set_ylabel(panel.row_axis)
    ax.set_xlabel(panel.column_axis)
    ax.set_title(shape.title)
    return ax


def _label(axis: Any, labels: tuple[Label, ...]) -> None:
    """Write every token, or every n-th of many; a token is never read as mathematics."""
    step = -(-len(labels) // MAX_LABELS)
    places = range(0, len(labels), step)
    axis.set_ticks(list(places), [visible(labels[i]) for i in places])
    for text in axis.get_ticklabels():
        text.set_parse_math(False)
