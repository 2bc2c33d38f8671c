"""Run inputs in worker processes, and name the one on which a worker dies or hangs.

What lives here: the parent's side, and what is found over several workers. What does not: the
verdict on an input that is read to its end (``worker``), and what is kept on disk (``keeping``).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.worker import CLOCK_S, CPU_S, FORM, Shared

_POLL_S = 0.05
_START_S = 900.0  # for loading libraries and making sound files, on a busy machine too
_MOST_FAULTS = 50
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Fault:
    """An input on which something happened that must not, and what."""

    kind: str
    seed: int
    number: int
    what: str


@dataclass
class Figures:
    """What came of the inputs of one kind and seed, numbers 0 to ``inputs`` − 1."""

    kind: str
    seed: int
    inputs: int = 0
    opened: int = 0
    refused: int = 0
    slowest_cpu_s: float = 0.0
    slowest_s: float = 0.0
    growth_bytes: float = 0.0
    took_s: float = 0.0
    is_interrupted: bool = False
    faults: list[Fault] = field(default_factory=list)

    def add(self, shared: Shared) -> None:
        self.inputs += shared.done
        self.opened += shared.opened
        self.refused += shared.refused
        self.slowest_cpu_s = max(self.slowest_cpu_s, shared.slowest_cpu_s)
        self.slowest_s = max(self.slowest_s, shared.slowest_s)
        self.growth_bytes = max(self.growth_bytes, shared.growth_bytes)


@dataclass(frozen=True)
class Bounds:
    """What an input may take: processor time, and what makes the parent end it; in seconds."""

    cpu_s: float = CPU_S
    hang_s: float = 2 * CPU_S
    clock_s: float = CLOCK_S


def run(
    kind: str, *, seed: int, count: int, seconds: float = 1e9, bounds: Bounds = Bounds()
) -> Figures:
    """Read inputs 0 to ``count`` − 1 of a seed, as far as the time allows; faults do not stop it."""
    found = Figures(kind, seed)
    began = time.monotonic()
    first = 0
    while first < count and len(found.faults) < _MOST_FAULTS:
        left = seconds - (time.monotonic() - began)
        if first and left <= 0:
            break
        shared, faults, ended = _run_worker(kind, seed, first, count, left, bounds)
        found.faults += faults
        if ended == INTERRUPTED:  # what was read to its end counts
            found.add(shared)
            found.is_interrupted = True
            break
        if ended:  # it died, or had to be ended, at the input it names
            found.faults.append(Fault(kind, seed, shared.number, ended))
            shared.done = shared.number - first + 1
        found.add(shared)
        if not ended:
            break
        if shared.number < 0:  # it never began
            break
        first = shared.number + 1
    found.took_s = time.monotonic() - began
    return found


def _run_worker(
    kind: str, seed: int, first: int, stop: int, seconds: float, bounds: Bounds
) -> tuple[Shared, list[Fault], str]:
    """Return the figures, the faults it told of, and why it ended early, if it did."""
    with tempfile.TemporaryDirectory() as made:
        board, out, err = (Path(made) / name for name in ("board", "faults", "err"))
        board.write_bytes(Shared().pack())
        command = [sys.executable, "-m", "fuzz.worker", kind, str(seed), str(first), str(stop),
                   str(seconds), str(bounds.cpu_s), made]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_paths()), "TMPDIR": made,
                       "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                       "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
                       "MALLOC_ARENA_MAX": "1"}  # fmt: skip
        with err.open("wb") as to, board.open("rb") as file:
            shared = mmap.mmap(file.fileno(), FORM.size, access=mmap.ACCESS_READ)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=to, stderr=to, env=environment
            )
            try:
                why = _watch(process, shared, bounds)
            except KeyboardInterrupt:
                why = INTERRUPTED
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            figures = Shared.unpack(shared[:])
        lines: list[dict[str, Any]] = [json.loads(line) for line in _lines(out)]
        faults = [Fault(kind, seed, x["number"], x["what"]) for x in lines if "what" in x]
        if not why and not any("end" in line for line in lines):
            told = " ".join(err.read_text("utf-8", "replace").split())[-400:]
            printed = Path(made) / "printed"
            if printed.exists():
                told += " ".join(printed.read_text("utf-8", "replace").split())[-400:]
            why = f"the process ended with status {process.returncode}: {told}"
    return figures, faults, why


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:-1] if path.exists() else []


def _paths() -> list[str]:
    campaigns, tests, root = Path(__file__).resolve().parents[1:4]
    return [
        str(tests),
        str(campaigns),
        str(root),
        *filter(None, [os.environ.get("PYTHONPATH", "")]),
    ]


def _watch(process: subprocess.Popen[bytes], shared: mmap.mmap, bounds: Bounds) -> str:
    """Wait for the end; return why the process has to be ended, or nothing where it ends itself."""
    number, since, cpu = -1, time.monotonic(), 0.0
    while process.poll() is None:
        time.sleep(_POLL_S)
        now = Shared.unpack(shared[:])
        if now.number != number:
            number, since, cpu = now.number, time.monotonic(), _cpu_s(process.pid)
            continue
        took = time.monotonic() - since
        if number < 0:
            if took > _START_S:
                return f"not ready after {took:.0f} s"
            continue
        used = _cpu_s(process.pid) - cpu
        if used > bounds.hang_s or took > bounds.clock_s:
            return f"hangs: {used:.1f} s of processor time, {took:.1f} s by the clock"
    return ""


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its children that ended."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0
