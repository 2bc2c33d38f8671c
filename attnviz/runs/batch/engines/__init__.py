"""Who works a batch off: one file per engine, one contract.

What lives here: the contract. What does not: what the work is (``runs.work``) and what becomes of
its results (``runs.batch``). An engine may do a job twice: a shard's bytes depend on the job alone,
and the folder counts it once. A file's name is the engine's name; ``make`` builds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from attnviz.runs.batch.jobs import Job, Opened, Result


@dataclass(frozen=True, slots=True)
class Staffing:
    """How many workers there are, and where.

    Parameters
    ----------
    workers
        None lets the engine choose.
    address
        Of a cluster, for engines that have one.
    notify
        Told in one line about deaths and restarts.
    """

    workers: int | None = None
    address: str | None = None
    notify: Callable[[str], None] = lambda _: None


class Engine(Protocol):
    """Workers, from ``open`` to ``close``."""

    def open(self) -> Opened:
        """Start the first worker.

        Raises
        ------
        UsageError, InputError, ResourceError
            The source cannot be opened, or no worker can be had.
        """

    def run(self, jobs: Iterator[Job]) -> Iterator[Result]:
        """Yield every job's result once, in any order; jobs are taken only as workers get free."""

    def close(self) -> None:
        """End every worker at once; safe to call twice."""
