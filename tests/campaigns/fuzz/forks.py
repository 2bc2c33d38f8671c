"""A fork server for tasks that the program gives to a child process: the libraries load once.

What lives here: a stand-in for ``confined.run_confined``. It asks a server process, which has the
task's libraries and nothing else, to fork a child with the program's own limits in it. Every
``real``-th task takes the real way instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import resource
import runpy
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from attnviz.sources.confined import parent
from attnviz.sources.confined.parent import Ending, Limits, ending

_real = parent.run_confined
_LAUNCHER = Path(parent.__file__).with_name("child.py")
_HEAD = 8


@dataclass
class _Server:
    """The server's pipes, and what its children took since anyone asked."""

    ask: BinaryIO
    hear: BinaryIO
    real: int
    start_cpu_s: float | None = None
    tasks: int = 0
    growth_bytes: int = 0
    cpu_s: float = 0.0
    last: tuple[str, Ending] | None = None


_servers: list[_Server] = []


def install(module: Any, task: Path, *, real: int) -> None:
    """Let a module that calls ``run_confined`` ask the server; each ``real``-th call is real.

    To be called while this process is small: the server is a fork of it.
    """
    ask, hear = os.pipe(), os.pipe()
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            os.close(ask[1])
            os.close(hear[0])
            _serve(task, open(ask[0], "rb"), open(hear[1], "wb"))  # noqa: SIM115
        finally:
            os._exit(0)
    os.close(ask[0])
    os.close(hear[1])
    _servers[:] = [_Server(open(ask[1], "wb"), open(hear[0], "rb"), real)]  # noqa: SIM115
    module.run_confined = run_forked


def take() -> tuple[int, float]:
    """Return the largest growth and the processor time of the children since the last call."""
    if not _servers:
        return 0, 0.0
    server = _servers[0]
    found = server.growth_bytes, server.cpu_s
    server.growth_bytes, server.cpu_s = 0, 0.0
    return found


def run_forked(
    task: Path, arguments: Sequence[str], *, limits: Limits, stdin: bytes = b""
) -> Ending:
    """Do what ``run_confined`` does, in a fork of the server; the same bytes again only once."""
    server = _servers[0]
    key = hashlib.sha256(stdin).hexdigest() if stdin else ""
    if key and server.last is not None and server.last[0] == key:
        return server.last[1]
    server.tasks += 1
    if server.tasks % server.real == 0:
        if server.start_cpu_s is None:  # what Python and the libraries take to start
            before = _children_cpu_s()
            _real(task, ["", "", "0"], limits=Limits(1 << 30, 10.0))
            server.start_cpu_s = _children_cpu_s() - before
            server.cpu_s -= server.start_cpu_s  # of this measurement itself
        server.cpu_s -= server.start_cpu_s
        return _real(task, arguments, limits=limits, stdin=stdin)
    _write(server.ask, (list(arguments), stdin, limits))
    status, printed, is_late, growth, cpu_s = _read(server.hear)
    server.growth_bytes = max(server.growth_bytes, growth)
    server.cpu_s += cpu_s
    found = Ending(0, None, is_late=True) if is_late else ending(status, printed)
    server.last = (key, found)
    return found


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write(stream: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(_HEAD, "little") + data)
    stream.flush()


def _read(stream: BinaryIO) -> Any:
    size = int.from_bytes(stream.read(_HEAD), "little")
    return pickle.loads(stream.read(size))


def _serve(task: Path, ask: BinaryIO, hear: BinaryIO) -> None:
    """Be the server, until nobody asks any more."""
    found = runpy.run_path(str(task))
    assert found["prepare"]() is None
    run = runpy.run_path(str(_LAUNCHER))["run"]
    with contextlib.suppress(EOFError):
        while True:
            arguments, stdin, limits = _read(ask)
            _write(hear, _fork(run, found["work"], arguments, stdin, limits))


def _fork(
    run: Callable[..., dict[str, Any]],
    work: Callable[..., dict[str, Any]],
    arguments: list[str],
    stdin: bytes,
    limits: Limits,
) -> tuple[int, bytes, bool, int, float]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            answer = run(work, arguments, stdin, extra_bytes=limits.extra_bytes, cpu_s=limits.cpu_s)
            os.write(writer, json.dumps(answer).encode()[:60_000])
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    before = _rss_bytes()
    with open(reader, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], limits.clock_s)
        if not ready:
            os.kill(child, signal.SIGKILL)
        printed = pipe.read()
    _, raw, used = os.wait4(child, 0)
    growth = max(0, (used.ru_maxrss << 10) - before)
    status = os.waitstatus_to_exitcode(raw)
    return status, printed, not ready, growth, used.ru_utime + used.ru_stime


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
