"""Which texts a batch takes: files, pipes or standard input, and a condition on the length of a text."""

from __future__ import annotations

import operator
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from attnviz.errors import InputError, UsageError
from attnviz.registry import no_such_choice

FORMATS = ("txt", "jsonl", "csv", "tsv", "parquet")

_ENDINGS = {"": "txt", ".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
            ".tsv": "tsv", ".parquet": "parquet"}  # fmt: skip
_SPOOL_BYTES = 16 << 20
NAMES = ("tokens", "chars")
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATOR = r"\s*(<=|>=|==|!=|=|<|>)\s*"
_SIMPLE = re.compile(rf"(\w+){_OPERATOR}(\d+)", re.ASCII)
_CHAIN = re.compile(rf"(\d+){_OPERATOR}(\w+?)(?:{_OPERATOR}(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Input:
    """One file of texts, readable more than once.

    Parameters
    ----------
    name
        Of the file, without folders; ``-`` for standard input.
    sha256, rows
        Of all its bytes, and how many rows there are, once ``rows.count_rows`` has read it.
    spool
        What came through a pipe.
    digest
        A hash that is told every byte as it is read.
    """

    name: str
    format: str
    sha256: str = ""
    rows: int = 0
    path: str = ""
    spool: IO[bytes] | None = field(default=None, compare=False, repr=False)
    digest: Any = field(default=None, compare=False, repr=False)

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
        return Input(shown, chosen, path=path, spool=_spool(sys.stdin.buffer))
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{path} is a folder: give the files in it")
        if stat.S_ISREG(mode):
            return Input(shown, chosen, path=path)
        with open(path, "rb") as pipe:
            return Input(shown, chosen, path=path, spool=_spool(pipe))
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


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons that must all hold: (name, operator, number)."""

    parts: tuple[tuple[str, str, int], ...] = ()

    def holds(self, name: str, value: int) -> bool:
        """Tell whether everything said about one name is true of a value."""
        return all(
            _OPERATORS[sign](value, number) for what, sign, number in self.parts if what == name
        )


def read_where(text: str | None) -> Condition:
    """Read a condition: comparisons of ``tokens`` or ``chars`` with numbers, joined by ``and``.

    Raises
    ------
    UsageError
        Anything else.

    Examples
    --------
    >>> read_where("3 <= tokens <= 64 and chars < 400").parts
    (('tokens', '>=', 3), ('tokens', '<=', 64), ('chars', '<', 400))
    >>> read_where("tokens > 2").holds("tokens", 2)
    False
    """
    if text is None or not text.strip():
        return Condition()
    parts: list[tuple[str, str, int]] = []
    for piece in re.split(r"\s+and\s+|\s*,\s*", text.strip()):
        simple, chain = _SIMPLE.fullmatch(piece), _CHAIN.fullmatch(piece)
        if simple:
            found = [(simple[1], simple[2], int(simple[3]))]
        elif chain:
            found = [(chain[3], _FLIPPED.get(chain[2], chain[2]), int(chain[1]))]
            if chain[4]:
                found.append((chain[3], chain[4], int(chain[5])))
        else:
            found = [("", "", 0)]
        if any(name not in NAMES for name, _, _ in found):
            raise UsageError(
                f"--where {text!r}: {piece!r} is no comparison of tokens or chars with a number; "
                'for example --where "3 <= tokens <= 64 and chars < 400"'
            )
        parts += found
    return Condition(tuple(parts))
