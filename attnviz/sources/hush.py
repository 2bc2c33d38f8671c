"""Keep what native code writes to the process's stderr by itself away from the user.

What lives here: the file descriptor. A panic of a Rust library prints the text it stumbled over, as it
is, and a stack, before it becomes an exception. What does not: turning that exception into an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed() -> Iterator[None]:
    """Send file descriptor 2 nowhere while the block runs; what Python itself writes is lost too."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
