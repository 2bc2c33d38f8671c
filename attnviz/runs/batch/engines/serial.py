"""``--engine serial``: this process does the work itself; nothing survives a text that kills it.

What lives here: the contract at its plainest, for small inputs, debuggers and tests.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.runs.batch.engines import Staffing
from attnviz.runs.batch.jobs import Job, Opened, Result, Work
from attnviz.runs.batch.work import Worker


def make(work: Work, staffing: Staffing) -> Serial:
    """Return the engine."""
    return Serial(work)


class Serial:
    """One worker, in this process."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._worker: Worker | None = None

    def open(self) -> Opened:
        """Open the source."""
        self._worker = Worker(self._work)
        return self._worker.opened()

    def run(self, jobs: Iterator[Job]) -> Iterator[Result]:
        """Work the jobs off in order."""
        assert self._worker is not None
        for job in jobs:
            yield self._worker.run(job)

    def close(self) -> None:
        """Forget the source."""
        self._worker = None
