"""``--engine ray``: actors on a Ray cluster, one per core or GPU.

What lives here: starting actors, handing out jobs, noticing deaths. What does not: what a worker
does (``runs.work``), who is to blame for a death (``_strikes``).

attnviz and the model or weight file must be on every node under the same path; texts travel with
the jobs and results come back to this process, which alone writes. Ray's tasks run at least once,
which is enough here. Ray Core actors are used, so that a model is opened once per actor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from attnviz.errors import ResourceError, UsageError
from attnviz.runs.batch.engines import Staffing
from attnviz.runs.batch.engines._strikes import STRIKES, Case
from attnviz.runs.batch.jobs import Job, Opened, Refused, Result, Work


def make(work: Work, staffing: Staffing) -> Ray:
    """Return the engine.

    Raises
    ------
    UsageError
        Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing touches the network unasked
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray = import_module("ray")
    except ImportError:
        raise UsageError("--engine ray needs Ray: pip install 'attnviz[ray]'") from None
    return Ray(ray, work, staffing)


class Ray:
    """Actors, and what each of them is at."""

    def __init__(self, ray: Any, work: Work, staffing: Staffing) -> None:
        self._ray, self._work, self._staffing = ray, work, staffing
        self._actors: list[Any] = []
        self._opened: Any = None
        self._is_ours = False

    def open(self) -> Opened:
        """Join or start the cluster, and let the first actor open the source."""
        self._join()
        for attempt in range(1, STRIKES + 1):
            actor = self._hire()
            try:
                found = self._ray.get(actor.open.remote())
            except self._ray.exceptions.RayError as fault:
                if attempt == STRIKES:
                    raise ResourceError(f"no Ray actor comes up: {_one_line(fault)}") from fault
                continue
            if isinstance(found, Refused):
                raise found.error()
            assert isinstance(found, Opened)
            self._opened = actor
            return found
        raise AssertionError

    def run(self, jobs: Iterator[Job]) -> Iterator[Result]:
        """Give every actor one job at a time; a shard whose actor died is tried again."""
        wanted = self._staffing.workers or self._room()
        idle = [self._opened, *(self._hire() for _ in range(wanted - 1))]
        again: list[Case] = []
        busy: dict[Any, tuple[Any, Case, Job]] = {}
        is_over = False
        while True:
            while idle and not (is_over and not again):
                case = again.pop() if again else None
                if case is None:
                    job = next(jobs, None)
                    if job is None:
                        is_over = True
                        continue
                    case = Case(job)
                actor, asked = idle.pop(), case.next_job()
                busy[actor.run.remote(asked)] = (actor, case, asked)
            if not busy:
                return
            done, _ = self._ray.wait(list(busy), num_returns=1)
            actor, case, asked = busy.pop(done[0])
            try:
                result: Result = self._ray.get(done[0])
            except self._ray.exceptions.RayError as fault:
                self._note(case, asked, fault)
                idle.append(self._hire())
                again.append(case)
                continue
            idle.append(actor)
            if case.survived():
                yield result
            else:
                again.append(case)

    def close(self) -> None:
        """Kill the actors; leave a cluster that was there before as it is."""
        for actor in self._actors:
            self._ray.kill(actor, no_restart=True)
        self._actors = []
        if self._is_ours and self._ray.is_initialized():
            self._ray.shutdown()
        self._is_ours = False

    def _join(self) -> None:
        if self._ray.is_initialized():
            return
        address = self._staffing.address or "local"
        options: dict[str, Any] = {"address": address, "log_to_driver": False,
                                   "logging_level": "ERROR"}  # fmt: skip
        if address == "local":
            options["include_dashboard"] = False
            if self._staffing.workers:
                options["num_cpus"] = self._staffing.workers * self._work.threads
        try:
            self._ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as fault:
            raise ResourceError(
                f"no Ray cluster at {address!r}: {_one_line(fault)}; start one with ray start, or "
                "give --ray-address local"
            ) from fault
        self._is_ours = True

    def _room(self) -> int:
        """Return how many actors the cluster has room for."""
        have = self._ray.cluster_resources()
        if self._wants_gpu():
            return max(1, int(have.get("GPU", 0)))
        return max(1, int(have.get("CPU", 1)) // self._work.threads)

    def _wants_gpu(self) -> bool:
        device = str(self._work.source.get("device", "auto"))
        is_asked = device.startswith("cuda") or (device == "auto" and _needs_torch(self._work))
        return is_asked and self._ray.cluster_resources().get("GPU", 0) >= 1

    def _hire(self) -> Any:
        gpus = {"num_gpus": 1} if self._wants_gpu() else {}
        threads = self._work.threads
        kind = self._ray.remote(num_cpus=threads, max_restarts=0, **gpus)(_Actor)
        actor = kind.remote(self._work)
        self._actors.append(actor)  # every one is let go at the end, replacements too
        return actor

    def _note(self, case: Case, asked: Job, fault: Exception) -> None:
        """Blame the texts of a job; a first death of a whole shard may be the node's."""
        why = f"Ray: {type(fault).__name__}"
        at = [row.number for row in asked.rows if row.text is not None and not row.error]
        at = [number for number in at if number not in asked.lost]
        if not asked.is_trial and not case.is_suspected:
            case.is_suspected = True
            self._staffing.notify(f"an actor died ({why}): shard {asked.shard} is tried again")
            return
        before = set(case.lost)
        case.died(at, why)
        for number in sorted(set(case.lost) - before):
            self._staffing.notify(f"text {number} killed {STRIKES} actors: it goes to errors.jsonl")


class _Actor:
    """A worker in a process of Ray's; the source is opened on the first call."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._worker: Any = None

    def open(self) -> Opened | Refused:
        """Open the source; return its facts, or why it was refused."""
        from attnviz.runs.batch.work import open_worker

        if self._worker is None:
            found = open_worker(self._work)
            if isinstance(found, Refused):
                return found
            self._worker = found
        opened: Opened = self._worker.opened()
        return opened

    def run(self, job: Job) -> Result:
        """Do a job."""
        opened = self.open()
        if isinstance(opened, Refused):
            raise RuntimeError(opened.why)
        result: Result = self._worker.run(job)
        return result


def _needs_torch(work: Work) -> bool:
    return bool(work.source.get("model")) or work.source.get("dtype", "float64") != "float64"


def _one_line(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:200] or type(fault).__name__
