"""The child's side of ``confined``: load a task's libraries, then work under limits.

What lives here: the limits of memory and processor time, and the one JSON line that comes back.
What does not: any task. Run as a script: TASK EXTRA_BYTES CPU_S ARGUMENTS…; imports nothing of
this package, so that starting it costs Python and the task's libraries alone.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any


def limit(extra_bytes: int, cpu_s: float) -> None:
    """Allow this process what it has now plus ``extra_bytes``, and ``cpu_s`` seconds of work.

    Where a system lacks one of the limits, the other holds.
    """
    missing = (ImportError, AttributeError, OSError, ValueError)
    with contextlib.suppress(*missing):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, in native code too
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
    with contextlib.suppress(*missing):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as file:
            now_bytes = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now_bytes + extra_bytes,) * 2)


def run(
    work: Callable[[list[str], bytes], dict[str, Any]],
    arguments: list[str],
    data: bytes,
    *,
    extra_bytes: int,
    cpu_s: float,
) -> dict[str, Any]:
    """Do the work under the limits; what Python itself notices is told, the rest ends us."""
    limit(extra_bytes, cpu_s)
    try:
        return work(arguments, data)
    except MemoryError:
        return {"memory": True}
    except RecursionError:
        return {"refused": "nests its values too deeply"}
    except OSError as fault:
        return {"disk": fault.strerror or "error"}


def main(task: str, extra_bytes: str, cpu_s: str, *arguments: str) -> None:
    """Load the task, do it, print its answer."""
    found = runpy.run_path(task)
    answer = found["prepare"]()
    if answer is None:
        data = sys.stdin.buffer.read()
        answer = run(
            found["work"], list(arguments), data, extra_bytes=int(extra_bytes), cpu_s=float(cpu_s)
        )
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
