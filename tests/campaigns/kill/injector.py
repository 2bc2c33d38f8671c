"""Make the N-th call that changes a disk fail, or be the last thing a process does.

What lives here: counting and breaking system calls in this very process. Every open for writing,
write, fsync, link, rename, unlink and mkdir counts, whoever makes it through ``os``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any

KINDS = ("kill before", "kill after", "ENOSPC", "EIO")
_CALLS = ("fsync", "link", "replace", "rename", "unlink", "mkdir", "ftruncate", "pwrite")


class Injector:
    """Counts calls from 1; at number ``at`` does what ``kind`` says. 0 only counts.

    The patches stay: use it in a process that is about to end.
    """

    def __init__(self, at: int = 0, kind: str = "") -> None:
        self.at, self.kind = at, kind
        self.calls: list[str] = []

    def install(self) -> None:
        for name in _CALLS:
            setattr(os, name, self._wrap(name, getattr(os, name)))
        plain_open = os.open

        def counted_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if not flags & os.O_CREAT:
                return plain_open(path, flags, *rest, **named)
            return int(self._do("open", lambda: plain_open(path, flags, *rest, **named)))

        os.open = counted_open
        injector = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                view = memoryview(data)
                half = view[: len(view) // 2]
                injector._do("write", lambda: None, torn=lambda: super(Raw, self).write(half))
                return super().write(view)

        def counted_fdopen(file: int, mode: str = "r", *_: Any, **__: Any) -> io.BufferedWriter:
            return io.BufferedWriter(Raw(file, mode))  # type: ignore[arg-type]

        os.fdopen = counted_fdopen  # type: ignore[assignment]

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: self._do(name, lambda: call(*given, **named))

    def _do(self, name: str, call: Callable[[], Any], torn: Callable[[], Any] | None = None) -> Any:
        self.calls.append(name)
        if len(self.calls) != self.at:
            return call()
        if torn is not None:
            torn()
        if self.kind == "kill after":
            with contextlib.suppress(OSError):
                call()
        if self.kind.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, self.kind)
        raise OSError(number, os.strerror(number))
