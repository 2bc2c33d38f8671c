"""Messages between two processes: a JSON head, then files as plain bytes. Nothing is unpickled.

What lives here: writing and reading one message. What does not: what messages mean.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

_SIZE = struct.Struct("<Q")


def send(
    stream: IO[bytes], head: Mapping[str, Any], files: Mapping[str, bytes] | None = None
) -> None:
    """Write a message and flush it.

    Raises
    ------
    OSError
        The other side is gone.
    """
    parts = files or {}
    sizes = {name: len(data) for name, data in parts.items()}
    data = json.dumps({"head": dict(head), "files": sizes}).encode()
    stream.write(_SIZE.pack(len(data)) + data)
    for part in parts.values():
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Read a message: (head, files); None where the other side is gone, even in its middle."""
    size = _read(stream, _SIZE.size)
    if size is None:
        return None
    data = _read(stream, _SIZE.unpack(size)[0])
    if data is None:
        return None
    found = json.loads(data)
    files: dict[str, bytes] = {}
    for name, n_bytes in found["files"].items():
        part = _read(stream, n_bytes)
        if part is None:
            return None
        files[name] = part
    return found["head"], files


def _read(stream: IO[bytes], n_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    left = n_bytes
    while left:
        try:
            part = stream.read(left)
        except (OSError, ValueError):
            return None
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
