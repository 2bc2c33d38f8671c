"""Records between two processes of ours: a line of JSON, then files as plain bytes; no pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO, Any, TypeAlias

from attnviz.runs.batch.jobs import At, Job, Opened, Refused, Result, Work, from_plain

Message: TypeAlias = Work | Job | Opened | Refused | At | Result
_KINDS = {kind.__name__: kind for kind in (Work, Job, Opened, Refused, At, Result)}


def send(stream: IO[bytes], record: Message) -> None:
    """Write a record and flush it.

    Raises
    ------
    OSError
        The other side is gone.
    """
    found: dict[str, Any] = asdict(record)
    files: dict[str, bytes] = found.get("files", {})
    if files:
        found["files"] = {name: len(data) for name, data in files.items()}
    head = json.dumps([type(record).__name__, found], default=list)  # a set becomes a list
    stream.write(head.encode() + b"\n")
    stream.writelines(files.values())
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read a record; None where the other side is gone, even in the middle of one."""
    try:
        line = stream.readline()
        if not line.endswith(b"\n"):
            return None
        kind, found = json.loads(line)
        for name, n_bytes in found.get("files", {}).items():
            data = found["files"][name] = stream.read(n_bytes)
            if len(data) < n_bytes:
                return None
    except (OSError, ValueError):
        return None
    return from_plain(_KINDS[kind], found)
