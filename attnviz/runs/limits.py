"""How many cells of L × S matrices are held at once: by a stated limit, and by the memory there is.

What lives here: the limit, what a cell takes, and the refusal. What does not: streamed work, which
holds no such matrix and plans for itself (``summaries``).
"""

from __future__ import annotations

import math

from attnviz import memory
from attnviz.errors import TooLong

DENSE_MAX_CELLS = 1 << 24
DENSE_CELL_BYTES = 112
"""What a cell takes at most while its stages are computed and kept: 80 to 90 were measured."""


def fitting_cells(most: int | None = None) -> int:
    """Return how many cells may be held at once, by the limit and by the memory there is."""
    most = DENSE_MAX_CELLS if most is None else most
    room = memory.room_bytes()
    return most if room is None else min(most, room // DENSE_CELL_BYTES)


def check_dense_size(n_queries: int, n_keys: int, n_heads: int) -> None:
    """Refuse what would not fit before computing it.

    Raises
    ------
    TooLong
        More cells than are ever held, or than the memory takes; says how many tokens fit.
    """
    cells = n_queries * n_keys * n_heads
    fitting = fitting_cells()
    if cells <= fitting:
        return
    held = f"at most {DENSE_MAX_CELLS} are held"
    if fitting < DENSE_MAX_CELLS:
        told = memory.compare(cells * DENSE_CELL_BYTES, fitting * DENSE_CELL_BYTES)
        held = f"holding them {told}"
    raise TooLong(
        f"{n_queries} tokens and {n_heads} heads make {cells} cells: {held}, "
        f"which is {math.isqrt(fitting // n_heads)} tokens; shorten the text, choose fewer heads, "
        "or use attnviz summary, which takes any length"
    )
