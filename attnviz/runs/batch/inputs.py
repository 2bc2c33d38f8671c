"""Where a batch's texts come from: files, pipes or standard input, found and opened.

What lives here: names and endings → inputs that can be read more than once. What does not:
cutting them into rows (``rows``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from attnviz.errors import InputError, UsageError
from attnviz.registry import no_such_choice

FORMATS = ("txt", "jsonl", "csv", "tsv", "parquet")

_ENDINGS = {"": "txt", ".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
            ".tsv": "tsv", ".parquet": "parquet"}  # fmt: skip
_SPOOL_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Input:
    """One file of texts, readable more than once; ``spool`` holds what came through a pipe."""

    path: str
    name: str
    format: str
    spool: IO[bytes] | None = field(default=None, compare=False, repr=False)

    def open(self) -> IO[bytes]:
        """Open at the beginning.

        Raises
        ------
        InputError
            Not there, not readable.
        """
        if self.spool is not None:
            again = os.fdopen(os.dup(self.spool.fileno()), "rb")
            again.seek(0)
            return again
        try:
            return open(self.path, "rb")
        except (OSError, ValueError) as fault:
            raise InputError(f"cannot read {self.path}: {reason(fault)}") from fault

    def close(self) -> None:
        """Give back what was kept of a pipe."""
        if self.spool is not None:
            self.spool.close()

    def sha256(self) -> str:
        """Return the hash of the file's bytes."""
        found = hashlib.sha256()
        with self.open() as file:
            while data := file.read(1 << 20):
                found.update(data)
        return found.hexdigest()


def open_inputs(paths: Sequence[str], *, format: str | None = None) -> tuple[Input, ...]:
    """Find every input and its format, by its ending where none is given.

    Parameters
    ----------
    paths
        Files, or ``-`` for standard input, at most once; pipes are copied to a temporary file.
    format
        One of ``FORMATS`` for all of them.

    Raises
    ------
    UsageError
        No input, an unknown format or ending, standard input twice.
    InputError
        A file that is not there.
    """
    if not paths:
        raise UsageError("no input: give a .txt, .jsonl, .csv or .parquet file, or - for stdin")
    if format is not None and format not in FORMATS:
        raise UsageError(no_such_choice("--input-format", format, FORMATS))
    if list(paths).count("-") > 1:
        raise UsageError("standard input can be read only once: give - once")
    names: dict[str, int] = {}
    return tuple(_open_input(path, format, names) for path in paths)


def _open_input(path: str, format: str | None, names: dict[str, int]) -> Input:
    name = "-" if path == "-" else Path(path).name.encode("utf-8", "backslashreplace").decode()
    names[name] = names.get(name, 0) + 1
    shown = name if names[name] == 1 else f"{name} ({names[name]})"
    ending = "" if path == "-" else Path(path).suffix.lower()
    if format is None and ending not in _ENDINGS:
        known = ", ".join(e for e in _ENDINGS if e)
        raise UsageError(
            f"{path}: the ending '{ending}' is no known format; choose from {known}, or say what "
            "it is, for example --input-format txt"
        )
    chosen = format or _ENDINGS[ending]
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: give a file")
        return Input(path, shown, chosen, _spool(sys.stdin.buffer))
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{path} is a folder: give the files in it")
        if stat.S_ISREG(mode):
            return Input(path, shown, chosen)
        with open(path, "rb") as pipe:
            return Input(path, shown, chosen, _spool(pipe))
    except (OSError, ValueError) as fault:
        raise InputError(f"cannot read {path}: {reason(fault)}") from fault


def _spool(source: IO[bytes]) -> IO[bytes]:
    """Copy what can be read only once into a file without a name."""
    held = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as its Input)
    shutil.copyfileobj(source, held, _SPOOL_BYTES)
    held.flush()
    return held


def reason(fault: OSError | ValueError) -> str:
    """Return what the system says, in words."""
    return getattr(fault, "strerror", None) or str(fault)
