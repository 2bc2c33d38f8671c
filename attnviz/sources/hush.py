"""Keep what native code writes to the process's streams by itself away from the user.

What lives here: the file descriptors. A panic of a Rust library prints the text it stumbled over, as it
is, and a stack, before it becomes an exception. What does not: turning that exception into an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(*streams: int) -> Iterator[None]:
    """Send what is written to these file descriptors nowhere, while the block runs.

    Native code writes past ``sys.stdout`` and ``sys.stderr``: a panic, a compiler's message.
    """
    kept: list[tuple[int, int]] = []
    for stream in streams:
        python = sys.stdout if stream == 1 else sys.stderr
        try:
            if python is not None:
                python.flush()
            kept.append((stream, os.dup(stream)))
        except (OSError, ValueError):  # there is no such stream
            continue
    nowhere = os.open(os.devnull, os.O_WRONLY) if kept else -1
    try:
        for stream, _ in kept:
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)
        if kept:
            os.close(nowhere)
