"""Keep what native code writes to the process's own streams away from the user.

What lives here: the file descriptors. A panic of a Rust library prints the text it stumbled over, as it
is, and a stack, before it becomes an exception; others print a stranger's words to standard output.
What does not: turning an exception into an error (``models.guarding``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(*streams: int) -> Iterator[None]:
    """Send file descriptors nowhere while the block runs; what Python itself writes is lost too.

    Parameters
    ----------
    streams
        1, 2 or both; both where none is given.
    """
    kept: list[tuple[int, int]] = []
    for stream in streams or (1, 2):
        with contextlib.suppress(OSError):  # there is no such stream
            kept.append((stream, os.dup(stream)))
    try:
        if kept:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream, _ in kept:
                os.dup2(nowhere, stream)
            os.close(nowhere)
        yield
    finally:
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)
