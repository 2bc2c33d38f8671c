"""One writer per folder: a lock that the system itself gives back when its holder dies.

What lives here: holding a lock file, alone or shared. What does not: what it protects (``shards``).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK)


class Lock:
    """A lock on a file, which is made if it is not there and stays there, empty.

    While it is held alone, the file says by which process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._is_shared = False

    def hold(self, *, shared: bool = False) -> bool:
        """Take the lock without waiting; False where another process holds it.

        Raises
        ------
        OSError
            The file cannot be made.
        """
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self.path, flags, 0o666)
        try:
            _lock(file, shared=shared)
        except OSError as fault:
            os.close(file)
            if fault.errno in _BUSY:
                return False
            raise
        except BaseException:
            os.close(file)
            raise
        self._file, self._is_shared = file, shared
        if not shared:
            _write(file, str(os.getpid()).encode())
        return True

    def holder(self) -> str:
        """Return who holds it, in words, or nothing where the file does not say."""
        try:
            number = self.path.read_bytes()[:20].decode("ascii")
        except (OSError, ValueError):
            return ""
        return f" (process {number})" if number.isdigit() else ""

    def release(self) -> None:
        """Give the lock back."""
        if self._file is None:
            return
        if not self._is_shared:
            _write(self._file, b"")
        os.close(self._file)
        self._file = None


def _lock(file: int, *, shared: bool) -> None:
    if os.name == "nt":  # pragma: no cover  (Windows)
        import msvcrt

        mode = getattr(msvcrt, "LK_NBLCK")  # noqa: B009  (not there for the type checker)
        getattr(msvcrt, "locking")(file, mode, 1)  # noqa: B009
        return
    import fcntl

    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _write(file: int, data: bytes) -> None:
    """Say who holds the lock; only told to people, so a full disk does not matter here."""
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, data, 0)
    except OSError:
        pass
