"""Do in a child process, under limits, what a library cannot be trusted to do in ours.

What lives here: starting the child, its limits of time, and how it ended. What does not: the
child's side (``child``), its tasks (``pt_task``, ``tokenizer_task``), and what the caller makes of
an ending. Whatever comes back is taken for hostile too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import ResourceError

PT_TASK = Path(__file__).with_name("pt_task.py")
TOKENIZER_TASK = Path(__file__).with_name("tokenizer_task.py")

_CLOCK_PER_CPU = 10  # a busy machine may take that many times longer by the clock
_MAX_ANSWER_BYTES = 1 << 20
_TIME_IS_UP = -27  # SIGPROF
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may take once its libraries are loaded.

    Parameters
    ----------
    extra_bytes
        Memory beyond what the process holds by then.
    cpu_s
        Processor time of the work itself, in seconds; by the clock ten times that.
    start_s
        By the clock, for starting Python and loading the libraries.
    """

    extra_bytes: int
    cpu_s: float
    start_s: float = 60.0

    @property
    def clock_s(self) -> float:
        """The whole child's time by the clock."""
        return self.start_s + _CLOCK_PER_CPU * self.cpu_s


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended: its answer, or None where it gave none that is sound.

    Parameters
    ----------
    status
        Exit status; negative: the signal that ended it.
    answer
        The JSON object it printed; ``{"memory": true}`` where memory ran out in Python.
    is_late
        Ended because its time was up.
    """

    status: int
    answer: dict[str, Any] | None
    is_late: bool = False


def run_confined(
    task: Path, arguments: Sequence[str], *, limits: Limits, stdin: bytes = b""
) -> Ending:
    """Run a task in a child process and return how it ended.

    Parameters
    ----------
    task
        A Python file that needs nothing of this package: ``prepare() -> dict | None`` loads its
        libraries, ``work(arguments, data) -> dict`` does the rest under the limits.
    stdin
        What ``data`` is.

    Raises
    ------
    ResourceError
        No process can be started.
    """
    launcher = Path(__file__).with_name("child.py")
    numbers = [str(limits.extra_bytes), str(limits.cpu_s)]
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(launcher), str(task), *numbers, *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
            timeout=limits.clock_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ending(0, None, is_late=True)
    except OSError as fault:
        raise ResourceError(
            f"cannot start a process to read a stranger's file in ({fault.strerror}): "
            "close other programs"
        ) from fault
    return ending(done.returncode, done.stdout)


def ending(status: int, printed: bytes) -> Ending:
    """Return what an exit status and the bytes on standard output mean.

    Examples
    --------
    >>> ending(0, b'{"refused": "x"}').answer, ending(-6, b"").answer, ending(-27, b"").is_late
    ({'refused': 'x'}, None, True)
    """
    if status == _TIME_IS_UP:
        return Ending(status, None, is_late=True)
    try:
        value = json.loads(printed) if len(printed) <= _MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        value = None
    return Ending(status, value if status == 0 and isinstance(value, dict) else None)
