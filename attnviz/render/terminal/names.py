"""Names above narrow columns: side by side, on two or three lines in turn, or upright."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from attnviz.render.tokens import fit

_MOST_LINES, _MOST_LETTERS, _WIDE = 3, 7, 9


def name_lines(
    names: Sequence[str],
    width: int,
    *,
    room: int | None = None,
    centered: bool = False,
    ellipsis: str = "…",
) -> list[str]:
    """Return lines that name columns of ``width`` cells each, in as few lines as the names need.

    Names that fit their columns stand side by side. Columns of 3 cells and more have theirs on two
    or three lines in turn, each beginning above its column. Narrower ones have them upright.

    Parameters
    ----------
    names
        Visible text, one per column; what is too long is cut with ``ellipsis``.
    room
        Cells that a line may take; by default those of the columns.
    centered
        Names in the middle of their columns where they fit, instead of at the right.

    Examples
    --------
    >>> name_lines(["A", "cute", "bear", "is"], 3, room=15)
    [' A     bear', '    cute  is']
    >>> name_lines(["A", "cute"], 2)
    [' A c', '   u', '   t', '   e']
    """
    room = len(names) * width if room is None else room
    longest = max(map(cell_len, names), default=0)
    if width >= 3 and (longest < width or width >= _WIDE):
        cells = (fit(name, width - 1, ellipsis=ellipsis) for name in names)
        return ["".join(_in_column(cell, width, centered) for cell in cells).rstrip()]
    if width >= 3:
        return _in_turn(names, width, room, longest, ellipsis)
    return _upright(names, width, longest)


def _in_column(name: str, width: int, centered: bool) -> str:
    blank = width - cell_len(name)
    left = blank - blank // 2 if centered else blank
    return " " * left + name + " " * (blank - left)


def _in_turn(names: Sequence[str], width: int, room: int, longest: int, ellipsis: str) -> list[str]:
    n_lines = min(_MOST_LINES, -(-(longest + 1) // width), len(names))
    lines = []
    for turn in range(n_lines):
        line = ""
        for column in range(turn, len(names), n_lines):
            name = fit(names[column], n_lines * width - 1, ellipsis=ellipsis)
            start = min(column * width + 1, room - cell_len(name))
            line += " " * max(bool(line), start - cell_len(line))
            line += fit(name, max(1, room - cell_len(line)), ellipsis=ellipsis)
        lines.append(line)
    return lines


def _upright(names: Sequence[str], width: int, longest: int) -> list[str]:
    """Write names from top to bottom, cut to a few letters; what is wider than a column is left out."""
    letters = [[c for c in name if cell_len(c) in range(1, width + 1)] for name in names]
    n_lines = min(_MOST_LETTERS, max(map(len, letters), default=0))
    lines = []
    for n in range(n_lines):
        cells = (own[n] if n < len(own) else " " for own in letters)
        lines.append("".join(" " * (width - cell_len(cell)) + cell for cell in cells).rstrip())
    return lines
