"""The process that reads inputs one by one: ``python -m fuzz.worker``, started by ``campaign``.

What lives here: the verdict on one input, and the figures, which are shared with the parent so
that a sudden death loses none of them. What does not: noticing a death or a hang (``campaign``).
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import resource
import struct
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fuzz.kinds import Kind, load, make

CPU_S = 2.0
"""Processor time for one input, children included; beyond it the input is a fault."""
CLOCK_S = 120.0
"""Time by the clock for one input: generous, since a busy machine may give us a fiftieth of it."""
GROWTH_BYTES = 256 << 20
"""Memory for one input beyond the size of its files."""

FORM = struct.Struct("<qqqqdddd")


@dataclass
class Shared:
    """Figures in a file that worker and parent both map."""

    number: int = -1  # of the input at work
    done: int = 0
    opened: int = 0
    refused: int = 0
    slowest_cpu_s: float = 0.0
    slowest_s: float = 0.0
    growth_bytes: float = 0.0
    began: float = 0.0  # time.monotonic() of the input at work

    def pack(self) -> bytes:
        return FORM.pack(
            self.number, self.done, self.opened, self.refused, self.slowest_cpu_s, self.slowest_s,
            self.growth_bytes, self.began,
        )  # fmt: skip

    @staticmethod
    def unpack(data: bytes) -> Shared:
        return Shared(*FORM.unpack(data[: FORM.size]))


def read_one(kind: Kind, folder: Path, files: Mapping[str, bytes]) -> tuple[str, str]:
    """Read one input; return ``opened``, ``refused`` or ``fault``, and what the fault is."""
    from attnviz.errors import AttnvizError

    try:
        kind.read(folder, files)
        return "opened", ""
    except AttnvizError as fault:
        text = str(fault)
        if fault.exit_code not in kind.allowed:
            return "fault", f"exit {fault.exit_code}: {type(fault).__name__}: {text}"
        if "\n" in text or not text or len(text) > 800:
            return "fault", f"a message of {len(text)} characters: {text!r}"
        return "refused", ""
    except KeyboardInterrupt:
        raise
    except BaseException as fault:
        return "fault", f"{type(fault).__name__}: {fault} ({_where(fault)})"


def _where(fault: BaseException) -> str:
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


class Memory:
    """Resident memory of this process, now and at its highest since the last reset."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._page = resource.getpagesize()

    def now_bytes(self) -> int:
        return int(os.pread(self._statm, 100, 0).split()[1]) * self._page

    def highest_bytes(self) -> int:
        # not ru_maxrss: that begins with the parent's size
        text = os.pread(self._status, 4000, 0)
        at = text.index(b"VmHWM:")
        return int(text[at + 6 : at + 30].split()[0]) << 10

    def reset(self) -> None:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")


def cpu_s() -> float:
    """Return the processor time of this process and the children it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Files:
    """Puts an input's files into a folder, and back what lay there before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sound = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def put(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            path = self.folder / name
            try:
                path.write_bytes(data)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def restore(self, files: Mapping[str, bytes]) -> None:
        for name in files:
            path = self.folder / name
            if path in self.sound:
                path.write_bytes(self.sound[path])
            else:
                path.unlink(missing_ok=True)


class Printed:
    """What anyone writes to the file descriptors 1 and 2, which go to one file from now on.

    Libraries write there past any guard of ours: texts of strangers would reach the terminal raw.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(self._file, 1)
        os.dup2(self._file, 2)
        self._seen = 0

    def take(self) -> str:
        size = os.fstat(self._file).st_size
        data = os.pread(self._file, 400, self._seen) if size > self._seen else b""
        self._seen = size
        return data.decode("utf-8", "replace")


def judge(
    kind: Kind,
    place: Files,
    files: Mapping[str, bytes],
    memory: Memory,
    shared: Shared,
    printed: Printed,
    limit_s: float,
) -> tuple[str, str]:
    """Put one input in its place, read it, measure; return the verdict."""
    place.put(files)
    before = memory.now_bytes()
    clock, cpu = time.perf_counter(), cpu_s()
    verdict, what = read_one(kind, place.folder, files)
    sys.stdout.flush()
    sys.stderr.flush()
    cpu, clock = cpu_s() - cpu, time.perf_counter() - clock
    child_growth, child_cpu_s = _children()
    cpu = max(0.0, cpu + child_cpu_s)
    growth = max(0, memory.highest_bytes() - before, child_growth)
    place.restore(files)
    if growth > 16 << 20:
        memory.reset()
    shared.slowest_cpu_s = max(shared.slowest_cpu_s, cpu)
    shared.slowest_s = max(shared.slowest_s, clock)
    shared.growth_bytes = max(shared.growth_bytes, growth)
    told = printed.take()
    if verdict == "fault":
        return verdict, what
    if told:
        return "fault", f"wrote to standard output or error by itself: {told!r}"
    if cpu > limit_s or clock > CLOCK_S:
        return "fault", f"slow: {cpu:.1f} s of processor time, {clock:.1f} s by the clock"
    if growth > GROWTH_BYTES + sum(map(len, files.values())):
        return "fault", f"memory: {growth >> 20} MB more"
    return verdict, ""


def _draw(name: str, seed: int, number: int) -> random.Random:
    return random.Random(f"{name} {seed} {number}")


def _children() -> tuple[int, float]:
    """Return what forked children took: memory at most, and processor time."""
    forks = sys.modules.get("fuzz.forks")
    return (0, 0.0) if forks is None else forks.take()


def main(
    name: str, seed: int, first: int, stop: int, seconds: float, cpu_limit_s: float, out: Path
) -> None:
    """Read the inputs from ``first`` up to ``stop``, for some seconds.

    ``out`` is a folder: figures go to its file ``board``, faults as JSON lines to ``faults``.
    """
    import tempfile

    kind = load(name)
    with (
        tempfile.TemporaryDirectory() as made,
        (out / "board").open("r+b") as file,
        (out / "faults").open("w", encoding="utf-8", buffering=1) as faults,
    ):
        board = mmap.mmap(file.fileno(), FORM.size)
        os.environ["XDG_CACHE_HOME"] = str(Path(made) / "cache")
        folder = Path(made) / "inputs"
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.prepare(folder)
        gc.collect()
        gc.freeze()  # the libraries' own objects need no looking through, again and again
        warnings.simplefilter("always")  # each is a fault: it would reach the terminal
        place, memory, shared = Files(folder), Memory(), Shared()
        printed = Printed(out / "printed")
        memory.reset()
        now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now_bytes + kind.room_bytes,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        end, parent = time.monotonic() + seconds, os.getppid()
        for number in range(first, stop):
            files = make(name, seed, number) if seed == 0 else kind.make(_draw(name, seed, number))
            shared.number, shared.began = number, time.monotonic()
            board[:] = shared.pack()
            verdict, what = judge(kind, place, files, memory, shared, printed, cpu_limit_s)
            shared.done += 1
            if verdict == "fault":
                faults.write(json.dumps({"number": number, "what": what[:1000]}) + "\n")
            else:
                setattr(shared, verdict, getattr(shared, verdict) + 1)
            board[:] = shared.pack()
            if time.monotonic() > end or os.getppid() != parent:
                break
        faults.write(json.dumps({"end": shared.done}) + "\n")


if __name__ == "__main__":
    kind_name, *numbers, path = sys.argv[1:]
    seed, first, stop = map(int, numbers[:3])
    main(kind_name, seed, first, stop, float(numbers[3]), float(numbers[4]), Path(path))
