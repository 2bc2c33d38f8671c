"""The texts of a batch as numbered rows: .txt, .jsonl, .csv, .tsv and .parquet.

What lives here: an input → rows in order; a row that cannot be read carries its error and the
rest goes on. What does not: finding files (``inputs``), tokens and numbers (``work``).

A line ends at the byte 0x0A and nowhere else, so that ``line`` is what ``grep -n ''`` shows; one
carriage return before it is dropped. No line longer than ``MAX_TEXT_BYTES`` is ever held.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from attnviz.errors import InputError, UsageError
from attnviz.runs.batch.inputs import Input, reason

MAX_TEXT_BYTES = 1 << 20
"""Longer texts are not read: at most this many bytes, UTF-8."""

_TEXT_COLUMN = "text"


@dataclass(frozen=True, slots=True)
class Row:
    """One text of a batch, or why there is none.

    Parameters
    ----------
    number
        Its place over all inputs, from 0, in the order read; every row counts, bad ones too.
    input
        Name of the file, without folders; ``-`` for standard input.
    line
        Line of that file, from 1; of a .csv the line a record begins on; of a .parquet the row.
    text
        The text, or None where ``error`` says why it cannot be read.
    """

    number: int
    input: str
    line: int
    text: str | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read: ``text_column`` names a column of .jsonl, .csv, .tsv and .parquet."""

    text_column: str | None = None
    encoding: str = "utf-8"


def check_encoding(name: str) -> str:
    """Return the canonical name of an encoding in which a newline is the byte 0x0A.

    Examples
    --------
    >>> check_encoding("Latin-1")
    'iso8859-1'
    """
    try:
        found = codecs.lookup(name).name
        is_plain = "\n".encode(found) == b"\n" and "a,b".encode(found) == b"a,b"
    except (LookupError, UnicodeError):
        raise UsageError(
            f"--encoding {name!r} is no encoding: for example utf-8, latin-1"
        ) from None
    if not is_plain:
        raise UsageError(
            f"--encoding {name}: its newline is not the byte 0x0A; convert the file first, "
            f"for example with iconv -f {name} -t UTF-8"
        )
    return found


def read_rows(inputs: Sequence[Input], reading: Reading | None = None) -> Iterator[Row]:
    """Read every row of every input in order; a bad row is a row with its error.

    Raises
    ------
    InputError
        A file that cannot be read at all.
    UsageError
        A column that does not exist.
    """
    how = reading or Reading()
    number = 0
    for one in inputs:
        try:
            for line, text, error in _READERS[one.format](one, how):
                yield Row(number, one.name, line, text, error)
                number += 1
        except OSError as fault:
            raise InputError(f"cannot read {one.path}: {reason(fault)}") from fault


def count_rows(inputs: Sequence[Input], reading: Reading | None = None) -> tuple[Input, ...]:
    """Return the inputs with the number of their rows and the hash of their bytes, read once.

    Raises
    ------
    InputError
        No row at all, or a file that cannot be read.
    """
    counted = []
    for one in inputs:
        digest = hashlib.sha256()
        n_rows = sum(1 for _ in read_rows([replace(one, digest=digest)], reading))
        counted.append(replace(one, rows=n_rows, sha256=digest.hexdigest()))
    if not any(one.rows for one in counted):
        names = ", ".join("standard input" if one.path == "-" else one.path for one in inputs)
        raise InputError(f"no text in {names}: give a file with at least one line")
    return tuple(counted)


Found = tuple[int, str | None, str]
"""Line, text or None, error."""


def _read_txt(one: Input, how: Reading) -> Iterator[Found]:
    for line, data in _lines(one):
        if isinstance(data, int):
            yield line, None, _too_long(data)
            continue
        text, error = _decode(data, how.encoding)
        yield line, text, error


def _read_jsonl(one: Input, how: Reading) -> Iterator[Found]:
    column = how.text_column or _TEXT_COLUMN
    for line, data in _lines(one):
        if isinstance(data, int):
            yield line, None, _too_long(data)
            continue
        text, error = _decode(data, how.encoding)
        if text is not None:
            text, error = _pick_json(text, column)
        yield line, text, error


def _pick_json(line: str, column: str) -> tuple[str | None, str]:
    """Return the text of a JSON line: an object's column, or the line's own string."""
    try:
        found = json.loads(line)
    except RecursionError:
        return None, "not JSON: nested too deeply"
    except ValueError as fault:
        return None, f"not JSON: {fault}"
    if isinstance(found, dict):
        if column not in found:
            listed = ", ".join(map(repr, list(found)[:8])) or "none"
            return None, f"no column {column!r}: there are {listed}"
        found = found[column]
    if not isinstance(found, str):
        kind = {type(None): "null", bool: "a boolean", list: "a list", dict: "an object"}
        what = kind.get(type(found), "a number")
        return None, f"column {column!r} holds {what}: wanted a string"
    return found, ""


def _read_table(one: Input, how: Reading) -> Iterator[Found]:
    """Read .csv or .tsv; the first record names the columns."""
    lines = _TableLines(one, how.encoding)
    csv.field_size_limit(MAX_TEXT_BYTES)
    table = csv.reader(lines, delimiter="\t" if one.format == "tsv" else ",", strict=True)
    header: list[str] | None = None
    place = 0
    while True:
        lines.begin()
        record: list[str] = []
        error = ""
        try:
            record = next(table)
        except StopIteration:
            return
        except csv.Error as fault:
            error = f"not a record of a {one.format} file: {fault}"
        error = lines.error or error
        if header is None:
            if error:
                raise InputError(f"{one.path}: its first line is no list of columns: {error}")
            header = record
            place = _find_column(one.path, header, how.text_column)
            continue
        if error:
            yield lines.first, None, error
        elif record and len(record) <= place:
            yield lines.first, None, f"{len(record)} columns: wanted {len(header)}"
        elif record:  # a blank line is no record
            yield lines.first, record[place], ""


class _TableLines:
    """Feeds a csv reader line by line, and remembers where a record began and what was wrong."""

    def __init__(self, one: Input, encoding: str) -> None:
        self._lines = _lines(one, keep_ends=True)
        self._encoding = encoding
        self.first = 0
        self.error = ""

    def begin(self) -> None:
        self.first, self.error = 0, ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line, data = next(self._lines)
        self.first = self.first or line
        if isinstance(data, int):
            self.error = self.error or _too_long(data)
            return "\n"
        text, error = _decode(data, self._encoding)
        self.error = self.error or error
        return "\n" if text is None else text


def _read_parquet(one: Input, how: Reading) -> Iterator[Found]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(
            f"{one.path}: .parquet files need pyarrow: pip install 'attnviz[parquet]'"
        ) from None
    with one.open() as file:
        while one.digest is not None and (data := file.read(1 << 20)):
            one.digest.update(data)
        file.seek(0)
        try:
            table = parquet.ParquetFile(file)
            names = table.schema_arrow.names
            place = _find_column(one.path, names, how.text_column)
            kind = table.schema_arrow.field(place).type
            if pyarrow.types.is_dictionary(kind):
                kind = kind.value_type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise UsageError(
                    f"{one.path}: column {names[place]!r} holds {kind}: wanted strings; choose "
                    f"with --text-column from {', '.join(map(repr, names[:12]))}"
                )
            line = 0
            for part in table.iter_batches(batch_size=1024, columns=[names[place]]):
                for value in part.column(0):
                    line += 1
                    yield (line, *_check_size(value.as_py()))
        except pyarrow.ArrowException as fault:
            message = " ".join(str(fault).split())[:200]
            raise InputError(f"{one.path} is not a readable .parquet file: {message}") from fault


def _check_size(text: str | None) -> tuple[str | None, str]:
    if text is None:
        return None, "no text: the cell is null"
    n_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return (text, "") if n_bytes <= MAX_TEXT_BYTES else (None, _too_long(n_bytes))


_READERS: dict[str, Callable[[Input, Reading], Iterator[Found]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "csv": _read_table,
    "tsv": _read_table,
    "parquet": _read_parquet,
}


def _lines(one: Input, *, keep_ends: bool = False) -> Iterator[tuple[int, bytes | int]]:
    """Yield (line, its bytes), or (line, how many bytes) for one too long to hold."""
    with one.open() as file:
        line = 0
        while data := _read_line(file, one, MAX_TEXT_BYTES + 2):
            line += 1
            if line == 1:
                data = data.removeprefix(codecs.BOM_UTF8)
            size = len(data)
            has_end = data.endswith(b"\n")
            while not has_end and (more := _read_line(file, one, MAX_TEXT_BYTES)):
                size += len(more)
                has_end = more.endswith(b"\n")
            if size - has_end > MAX_TEXT_BYTES + 1:
                yield line, size - has_end
            elif keep_ends:
                yield line, data
            else:
                yield line, data.removesuffix(b"\n").removesuffix(b"\r")


def _read_line(file: IO[bytes], one: Input, most: int) -> bytes:
    data = file.readline(most)
    if one.digest is not None:
        one.digest.update(data)
    return data


def _decode(data: bytes, encoding: str) -> tuple[str | None, str]:
    try:
        return data.decode(encoding), ""
    except UnicodeDecodeError as fault:
        name = "UTF-8" if encoding in ("utf-8", "utf8") else encoding
        return None, (
            f"not {name}: byte 0x{data[fault.start]:02X} at position {fault.start}; name the "
            "file's encoding, for example --encoding latin-1"
        )


def _too_long(n_bytes: int) -> str:
    return f"{n_bytes} bytes: at most {MAX_TEXT_BYTES} are read as one text"


def _find_column(path: str, columns: Sequence[str], wanted: str | None) -> int:
    """Return the place of the text column: the named one, ``text``, or the only one."""
    names: list[Any] = list(columns)
    if wanted is None and len(names) == 1:
        return 0
    name = _TEXT_COLUMN if wanted is None else wanted
    if name not in names:
        listed = ", ".join(map(repr, names[:12])) + (" …" if len(names) > 12 else "")
        raise UsageError(
            f"{path} has no column {name!r}: choose with --text-column from {listed or 'none'}"
        )
    return names.index(name)
