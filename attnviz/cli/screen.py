"""What stdout can show, and where the program was started: facts of this process.

Found out from the stream, the environment and the options of a screen.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from attnviz.cli import terminal

if TYPE_CHECKING:
    from attnviz.render.screen import ColorSystem, Screen


def make_screen(
    *,
    width: int | None = None,
    color: str = "auto",
    precision: int = 4,
    full_vectors: bool = False,
    stream: TextIO | None = None,
) -> Screen:
    """Find out what stdout can show.

    Width: the asked one, ``COLUMNS``, the terminal's, or without limit in a pipe. Colours: none
    in a pipe, with ``NO_COLOR`` or ``TERM=dumb``, unless ``always``.
    """
    from attnviz.render.screen import Screen

    target = stream or terminal.stdout()
    assert target is not None
    return Screen(
        width=width or _width_of(target),
        colors=_colors_of(target, color),
        encoding=terminal.encoding_of(target),
        precision=precision,
        full_vectors=full_vectors,
        is_terminal=terminal.is_terminal(target),
    )


def _width_of(stream: TextIO) -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns[:9]) > 0:
        return int(columns[:9])
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def _colors_of(stream: TextIO, choice: str) -> ColorSystem:
    environment = os.environ
    if choice == "never":
        return "none"
    if choice == "auto":
        is_forced = bool(environment.get("FORCE_COLOR"))
        if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
            return "none"
        if not (stream.isatty() or is_forced):
            return "none"
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in environment.get("TERM", "") else "standard"


def working_folder() -> str:
    """Return where the program was started, or the root where that folder is gone."""
    try:
        return os.getcwd()
    except OSError:  # it was removed, or may not be read: then there are no files in it either
        return os.sep
