"""Links and curves for a terminal: a query's strongest keys with bars, and curves of block characters.

What lives here: the lines of text. What does not: colours of a terminal (``formats.table``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.render.screen import Screen
from attnviz.render.shapes import Links, Series
from attnviz.render.text import draw_bar
from attnviz.render.tokens import fit

MAX_DRAWN = 48
_MAX_KEYS = 3
_NAME, _PERCENT = 14, 8
_LEAST_BAR, _MOST_BAR = 4, 16
_BLOCKS = "▁▂▃▄▅▆▇█"


def can_draw(screen: Screen) -> bool:
    """True where the encoding carries block characters of eight heights."""
    return screen.can(_BLOCKS)


def links_lines(links: Links, screen: Screen) -> Iterator[str]:
    """Yield a line for each query: its name, then its strongest keys with their share and a bar.

    As many keys as the width has room for, three at most. A query without a link has none.
    """
    from rich.cells import cell_len

    ellipsis = screen.house("…")
    width = screen.width or 80
    left, right = (
        [fit(screen.label(label), min(_NAME, width // 5), ellipsis=ellipsis) for label in labels]
        for labels in (links.query_labels, links.key_labels)
    )
    digits = len(str(max(0, len(left) - 1)))
    named = [f"{i:>{digits}} {name}" for i, name in enumerate(left)]
    start = max(map(cell_len, named), default=0)
    widest = max((cell_len(right[key]) for _, key, _ in links.links), default=0)
    arrow = screen.house("→")
    room = width - start - len(arrow) - 2
    least = widest + _PERCENT + _LEAST_BAR + 3
    n_keys = max(1, min(_MAX_KEYS, (room + 1) // least))
    bar = max(0, min(_MOST_BAR, (room + 1) // n_keys - widest - _PERCENT - 3))
    found: list[list[tuple[int, float]]] = [[] for _ in named]
    for query, key, strength in links.links:
        found[query].append((key, strength))
    for name, keys in zip(named, found, strict=True):
        line = f"{_filled(name, start)} {arrow}"
        for key, strength in keys[:n_keys]:
            share = f"{100 * strength:.1f} %".rjust(_PERCENT - 1)
            drawn = screen.house(draw_bar(strength, bar))
            line += f" {_filled(right[key], widest)} {share} {drawn.ljust(bar)}"
        yield line.rstrip() if keys else f"{name} {screen.house('·')}"


def _filled(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))


def series_lines(series: Series, screen: Screen) -> Iterator[str]:
    """Yield each curve as one line of block characters, pooled by the farthest from 0."""
    from rich.cells import cell_len

    width = screen.width or 80
    names = {name: screen.label(name) for name in series.curves}
    widest = max(cell_len(text) for text in names.values())
    room = max(8, width - widest - 1)
    for name, values in series.curves.items():
        numbers = np.asarray(values, np.float64)
        low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
        factor = -(-len(numbers) // room)
        pooled = [max(numbers[i : i + factor], key=abs) for i in range(0, len(numbers), factor)]
        span = (high - low) or 1.0
        text = "".join(_BLOCKS[min(7, int((float(v) - low) / span * 8))] for v in pooled)
        yield f"{names[name]}{' ' * (widest - cell_len(names[name]))} {text}"
        yield screen.house(
            f"{' ' * widest} from {numbers.min():.4g} to {numbers.max():.4g}; "
            f"{series.x_name} {float(series.x[0]):g} to {float(series.x[-1]):g}"
            + (f", each the farthest from 0 of {factor}" if factor > 1 else "")
        ).replace("-", screen.house("−"))
