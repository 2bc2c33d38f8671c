"""A private cache on disk: hashes of large files, self-checks, converted GGUF files.

What lives here: where the cache is, and atomic writes into it (files 0600, folders 0700). What
does not: what is kept there. A cache that cannot be written is done without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 22
_NEW = ".new-"
_DAY_S = 86_400


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/attnviz``, or ``~/.cache/attnviz``; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return home / "attnviz"


def read_entry(kind: str, key: str) -> Any:
    """Return what was kept under a key, or None."""
    try:
        return json.loads(_entry(kind, key).read_bytes())
    except (OSError, ValueError):
        return None


def write_entry(kind: str, key: str, value: Any) -> None:
    """Keep a JSON value under a key; a cache that cannot be written is left alone."""
    target = _entry(kind, key)
    with contextlib.suppress(OSError):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(target.parent)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_own_prefix())
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(value, stream)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a private folder to fill, and move it to ``target`` in one step once it is whole.

    A half-written folder never has the final name; where another process was faster, its folder
    stays and ours is dropped.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(target.parent)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=_own_prefix()))
    try:
        yield made
        for file in made.rglob("*"):
            file.chmod(0o700 if file.is_dir() else 0o600)
        try:
            os.rename(made, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what killed runs left half-written in a folder of the cache.

    A name says which process, on which machine, writes there; it stays while that process lives.
    Of other machines, and of names that say nothing, it stays for a day after its last change.
    """
    for left in folder.glob(f"{_NEW}*"):
        with contextlib.suppress(OSError):
            host, _, rest = left.name.removeprefix(_NEW).partition("-")
            number = rest.partition("-")[0]
            if os.name == "posix" and host == _host() and number.isdigit():
                is_left = not _is_alive(int(number))
            else:
                is_left = time.time() - left.stat().st_mtime > _DAY_S
            if is_left and left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            elif is_left:
                left.unlink()


def _own_prefix() -> str:
    return f"{_NEW}{_host()}-{os.getpid()}-"


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_alive(number: int) -> bool:
    """Return whether a process of this number runs; a zombie that nobody waited for counts."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def sha256_of(path: Path) -> str:
    """Hash a file, remembering the answer by place, size and time of change.

    Notes
    -----
    About one second per gigabyte the first time, nothing after.
    """
    facts = path.stat()
    place = f"{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ino}"
    key = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
    known = read_entry("sha256", key)
    if isinstance(known, str) and len(known) == 64:
        return known
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    write_entry("sha256", key, digest.hexdigest())
    return digest.hexdigest()


def _entry(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{key}.json"
