"""What every array file gives, whatever its format: names, shapes and types before any data.

What lives here: ``Entry``, ``ArrayFile``, ``Rows`` and the checks all formats share. What does
not: the formats (one file each), and what the arrays mean (``layouts``).
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from attnviz.errors import InputError, ResourceError, WeightsError
from attnviz.records import Array
from attnviz.sources.files.dtypes import widen

Writer: TypeAlias = Callable[[BinaryIO], None]
"""Writes one file's bytes into an open binary file."""

MAX_ARRAYS = 200_000
MAX_NAME_CHARS = 1_024
MAX_AXES = 32
MAX_TOTAL_BYTES = 8 << 30
"""Unpacked size of a compressed file, at most."""

METADATA_NAMES = ("n_heads", "n_kv_heads", "scale", "causal", "origin", "vocab", "embedding_from")
"""Arrays of these names in .npz and .npy folders are metadata, not tensors."""

_PLAIN = re.compile(r"[\w./+\-]{1,80}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One array of a file, before it is read; ``dtype`` is the file's own word for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An opened array file: everything but the numbers, and how to get at those.

    Parameters
    ----------
    name
        The file's (or folder's) own name, without its path.
    format
        ``safetensors``, ``npz``, ``npy`` or ``pt``.
    entries
        By name, in the file's order.
    metadata
        Strings by name; ``vocab`` is a JSON list of words.
    stored
        ``stored(name)`` maps or reads one array with its bits as stored: (array, dtype name).
    """

    name: str
    format: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    stored: Callable[[str], tuple[Array, str]] = field(repr=False)

    def read(self, name: str) -> Array:
        """Read one array whole; bfloat16 and 8-bit floats are widened exactly to float32."""
        bits, dtype = self.stored(name)
        return widen(bits, dtype)

    def rows(self, name: str, *, start: int = 0) -> Rows:
        """Open one array by its first axis, from ``start``: only the rows asked for are read."""
        bits, dtype = self.stored(name)
        return Rows(bits, dtype, file=self.name, name=name, start=start)


class Rows:
    """A table (N, …) whose rows are read, widened and checked when they are asked for.

    Raises
    ------
    WeightsError
        A row that is read holds NaN or ±Inf.
    """

    __slots__ = ("_bits", "_dtype", "_file", "_name", "_start", "shape")

    def __init__(self, bits: Array, dtype: str, *, file: str, name: str, start: int = 0) -> None:
        self._bits = bits[start:] if start else bits
        self._dtype, self._file, self._name, self._start = dtype, file, name, start
        self.shape: tuple[int, ...] = self._bits.shape

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Array:
        rows = widen(self._bits[index], self._dtype)
        if not np.isfinite(rows).all():
            self._refuse()
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)

    def _refuse(self) -> None:
        for i in range(len(self)):  # pragma: no branch  (one of the rows is at fault)
            row = widen(self._bits[i], self._dtype)
            check_finite(row, file=self._file, name=self._name, start=(i + self._start,))


def check_finite(values: Array, *, file: str, name: str, start: tuple[int, ...] = ()) -> None:
    """Refuse NaN and ±Inf by tensor and index.

    Raises
    ------
    WeightsError
        With the first index in row-major order and the value found there.
    """
    finite = np.isfinite(values)
    if finite.all():
        return
    first = np.unravel_index(int(np.argmin(finite)), finite.shape)
    place = (*start, *(int(i) for i in first))
    count = int(finite.size - np.count_nonzero(finite))
    raise WeightsError(
        f"{file}: {quote(name)}[{', '.join(map(str, place))}] is {values[first]}"
        f"{f' ({count} such entries)' if count > 1 else ''}: "
        "wanted finite numbers only; repair or retrain these weights"
    )


def quote(name: str) -> str:
    """Return a name from a file for a message: plain as it is, anything else escaped and cut.

    Examples
    --------
    >>> quote("h.0.attn.c_attn.weight"), quote("w\\n")
    ('h.0.attn.c_attn.weight', "'w\\\\n'")
    """
    if _PLAIN.fullmatch(name):
        return name
    return repr(name if len(name) <= 80 else name[:79] + "…")


def listed(names: Iterable[str], *, most: int = 8) -> str:
    """Return the first names of many for a message, with how many there are."""
    every = list(names)
    shown = ", ".join(quote(name) for name in every[:most])
    return f"{shown}, … ({len(every)} in all)" if len(every) > most else shown or "none"


def check_name(file: str, name: str, seen: Mapping[str, Any]) -> None:
    """Refuse a name that is too long, or that the file has already given."""
    if len(name) > MAX_NAME_CHARS:
        raise WeightsError(
            f"{file}: the name {quote(name)} has {len(name)} characters: "
            f"at most {MAX_NAME_CHARS} are read"
        )
    if name in seen:
        raise WeightsError(
            f"{file}: {quote(name)} stands in the file twice: wanted every name once; "
            f"names found: {listed(seen)}"
        )


def file_size_bytes(path: Path) -> int:
    """Return the size of a regular file; anything that could block or never end is refused.

    Raises
    ------
    InputError
        The file is not there, or not readable, or is no regular file.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as fault:
        raise unreadable(path, fault) from fault
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path.name} is not a regular file: give a weight file on disk")
    return found.st_size


def map_file(path: Path) -> Array:
    """Map a file into memory as (size,) uint8, read-only; pages are read when touched.

    Raises
    ------
    WeightsError
        The file is empty.
    ResourceError
        There is no room for the mapping.
    """
    if file_size_bytes(path) == 0:
        raise WeightsError(f"{path.name} is empty (0 bytes): wanted a weight file; save it again")
    try:
        with open(path, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError, MemoryError) as fault:
        raise unreadable(path, fault) from fault


def unreadable(path: Path, fault: BaseException) -> InputError | ResourceError:
    """Return the error for a file that the system does not let us read."""
    reason = getattr(fault, "strerror", None) or str(fault)
    if isinstance(fault, MemoryError) or getattr(fault, "errno", None) == 12:
        return ResourceError(f"cannot read {path.name}: memory is used up; free some, or use less")
    return InputError(f"cannot read {path.name}: {reason}; check the path")
