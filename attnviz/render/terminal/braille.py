"""Links and curves for a terminal: lines of braille dots between tokens, bars of block characters.

What lives here: the lines of text. What does not: colours of a terminal (``formats.table``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.records import Array
from attnviz.render.screen import Screen
from attnviz.render.shapes import Links, Series
from attnviz.render.tokens import fit

MAX_DRAWN = 48
_MAX_LINKS = 3
_MIDDLE = 28
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
_BLOCKS = "▁▂▃▄▅▆▇█"


def can_draw(screen: Screen) -> bool:
    """True where the encoding carries braille dots."""
    return screen.can("\u28ff")


def links_lines(links: Links, screen: Screen) -> Iterator[str]:
    """Yield queries on the left, keys on the right and lines between them.

    A strong link is a full line, a weak one a dotted one: dots at every 1 to 6 places. Only each
    query's three strongest are drawn; the table that follows has all.
    """
    from rich.cells import cell_len

    width = screen.width or 80
    n_lines = max(len(links.query_labels), len(links.key_labels))
    ellipsis = screen.house("…")
    middle = max(8, min(_MIDDLE, width // 2))
    room = max(3, (width - middle - 2) // 2)
    left = [fit(screen.label(label), room, ellipsis=ellipsis) for label in links.query_labels]
    right = [fit(screen.label(label), room, ellipsis=ellipsis) for label in links.key_labels]
    widest = max((cell_len(text) for text in left), default=0)
    canvas = np.zeros((n_lines, middle), np.uint8)
    drawn = dict.fromkeys(range(len(left)), 0)
    for query, key, strength in links.links:
        if drawn[query] < _MAX_LINKS:
            drawn[query] += 1
            _draw_line(canvas, query, key, strength)
    for i in range(n_lines):
        start = left[i] if i < len(left) else ""
        dots = "".join(chr(0x2800 + int(bits)) if bits else " " for bits in canvas[i])
        end = right[i] if i < len(right) else ""
        yield f"{' ' * (widest - cell_len(start))}{start} {dots} {end}".rstrip()


def _draw_line(canvas: Array, query: int, key: int, strength: float) -> None:
    n_dots = canvas.shape[1] * 2
    step = 1 + round(5 * (1 - max(0.0, min(1.0, strength))))
    for x in range(0, n_dots, step):
        t = x / (n_dots - 1)
        y = 4 * (query + (key - query) * t * t * (3 - 2 * t)) + 1.5
        row, dot = divmod(round(y), 4)
        canvas[row, x // 2] |= _BITS[dot, x % 2]


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
