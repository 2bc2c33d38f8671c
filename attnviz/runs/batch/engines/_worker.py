"""A worker process of ``--engine local``: work and jobs come in, results go out, until the end.

What lives here: the loop. What does not: the work itself (``runs.work``), starting and
watching workers (``local``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import IO

from attnviz.errors import AttnvizError, ResourceError
from attnviz.memory import is_exhausted
from attnviz.runs.batch.engines import _frames
from attnviz.runs.batch.jobs import Job, Work
from attnviz.runs.batch.work import Worker


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
    first = _frames.receive(source)
    if first is None:
        return
    try:
        worker = Worker(Work.from_json(first[0]))
        facts, notices = worker.facts(), worker.notices()
    except AttnvizError as fault:
        _frames.send(target, {"kind": "refused", "why": str(fault), "exit": fault.exit_code})
        return
    except Exception as fault:
        if not is_exhausted(fault):
            raise
        why = "out of memory while the source was opened: try fewer --workers"
        _frames.send(target, {"kind": "refused", "why": why, "exit": ResourceError.exit_code})
        return
    _frames.send(target, {"kind": "ready", "facts": facts, "notices": notices})

    def announce(numbers: Sequence[int]) -> None:
        _frames.send(target, {"kind": "at", "texts": list(numbers)})

    while (message := _frames.receive(source)) is not None:
        result = worker.run(Job.from_json(message[0]), announce)
        _frames.send(target, {"kind": "done", "result": result.to_json()}, result.files)
