"""``--engine local``: a supervised pool of worker processes on this machine.

What lives here: starting workers, handing out jobs, noticing deaths. What does not: what a worker
does (``_worker``), who is to blame for a death (``_strikes``).

Every worker opens the source itself and computes with a fixed number of threads, so the bytes do
not depend on how many workers there are.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from attnviz import memory
from attnviz.errors import ResourceError
from attnviz.runs.batch.engines import Staffing, _frames
from attnviz.runs.batch.engines._strikes import STRIKES, Case
from attnviz.runs.batch.jobs import Job, Opened, Refused, Result, Work

_PROGRAM = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from attnviz.runs.batch.engines._worker import main; main()"
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def make(work: Work, staffing: Staffing) -> Local:
    """Return the engine."""
    return Local(work, staffing)


@dataclass(frozen=True, slots=True)
class _Died:
    """A worker's end: the texts it was at, and how it ended."""

    texts: tuple[int, ...]
    why: str
    was_ready: bool = True


class Local:
    """Worker processes, a thread of ours for each, and a queue of what they have to say."""

    def __init__(self, work: Work, staffing: Staffing) -> None:
        self._work, self._staffing = work, staffing
        self._workers: list[_Process] = []
        self._threads: list[threading.Thread] = []
        self._tasks: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[Case, Any]] = queue.SimpleQueue()
        self._is_closed = False
        self._device = "cpu"

    def open(self) -> Opened:
        """Start the first worker and wait until it has opened the source."""
        first = _Process(self._work)
        self._workers.append(first)
        for attempt in range(1, STRIKES + 1):
            found = first.start()
            if isinstance(found, Opened):
                self._device = str(found.facts["device"])
                return found
            if attempt == STRIKES:
                raise _no_worker(found.why)
        raise AssertionError

    def run(self, jobs: Iterator[Job]) -> Iterator[Result]:
        """Hand jobs to whoever is free; a shard whose worker died is tried again."""
        self._hire()
        for worker in self._workers:
            thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
            self._threads.append(thread)
            thread.start()
        n_out = 0
        for job in jobs:
            self._tasks.put(Case(job))
            n_out += 1
            if n_out > len(self._workers):
                yield self._wait()
                n_out -= 1
        for _ in range(n_out):
            yield self._wait()

    def close(self) -> None:
        """Kill every worker."""
        self._is_closed = True
        for worker in self._workers:
            worker.kill()
            self._tasks.put(None)
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may come between a thread and its start
                thread.join(timeout=5)
        for worker in self._workers:
            worker.bury()

    def _hire(self) -> None:
        """Make the pool as large as asked for, or as cores and memory allow."""
        wanted = self._staffing.workers
        if wanted is None:
            wanted = self._workers[0].how_many_fit() if self._device == "cpu" else 1
        self._workers += [_Process(self._work) for _ in range(wanted - len(self._workers))]
        limit = memory.own_limit_bytes()
        if limit is not None:
            for worker in self._workers:
                worker.keep_within(limit // len(self._workers))

    def _serve(self, worker: _Process) -> None:
        """Give one worker one case after the other; runs in a thread."""
        while (case := self._tasks.get()) is not None and not self._is_closed:
            try:
                self._events.put((case, worker.do(case.next_job())))
            except BaseException as fault:  # it belongs to whoever waits
                self._events.put((case, fault))

    def _wait(self) -> Result:
        """Return the next complete shard; deaths on the way send their shard back."""
        n_unready = 0
        while True:
            case, found = self._events.get()
            if isinstance(found, BaseException):
                raise found
            if isinstance(found, Result):
                n_unready = 0
                if case.survived():
                    return found
            elif not found.was_ready:
                n_unready += 1
                if n_unready >= STRIKES * len(self._workers):
                    raise _no_worker(found.why)
            else:
                lost_before = set(case.lost)
                case.died(found.texts, found.why)
                self._tell(found, sorted(set(case.lost) - lost_before))
            self._tasks.put(case)

    def _tell(self, death: _Died, lost: Sequence[int]) -> None:
        for number in lost:
            self._staffing.notify(
                f"text {number} killed {STRIKES} workers: it goes to errors.jsonl"
            )
        if not lost:
            at = f" at text {death.texts[0]}" if len(death.texts) == 1 else ""
            self._staffing.notify(f"a worker died{at} ({death.why}): another takes over")


class _Process:
    """One worker process, started when it is needed and again after a death."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._guard = threading.Lock()
        self._is_killed = False
        self._most_bytes: int | None = None

    def start(self) -> Opened | _Died:
        """Start the process and wait until it has opened the source.

        Raises
        ------
        AttnvizError
            Whatever the worker refused the source with.
        """
        root = str(Path(__file__).resolve().parents[4])
        environment = dict(os.environ)
        environment |= dict.fromkeys(_THREADS, str(self._work.threads))
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        with self._guard:
            if self._is_killed:
                return _Died((), "the batch is over", was_ready=False)
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  (closed by bury)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM.format(root=root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=environment,
                **_own_group(),
            )
        if self._most_bytes is not None:
            memory.limit_child(self._process.pid, self._most_bytes)
        found = self._ask(self._work)
        if isinstance(found, _Died):
            return _Died((), found.why, was_ready=False)
        if isinstance(found, Refused):
            self.bury()
            raise found.error()
        assert isinstance(found, Opened)
        return found

    def do(self, job: Job) -> Result | _Died:
        """Do a job; the process is started first if there is none."""
        if self._process is None:
            opened = self.start()
            if isinstance(opened, _Died):
                return opened
        found = self._ask(job)
        assert isinstance(found, Result | _Died)
        return found

    def kill(self) -> None:
        """End the process now, and for good."""
        with self._guard:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def keep_within(self, n_bytes: int) -> None:
        """Allow this worker, and those that take over from it, so much memory."""
        self._most_bytes = n_bytes
        if self._process is not None:
            memory.limit_child(self._process.pid, n_bytes)

    def how_many_fit(self) -> int:
        """Return how many workers this machine has cores and memory for."""
        n_cores = max(1, usable_cores() // self._work.threads)
        try:
            assert self._process is not None
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return n_cores
        own_bytes, room = pages * os.sysconf("SC_PAGE_SIZE"), memory.room_bytes()
        if room is None:
            return n_cores
        limit = memory.own_limit_bytes()  # it counts for all workers together, this one included
        fitting = 1 + room // own_bytes if limit is None else min(room, limit) // own_bytes
        return max(1, min(n_cores, fitting))

    def _ask(self, message: Work | Job) -> Opened | Refused | Result | _Died:
        """Send a message and wait for its answer, remembering the texts announced meanwhile."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        texts: tuple[int, ...] = ()
        try:
            _frames.send(process.stdin, message)
        except OSError:
            return _Died(texts, self.bury())
        while (found := _frames.receive(process.stdout)) is not None:
            if isinstance(found, Opened | Refused | Result):
                return found
            texts = found.texts
        return _Died(texts, self.bury())

    def bury(self) -> str:
        """Wait for the end of a process that closed its pipe; return how it ended, in words."""
        process, complaints = self._process, self._complaints
        if process is None or complaints is None:
            return ""
        try:
            code = process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with self._guard:
            self._process = self._complaints = None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with complaints:
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - 2000))
            said = complaints.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
            return f"signal {-code} {name}".strip()
        return f"exit code {code}" + (f": {said[-1][:200]}" if said else "")


def usable_cores() -> int:
    """Return how many cores this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return len(usable) if usable else os.cpu_count() or 1


def _own_group() -> dict[str, Any]:
    """Keep a terminal's Ctrl-C away from workers: the batch itself ends them."""
    return {"process_group": 0} if os.name == "posix" else {}


def _no_worker(why: str) -> ResourceError:
    return ResourceError(
        f"no worker comes up ({why}): is there enough memory for the source? try --workers 1"
    )
