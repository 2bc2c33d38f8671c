"""A worker process of ``--engine local``: work and jobs come in, results go out, until the end.

What lives here: the loop. What does not: the work itself (``runs.work``), starting and
watching workers (``local``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import IO

from attnviz.runs.batch.engines import _frames
from attnviz.runs.batch.jobs import At, Refused
from attnviz.runs.batch.work import open_worker


def main() -> None:
    """Serve standard input until it ends; whatever libraries print goes to standard error."""
    source = sys.stdin.buffer
    target: IO[bytes] = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(source, target)
    except BrokenPipeError:
        os._exit(0)  # the batch is gone: nobody waits for the rest


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Open the source, say so, then answer every job with its result."""
    work = _frames.receive(source)
    if work is None:
        return
    worker = open_worker(work)
    if isinstance(worker, Refused):
        _frames.send(target, worker)
        return
    _frames.send(target, worker.opened())

    def announce(numbers: Sequence[int]) -> None:
        _frames.send(target, At(tuple(numbers)))

    while (job := _frames.receive(source)) is not None:
        _frames.send(target, worker.run(job, announce))
